"""The tools of iptables in trouble: what is owed stays owed, the old rules serve, and the message says what is missing.

The tools are the real ones behind a wrapper, which refuses what it is told to.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cluster.flows import READY, Bench, pod, service, slices, target
from tests.cluster.manifests import Connecting, answers
from tests.cluster.modes import IPTABLES, Mode
from tests.program import Proxyd, until
from tests.topology import V4, V6, Topology

pytestmark = IPTABLES
FAILED = "rules not written"
WRAPPER = """#!/bin/sh
input=$(mktemp)
cat > "$input"
if [ -e "{folder}/word" ] && grep -qe "$(cat "{folder}/word")" "$input"; then
    rm "$input"
    cat "{folder}/says" >&2
    exit 4
fi
# The same process, as its id is what own changes are told by.
exec {real} "$@" < "$input"
"""


class Tools:
    """The wrappers, and what is wrong with them."""

    def __init__(self, folder: Path, mode: Mode) -> None:
        self._folder = folder
        folder.mkdir()
        for tool in (f"{mode}-restore", f"{mode}-restore".replace("iptables", "ip6tables")):
            wrapper = folder / tool
            wrapper.write_text(WRAPPER.format(folder=folder, real=shutil.which(tool)))
            wrapper.chmod(0o755)

    def fail(self, word: str, says: str) -> None:
        """Refuses each call that has ``word`` in it."""
        (self._folder / "says").write_text(says)
        (self._folder / "word").write_text(word)

    def are_well(self) -> None:
        (self._folder / "word").unlink()


@pytest.fixture
def tools(tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> Tools:
    path = tmp_path / "tools"
    made = Tools(path, mode)
    monkeypatch.setenv("PATH", f"{path}:/usr/sbin:/usr/bin:/sbin:/bin")
    return made


def test_flows_that_a_failed_pass_owed_go_once_the_rules_are_in(bench: Bench, mode: Mode, tools: Tools) -> None:
    # One family of each backend: what fails, and what is owed then, is the same code.
    family = V4 if mode is Mode.NFT else V6
    to = target("cluster ip", family)
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert bench.send(to, 5353) == "pod1"
    tools.fail(".", "Another app is currently holding the xtables lock\n")
    bench.put(service(), *slices(pod3=READY))
    assert bench.proxyd is not None
    bench.proxyd.wait_event(FAILED, ip_family=str(family))
    assert bench.send(to, 5353) == "pod1"
    assert any(each.answers == pod("pod1", family) for each in bench.flows(family))
    tools.are_well()
    bench.until_answered(to, 5353, {"pod3"})
    bench.proxyd.wait_healthy()


def test_a_kernel_without_a_feature_is_named_and_the_old_rules_stay(
    node: Topology, mode: Mode, folder: Path, log: Path, tools: Tools
) -> None:
    with Proxyd(node, folder, log, flags=mode.flags):
        pass
    log.unlink()
    tools.fail("MASQUERADE", "Warning: Extension MASQUERADE revision 0 not supported, missing kernel module?\n")
    # Another mark, or there would be nothing to write.
    flags = (*mode.flags, "--iptables-masquerade-bit", "15")
    with Connecting(node) as connecting, Proxyd(node, folder, log, flags=flags, wait=False) as proxyd:
        error = proxyd.wait_event(FAILED, ip_family="IPv4")["error"]
        assert "MASQUERADE revision 0 not supported, missing kernel module" in error

        def waits() -> list[float]:
            return [each["retry_in_seconds"] for each in proxyd.events(FAILED, ip_family="IPv4")]

        until(lambda: len(waits()) >= 2, "it is tried again")
        assert waits() == sorted(set(waits())), "ever more rarely"
        status, body = proxyd.get("/healthz")
        assert (status, json.loads(body)["status"]["IPv4"]["healthy"]) == (503, False)
        assert proxyd.get("/livez")[0] == 200
        connecting.more()
        tools.are_well()
        proxyd.wait_healthy()
        assert answers(node) == {"pod1", "pod3"}
        assert proxyd.stop() == 0
    assert set(connecting.counts) == {"pod1", "pod3"}
