"""Totals of what is served: they follow every change, and end where counting all would."""

from hypothesis import given
from hypothesis import settings as patiently
from hypothesis import strategies as st

from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Forwarding, PortForwarding
from proxyd.model import Family, ServiceKey
from proxyd.sync.tally import Counts, Tally, count
from tests.build import key

BACKENDS = tuple(Backend(f"10.244.1.{number}", 80) for number in range(1, 5))


def served(*ports: PortForwarding, name: ServiceKey | None = None) -> Forwarding:
    return Forwarding(name or key(), Family.IPV4, "10.96.0.1", ports)


def of(cluster: int = 0, local: int = 0, internal: bool = False, external: bool = False) -> PortForwarding:
    return PortForwarding(
        "default/web",
        "tcp",
        (),
        BACKENDS[:cluster],
        BACKENDS[:local],
        no_local_internal=internal,
        no_local_external=external,
    )


def test_endpoints_of_the_cluster_list_count_and_those_of_the_local_list_if_there_is_no_other() -> None:
    assert count(served(of(cluster=3, local=1), of(local=2), of())).endpoints == 5


def test_service_ports_without_local_endpoints_are_counted_by_policy() -> None:
    counts = count(served(of(1, internal=True), of(1, external=True), of(1, internal=True, external=True)))
    assert (counts.no_local_internal, counts.no_local_external) == (2, 2)


def test_a_service_without_ports_or_endpoints_is_a_service() -> None:
    tally = Tally()
    tally.note(key("x"), served())
    tally.note(key("y"), served(of()))
    assert (tally.services, tally.total) == (2, Counts())


def test_a_service_that_changes_is_counted_once() -> None:
    tally = Tally()
    tally.note(key(), served(of(3, external=True)))
    tally.note(key(), served(of(1)))
    assert (tally.services, tally.total) == (1, Counts(1))


def test_a_service_that_goes_takes_its_counts_along() -> None:
    tally = Tally()
    tally.note(key(), served(of(3, external=True)))
    tally.note(key(), None)
    tally.note(key("unknown"), None)
    assert (tally.services, tally.total) == (0, Counts())


PORTS = st.lists(st.builds(of, st.integers(0, 4), st.integers(0, 4), st.booleans(), st.booleans()), max_size=3)
CHANGES = st.lists(
    st.tuples(st.sampled_from("xyz").map(key), st.none() | PORTS.map(lambda ports: served(*ports))), max_size=10
)


@patiently(deadline=None)
@given(CHANGES)
def test_totals_are_those_of_what_is_there_in_the_end(changes: list[tuple[ServiceKey, Forwarding | None]]) -> None:
    tally = Tally()
    for name, forwarding in changes:
        tally.note(name, forwarding)
    final = [count(forwarding) for forwarding in dict(changes).values() if forwarding is not None]
    assert tally.services == len(final)
    assert tally.total == Counts(*(sum(column) for column in zip(*final, strict=True))) if final else Counts()
