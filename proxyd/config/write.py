"""A Document in the form of the file: for --write-config-to and /configz."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec

from proxyd.config.schema import API_VERSION, KIND, Document, Seconds, SecondsOrNanoseconds, leaves
from proxyd.config.syntax import write_yaml
from proxyd.config.validate import (
    DEFAULT_LOCAL_MODE,
    HEALTHZ_PORT,
    METRICS_PORT,
    active_mode,
    default_hosts,
    node_port_defaults,
)
from proxyd.config.values import show_duration


def defaulted(document: Document) -> Document:
    """Gives a document in which everything is said that otherwise follows from something else."""
    any_host, loopback = default_hosts(document)
    healthz, metrics = document.healthz_bind_address, document.metrics_bind_address
    return msgspec.structs.replace(
        document,
        mode=document.mode or active_mode(document),
        detect_local_mode=document.detect_local_mode or DEFAULT_LOCAL_MODE,
        node_port_addresses=document.node_port_addresses or node_port_defaults(document),
        healthz_bind_address=f"{any_host}:{HEALTHZ_PORT}" if healthz is None else healthz,
        metrics_bind_address=f"{loopback}:{METRICS_PORT}" if metrics is None else metrics,
    )


def as_mapping(document: Document) -> dict[str, Any]:
    """Gives the KubeProxyConfiguration (v1alpha1) that says what a document says, as plain values."""
    return {"apiVersion": API_VERSION, "kind": KIND, **_block(document)}


def as_yaml(document: Document) -> str:
    """Gives the text of a configuration file that says what a document says."""
    return write_yaml(as_mapping(document))


def unsayable(document: Document, read_back: Document) -> Iterator[str]:
    """Gives the fields whose value a file cannot say: flags can switch a server off, and in a file "" is the default."""
    back = dict(leaves(read_back))
    for path, value in leaves(document):
        if back[path] != value:
            yield path


def _block(block: msgspec.Struct) -> dict[str, Any]:
    return {
        field.encode_name: _plain(field.type, getattr(block, field.name)) for field in msgspec.structs.fields(block)
    }


def _plain(kind: Any, value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _block(value)
    if isinstance(value, tuple):
        return [_plain(get_args(kind)[0], item) for item in value]
    if get_origin(kind) is Annotated and kind in (Seconds, SecondsOrNanoseconds):
        return show_duration(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
