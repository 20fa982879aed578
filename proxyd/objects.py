"""Objects for a command that needs them once: from manifests, the API server or the running proxyd."""

from __future__ import annotations

import os
from typing import NamedTuple

from proxyd.config import Config
from proxyd.kube.store import Store
from proxyd.serve.objects import Running


class Objects(NamedTuple):
    """All of them, and what is to be said about how they were read."""

    store: Store
    notes: tuple[str, ...] = ()


def of_running(running: Running) -> Store:
    """What a running proxyd has, with what it could not read."""
    store = Store()
    store.load(running.services, running.slices, running.node)
    for each in running.unreadable:
        namespace, _, name = each.object.rpartition("/")
        store.unreadable[each.kind, (namespace, name)] = each
    return store


def manifests(path: str, node_name: str) -> Store:
    """All objects of a folder, or of one file. Raises ``UserError`` where it cannot be read at all."""
    # Needs watchfiles, and the rest does not.
    from proxyd.kube.manifests import ManifestSource, read_file  # noqa: PLC0415

    store = Store()
    # Not Path.is_file(): that raises where a name is too long, or its folder may not be searched.
    if os.path.isfile(path):
        read_file(path, store, node_name)
    else:
        ManifestSource(path, store, node_name).read()
    return store


def given(config: Config, node_name: str) -> Objects:
    """All objects of the source that the configuration names: manifests, else the API server.

    Raises ``UserError`` where access is not configured right, ``NotListedError``.
    """
    if config.manifests is not None:
        return Objects(manifests(config.manifests, node_name))
    # The kubernetes package is costly to import.
    from proxyd.kube.client import connect  # noqa: PLC0415
    from proxyd.kube.once import list_once  # noqa: PLC0415

    store = Store()
    return Objects(store, list_once(connect(config.kubeconfig, config.master), store, node_name))


def overlaid(store: Store, more: Store) -> None:
    """Puts objects on top of others, as if they were applied: what is there under the same name is replaced."""
    store.services.overlay(more.services)
    store.slices.overlay(more.slices)
    store.nodes.overlay(more.nodes)
    with store.lock:
        store.unreadable.update(more.unreadable)
