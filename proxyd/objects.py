"""Objects for a command that needs them once: from a folder of manifests, or from the API server."""

from __future__ import annotations

import time

from proxyd.config import Config
from proxyd.explain.answering import NoAnswerError
from proxyd.kube.store import Store
from proxyd.serve.objects import Running

# Seconds in which the API server has to have listed everything.
PATIENCE = 30.0


def of_running(running: Running) -> Store:
    """What a running proxyd has, with what it could not read."""
    store = Store()
    store.load(running.services, running.slices, running.node)
    for each in running.unreadable:
        namespace, _, name = each.object.rpartition("/")
        store.unreadable[each.kind, (namespace, name)] = each
    return store


def manifests(folder: str, node_name: str) -> Store:
    """All objects of a folder. Raises ``UserError`` where it cannot be read at all."""
    # Needs watchfiles, and the rest does not.
    from proxyd.kube.manifests import ManifestSource  # noqa: PLC0415

    store = Store()
    ManifestSource(folder, store, node_name).read()
    return store


def listed(config: Config, node_name: str) -> Store:
    """All objects of the API server. Raises ``UserError`` where access is not configured right, ``NoAnswerError``."""
    from proxyd.kube.client import connect  # noqa: PLC0415
    from proxyd.kube.reflector import Reflector  # noqa: PLC0415
    from proxyd.kube.resources import ENDPOINT_SLICES, SERVICES, own_node  # noqa: PLC0415

    store, client = Store(), connect(config.kubeconfig, config.master)
    reflectors = (
        Reflector(client, own_node(node_name), store.nodes),
        Reflector(client, SERVICES, store.services),
        Reflector(client, ENDPOINT_SLICES, store.slices),
    )
    for each in reflectors:
        each.start()
    deadline = time.monotonic() + PATIENCE
    with store.lock:
        complete = store.lock.wait_for(lambda: store.complete and store.nodes.synced, deadline - time.monotonic())
    for each in reflectors:
        each.stop()
    if not complete:
        problems = dict.fromkeys(each.state.last_error for each in reflectors if each.state.last_error)
        raise NoAnswerError(f"the API server has not listed all objects in {PATIENCE:g} s: {'; '.join(problems)}")
    return store


def overlaid(store: Store, more: Store) -> None:
    """Puts objects on top of others, as if they were applied: what is there under the same name is replaced."""
    store.services.overlay(more.services)
    store.slices.overlay(more.slices)
    store.nodes.overlay(more.nodes)
    with store.lock:
        store.unreadable.update(more.unreadable)
