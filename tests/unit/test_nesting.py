"""JSON deeper than msgspec goes: what is left out, what is read all the same, and what is no JSON."""

from typing import Any

import msgspec
import pytest

from proxyd.kube.nesting import LEVELS, decode

ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
DEEP = b'{"a":[' * 5_000 + b"1" + b"]}" * 5_000


def levels_of(value: Any) -> int:
    """How many objects and arrays lie in each other, by the last key or item of each."""
    levels = 0
    while isinstance(value, dict | list):
        levels += 1
        value = [*(value.values() if isinstance(value, dict) else value)][-1]
    return levels


@pytest.mark.parametrize("levels", [1, LEVELS, LEVELS + 1, 500])
def test_what_msgspec_takes_is_whole(levels: int) -> None:
    assert levels_of(decode(ANYTHING, b"[" * levels + b"1" + b"]" * levels)) == levels


@pytest.mark.parametrize("data", [DEEP, b"[" * 100_000 + b"]" * 100_000])
def test_what_is_deeper_is_cut(data: bytes) -> None:
    assert levels_of(decode(ANYTHING, data)) == LEVELS


@pytest.mark.parametrize("text", ["]]]]", "}}{{[[", 'a "quoted" [', "\\", '\\"[', "", "é[\U0001f600"])
def test_brackets_in_strings_are_no_levels(text: str) -> None:
    said = msgspec.json.encode(text)
    whole = b'{"before":%b,"deep":{"in":%b,"x":%b,"behind":%b},%b:[{"y":%b},7]}' % (said, said, DEEP, said, said, DEEP)
    read = decode(ANYTHING, whole)
    assert (read["before"], read["deep"]["in"], read["deep"]["behind"]) == (text, text, text)
    assert read[text][1] == 7


@pytest.mark.parametrize(
    "data", [DEEP[:-1], DEEP[:5_000], DEEP + b"]", DEEP + b'"', DEEP[:-10_000] + b'"' + b'\\"' * 1_000_000, b"]" + DEEP]
)
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(ANYTHING, data)
