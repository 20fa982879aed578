"""Recorders for this host: what a plan has to know of the kernel and its tools before it can say what would be written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from proxyd.config import Config
from proxyd.config.host_settings import localhost_settings
from proxyd.desired.settings import NodePolicy
from proxyd.ipt.saved import Contents as IptContents
from proxyd.ipt.style import Style
from proxyd.kernel.ipt.accounting import NetlinkAccounting
from proxyd.kernel.ipt.backend import Choice
from proxyd.kernel.ipt.iptables import IptablesTools
from proxyd.kernel.ipt.rules import BATCH, ToolRules
from proxyd.kernel.nft.libnftables import BY_EXPRESSIONS, LibNftables, numbers
from proxyd.kernel.nft.reading import generation_in_force
from proxyd.kernel.nft.ruleset import Contents as NftContents
from proxyd.kernel.predecessor import Predecessor, predecessors
from proxyd.kernel.present import CannotLookError
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family
from proxyd.modes import backend_choice, counters_wanted, rule_style
from proxyd.sync.foresight import IptRecorder, NftRecorder, Recorder


class Recorders:
    """Makes recorders for one configuration. ``notes`` say what could not be known."""

    def __init__(self, config: Config, policy: NodePolicy, families: Sequence[Family]) -> None:
        self.notes: list[str] = []
        self._mode, self._config, self._policy, self._families = config.mode, config, policy, families

    def on_kernel(self, family: Family) -> Recorder:
        """For a proxyd that starts on what the kernel has now. Raises ``CannotLookError``."""
        try:
            if self._mode == "iptables":
                return self._ipt(family, ToolRules(self._tools(family)).contents())
            return self._nft(family, self._library.contents(family))
        except KernelRefusedError as error:
            raise CannotLookError(str(error)) from error

    def running(self, family: Family) -> Recorder:
        """For a proxyd that runs: as it found the kernel, so that what it wrote is what there is."""
        if self._mode == "iptables":
            return self._ipt(family, IptContents())
        try:
            number = generation_in_force(self._library, family)
        except KernelRefusedError as error:
            raise CannotLookError(f"nftables: {error}") from error
        # A write of everything takes the next number.
        there = frozenset({f"g{number - 1}/services"}) if number is not None and number > 1 else frozenset[str]()
        return self._nft(family, NftContents(there))

    def in_mode(self, mode: str, family: Family) -> Recorder:
        """For a proxyd in any mode, on a kernel without rules."""
        if mode == "iptables":
            return IptRecorder(family, IptContents(), max(BATCH.values()), Style())
        return NftRecorder(family, NftContents(), by_expressions=False)

    def predecessors(self) -> list[Predecessor]:
        """The places where rules would be removed once those of the mode are in."""
        return predecessors(self._families, self._backend.backend if self._mode == "iptables" else None)

    def _nft(self, family: Family, there: NftContents) -> Recorder:
        return NftRecorder(family, there, by_expressions=numbers(self._library.version) >= BY_EXPRESSIONS)

    def _ipt(self, family: Family, there: IptContents) -> Recorder:
        return IptRecorder(family, there, BATCH[self._backend.backend], self._style)

    def _tools(self, family: Family) -> IptablesTools:
        return IptablesTools(family, self._backend.backend)

    @cached_property
    def _library(self) -> LibNftables:
        return LibNftables()

    @cached_property
    def _backend(self) -> Choice:
        return backend_choice(self._families)

    @cached_property
    def _style(self) -> Style:
        localhost = bool(localhost_settings(self._config, self._config.localhost_node_ports))
        accounting = NetlinkAccounting()
        wanted = counters_wanted(self._policy, localhost=localhost)
        there = frozenset(each for each in wanted if accounting.packets(each) is not None)
        if there != frozenset(wanted):
            # To try whether rules can use them would be to write.
            self.notes.append("counters (nfacct) are not there yet: a proxyd that makes them has a few rules more")
            there = frozenset()
        version = max(self._tools(family).version() for family in self._families)
        return rule_style(self._policy, version, there, localhost=localhost)
