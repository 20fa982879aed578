"""kube-proxy's rules, found and removed in every place that they can be in; others' rules stay as they are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from proxyd.ipt.removal import BATCH, Found
from proxyd.kernel.ipt.iptables import Backend, IptablesTools
from proxyd.kernel.predecessor import LegacyChains, NftChains, NftTable, Predecessor, PredecessorError
from proxyd.model import Family
from tests.fakes.iptables import FakeIptables
from tests.netns import leave, why_not

T = TypeVar("T")
V4 = Family.IPV4
HASHES = ("XPGD46QRK7WJZT7O", "SNQ3ZNILQDEJNDQO")

RULES = f"""*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-{HASHES[0]} - [0:0]
:KUBE-SEP-{HASHES[1]} - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-{HASHES[0]}
-A KUBE-SVC-{HASHES[0]} -j KUBE-SEP-{HASHES[1]}
-A KUBE-SEP-{HASHES[1]} -s 10.244.1.1/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-{HASHES[1]} -p tcp -m tcp -j DNAT --to-destination 10.244.1.1:80
-A KUBE-POSTROUTING -j MASQUERADE
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
"""
OTHERS = """*nat
:CNI-HOSTPORT - [0:0]
:KUBE-MARK-DROP - [0:0]
:odd.name:1 - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT
-A OUTPUT -j odd.name:1
-A CNI-HOSTPORT -p tcp -m tcp --dport 47 -m comment --comment "not -j KUBE-SERVICES" -j DNAT --to-destination 10.244.1.9:80
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
COMMIT
"""
USES_MARK = "*nat\n-A CNI-HOSTPORT -s 10.244.1.0/24 -j KUBE-MARK-MASQ\nCOMMIT\n"
TABLE = """
table ip kube-proxy {
    comment "rules for kube-proxy";
    map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.0.0.1 . tcp . 80 : goto a } }
    chain a { counter; }
    chain nat-prerouting { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @service-ips; }
    chain nat-output { type nat hook output priority -100; ip daddr . meta l4proto . th dport vmap @service-ips; }
    chain nat-postrouting { type nat hook postrouting priority srcnat; masquerade; }
}
table ip kube-proxy-of-somebody { chain nat-output { type nat hook output priority -100; }; }
"""


class Namespace:
    """A namespace that a thread holds, for calls that have to be made in it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "namespace", leave)

    def call(self, what: Callable[..., T], *arguments: Any) -> T:
        return self._thread.submit(what, *arguments).result()

    def run(self, *words: str, text: str = "") -> str:
        def inside() -> str:
            return subprocess.run(words, input=text, text=True, capture_output=True, check=True).stdout

        return self.call(inside)

    def restore(self, backend: str, text: str) -> None:
        self.run(f"iptables-{backend}-restore", "--noflush", text=text)

    def rules(self, backend: str) -> list[str]:
        """All rules, and all chains that are not built in, each after its table and without counters."""
        found, table = [], ""
        for line in self.run(f"iptables-{backend}-save").splitlines():
            if line.startswith("*"):
                table = line
            elif line.startswith("-A") or " - [" in line:
                found.append(f"{table} {line.split(' [')[0]}")
        return found

    def close(self) -> None:
        self._thread.shutdown()


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if reason := why_not():
        pytest.skip(reason)
    made = Namespace()
    yield made
    made.close()


def place(backend: str) -> Predecessor:
    return NftChains(V4) if backend == "nft" else LegacyChains(V4, IptablesTools(V4, Backend.LEGACY))


def remove(namespace: Namespace, where: Predecessor) -> Found:
    found = namespace.call(where.find)
    assert found is not None
    namespace.call(where.remove, found)
    assert namespace.call(where.find) is None
    return found


BACKENDS = pytest.mark.parametrize("backend", ["nft", "legacy"])


@pytest.mark.kernel
@BACKENDS
def test_all_of_kube_proxys_rules_go_and_everything_else_stays(namespace: Namespace, backend: str) -> None:
    namespace.restore(backend, OTHERS)
    before = namespace.rules(backend)
    namespace.restore(backend, RULES)
    found = remove(namespace, place(backend))
    assert len(found.jumps) == 4
    assert len(found.chains) == 7
    assert namespace.rules(backend) == before
    assert len(before) == 8


@pytest.mark.kernel
@BACKENDS
def test_a_chain_that_others_rules_lead_to_stays_with_them(namespace: Namespace, backend: str) -> None:
    namespace.restore(backend, OTHERS + RULES + USES_MARK)
    assert [each.name for each in remove(namespace, place(backend)).kept] == ["KUBE-MARK-MASQ"]
    assert "*nat -A CNI-HOSTPORT -s 10.244.1.0/24 -j KUBE-MARK-MASQ" in namespace.rules(backend)
    assert "*nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000" in namespace.rules(backend)


@pytest.mark.kernel
@BACKENDS
def test_jumps_whose_comments_are_no_text_go(namespace: Namespace, backend: str) -> None:
    namespace.restore(backend, RULES)
    words = ("-t", "nat", "-A", "PREROUTING", "-m", "comment", "--comment", os.fsdecode(b"caf\xe9"))
    namespace.run(f"iptables-{backend}", *words, "-j", "KUBE-SERVICES")
    assert len(remove(namespace, place(backend)).jumps) == 5


@pytest.mark.kernel
@BACKENDS
def test_thousands_of_chains_go(namespace: Namespace, backend: str) -> None:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
    names = [
        f"KUBE-SEP-{letters[n >> 10]}{letters[n >> 5 & 31]}{letters[n & 31]}{'A' * 13}" for n in range(BATCH + 500)
    ]
    lines = [f":{name} - [0:0]" for name in names] + [f"-A KUBE-SERVICES -j {name}" for name in names]
    namespace.restore(backend, RULES + "\n".join(["*nat", *lines, "COMMIT\n"]))
    assert len(remove(namespace, place(backend)).chains) == BATCH + 507


@pytest.mark.kernel
@BACKENDS
def test_what_vanishes_between_looking_and_removing_is_a_failure_that_the_next_try_gets_over(
    namespace: Namespace, backend: str
) -> None:
    namespace.restore(backend, RULES)
    where = place(backend)
    found = namespace.call(where.find)
    assert found is not None
    namespace.restore(
        backend, '*nat\n-D OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES\nCOMMIT\n'
    )
    with pytest.raises(PredecessorError):
        namespace.call(where.remove, found)
    remove(namespace, where)


@pytest.mark.kernel
def test_the_table_of_nftables_mode_goes_and_no_other(namespace: Namespace) -> None:
    namespace.run("nft", "-f", "-", text=TABLE)
    remove(namespace, NftTable(V4))
    assert namespace.run("nft", "list", "tables") == "table ip kube-proxy-of-somebody\n"
    assert namespace.call(NftTable(Family.IPV6).find) is None


@pytest.mark.kernel
@BACKENDS
def test_families_are_told_apart(namespace: Namespace, backend: str) -> None:
    rules = RULES.replace("10.96.0.1/32", "fd00::1/128").replace("10.244.1.1/32", "fd00::2/128")
    namespace.run(f"ip6tables-{backend}-restore", "--noflush", text=rules.replace("10.244.1.1:80", "[fd00::2]:80"))
    assert namespace.call(place(backend).find) is None
    assert namespace.call(NftTable(V4).find) is None
    v6 = Family.IPV6
    remove(namespace, NftChains(v6) if backend == "nft" else LegacyChains(v6, IptablesTools(v6, Backend.LEGACY)))


@pytest.mark.kernel
def test_nothing_is_found_or_made_where_nothing_is(namespace: Namespace) -> None:
    for where in (NftTable(V4), NftChains(V4), place("legacy")):
        assert namespace.call(where.find) is None
    assert namespace.run("nft", "list", "ruleset") == ""
    assert namespace.run("cat", "/proc/thread-self/net/ip_tables_names") == ""


@pytest.mark.kernel
def test_legacy_rules_without_legacy_tools_are_a_failure_that_names_the_tool(
    namespace: Namespace, tmp_path: Path
) -> None:
    where = LegacyChains(V4, IptablesTools(V4, Backend.LEGACY, str(tmp_path)))
    assert namespace.call(where.find) is None
    namespace.restore("legacy", RULES)
    with pytest.raises(PredecessorError, match="iptables-legacy-save is not there"):
        namespace.call(where.find)


def test_rules_in_memory_go_in_the_same_way() -> None:
    fake = FakeIptables()
    fake.restore(OTHERS)
    before = {table: list(fake.save(table)) for table in ("nat", "filter", "mangle")}
    fake.restore(RULES)
    where = LegacyChains(V4, fake)
    found = where.find()
    assert found is not None
    where.remove(found)
    assert where.find() is None
    assert {table: list(fake.save(table)) for table in before} == before
