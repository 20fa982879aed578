"""Where the status page is: a flag of proxyd's own, which counts beside a file too."""

from __future__ import annotations

import pytest

from proxyd.config import Document, Parsed, as_file, resolve
from tests.config.support import by_file, by_flags, flags, refused


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("127.0.0.2", ("127.0.0.2", 10253)),
        ("[::1]:2", ("::1", 2)),
        ("", None),
        (" ", None),
    ],
)
def test_the_flag_says_where_it_is(given: str, address: tuple[str, int] | None) -> None:
    config = by_flags(f"--page-bind-address={given}")
    assert (config.page_address, config.warnings) == (address, ())


def test_it_is_on_loopback_by_default_in_the_family_of_the_node() -> None:
    assert by_flags().page_address == ("127.0.0.1", 10253)
    assert by_flags("--bind-address=2001:db8::1").page_address == ("::1", 10253)


def test_the_flag_counts_beside_a_file() -> None:
    assert by_file("", "--page-bind-address=127.0.0.1:3").page_address == ("127.0.0.1", 3)
    assert by_file("", "--page-bind-address=").page_address is None
    assert by_file("bindAddress: '::'").page_address == ("::1", 10253)


@pytest.mark.parametrize(("given", "shown"), [("0.0.0.0", "0.0.0.0:10253"), ("[::]:7", "[::]:7")])
def test_beyond_loopback_a_warning_says_who_can_read_it(given: str, shown: str) -> None:
    config = by_flags(f"--page-bind-address={given}")
    assert config.warnings == (
        f"--page-bind-address: whoever reaches {shown} can read the status page: it asks for no password",
    )


@pytest.mark.parametrize("given", ["localhost:1", "127.0.0.1:0", "127.0.0.1:65536", "x", "::1:2:"])
def test_what_is_no_address_is_refused_with_everything_else(given: str) -> None:
    problems = refused(Parsed(Document()), f"--page-bind-address={given}", "--oom-score-adj=x")
    assert len(problems) == 2
    assert f'--page-bind-address: must be IP:port with a port of 1..65535, or an IP, got "{given}"' in problems


@pytest.mark.parametrize("given", ["", "127.0.0.1:3"])
def test_that_a_file_has_no_field_for_it_is_told_where_it_is_not_the_default(given: str) -> None:
    def told(*words: str) -> list[str]:
        return [each for each in as_file(resolve(Parsed(Document()), flags(*words)))[1] if "page" in each]

    assert told(f"--page-bind-address={given}") == [
        "--page-bind-address: has no field, give it beside --config where it counts"
    ]
    assert told() == told("--page-bind-address=127.0.0.1:10253") == told("--bind-address=::1") == []
