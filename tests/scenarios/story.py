"""Scenario files: Kubernetes manifests, what happens to them step by step, and the table that must follow each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from proxyd.desired.settings import NodePolicy
from proxyd.kube.decode import Decoded, decode_endpoint_slice, decode_node, decode_service
from proxyd.model import Family
from tests.scenarios.table import Line, read

FOLDER = Path(__file__).parent
NODE = "node1"
CLUSTER_CIDRS = {Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:10:244::/48"}
DECODERS: dict[str, Callable[[bytes], Decoded[Any]]] = {
    "Service": decode_service,
    "EndpointSlice": decode_endpoint_slice,
    "Node": decode_node,
}

Key = tuple[str, str, str]  # kind, namespace, name
Objects = dict[Key, Decoded[Any]]


class Operation(NamedTuple):
    """One object as it is after a change, None where it was deleted."""

    key: Key
    decoded: Decoded[Any] | None


class Step(NamedTuple):
    """What happens at once, all objects that there are then, and what must follow."""

    number: int
    name: str
    operations: tuple[Operation, ...]
    objects: Objects
    table: tuple[Line, ...]
    findings: frozenset[str]


class Story(NamedTuple):
    """A scenario file."""

    name: str
    policy: NodePolicy
    first: Objects
    steps: tuple[Step, ...]


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "node")


@cache
def load(name: str) -> Story:
    """Reads a scenario file."""
    document = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    node = yaml.safe_load((FOLDER / "node.yaml").read_text(encoding="utf-8"))
    manifests = {_key(node): node} if document.get("node", True) else {}
    policy = {"cluster_cidrs": CLUSTER_CIDRS, **document.get("policy", {})}
    first = {key: _decode(manifest) for key, manifest in manifests.items()}
    return Story(name, NodePolicy(NODE, **policy), first, tuple(_steps(document["steps"], manifests)))


def _steps(described: Iterable[dict[str, Any]], manifests: dict[Key, Any]) -> Iterator[Step]:
    for number, step in enumerate(described):
        unknown = step.keys() - {"step", "apply", "change", "delete", "table", "findings"}
        assert not unknown, f"what is {unknown}?"
        after: dict[Key, Any] = {_key(each): each for each in step.get("apply", ())}
        for patch in step.get("change", ()):
            after[_key(patch)] = _merged(manifests[_key(patch)], patch)
        for kind, _, place in (each.partition(" ") for each in step.get("delete", ())):
            namespace, _, name = place.rpartition("/")
            assert (kind, namespace, name) in manifests, f"{place} is not there"
            after[kind, namespace, name] = None
        manifests.update(after)
        for key in [key for key, manifest in manifests.items() if manifest is None]:
            del manifests[key]
        operations = tuple(Operation(key, _decode(each) if each else None) for key, each in after.items())
        objects = {key: _decode(manifest) for key, manifest in manifests.items()}
        findings = frozenset(step.get("findings", ()))
        yield Step(number, step["step"], operations, objects, tuple(read(step["table"])), findings)


def _key(manifest: dict[str, Any]) -> Key:
    meta = manifest["metadata"]
    return manifest["kind"], meta.get("namespace", ""), meta["name"]


def _decode(manifest: dict[str, Any]) -> Decoded[Any]:
    return DECODERS[manifest["kind"]](msgspec.json.encode(manifest))


def _merged(before: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    out = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = _merged(out.get(name), value)
    return out
