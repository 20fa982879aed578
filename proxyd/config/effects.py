"""Which fields do nothing in proxyd, so that whoever sets one is told. docs/configuration.md explains each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from proxyd.config.schema import Document, leaves
from proxyd.config.validate import active_mode

# Read and checked, and not acted on yet. Whoever makes one work takes it out here, and nowhere else.
NOT_YET: tuple[str, ...] = ()

# Fields, or whole blocks, that have no meaning here, and why.
WITHOUT_EFFECT: Mapping[str, str] = {
    "clientConnection.acceptContentTypes": "JSON is what is asked for",
    "clientConnection.contentType": "JSON is what is asked for",
    "clientConnection.qps": "a few long watches need no limit",
    "clientConnection.burst": "a few long watches need no limit",
    "configSyncPeriod": "nothing is ever resynced",
    "enableProfiling": "there is no profiler",
    "ipvs": "there is no ipvs mode",
    "logging.flushFrequency": "every line is written at once",
    "logging.options": "there is one stream, without a buffer",
    "logging.vmodule": "it names source files of kube-proxy",
    "portRange": "has none in kube-proxy either",
    "showHiddenMetricsForVersion": "no metric is hidden",
    "windowsRunAsService": "proxyd runs on Linux",
    "winkernel": "proxyd runs on Linux",
}


def without_effect(document: Document, origins: Mapping[str, str]) -> Iterator[str]:
    """Gives what was set to something else than the default and does nothing: field paths, or flags where they set it.

    ``origins`` tells which flag set a field path. A flag that sets several fields counts if none of them does anything.
    """
    changed = _changed(document)
    idle = [path for path in changed if _is_idle(path, document)]
    working = {origins.get(path) for path in changed if path not in idle}
    for name in dict.fromkeys(origins.get(path, path) for path in idle):
        if name not in working:
            yield name


def _changed(document: Document) -> list[str]:
    defaults = dict(leaves(Document()))
    return [path for path, value in leaves(document) if value != defaults[path]]


def _is_idle(path: str, document: Document) -> bool:
    block = path.partition(".")[0]
    of_other_mode = block in ("iptables", "nftables") and block != active_mode(document)
    return (
        of_other_mode or path in NOT_YET or any(path == each or path.startswith(f"{each}.") for each in WITHOUT_EFFECT)
    )
