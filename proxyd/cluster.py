"""What the daemon talks to: watches and Events of an API server, or a folder of manifests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from proxyd.config import Config
from proxyd.kube.store import Store
from proxyd.serve.collectors import WatchState
from proxyd.serve.metrics import Metrics

if TYPE_CHECKING:
    from proxyd.kube.recorder import Recorder


class Source(Protocol):
    """What fills the store: reflectors of an API server, or a folder of manifests."""

    def start(self) -> None:
        """Begins to fill the store, in threads of its own."""

    def stop(self, timeout: float) -> object:
        """Ends, and waits ``timeout`` seconds for it at most."""


class Cluster(NamedTuple):
    """What fills the store, which of it are watches, and who writes Events (None where there is no API server)."""

    sources: list[Source]
    watches: Mapping[str, Watched]
    recorder: Recorder | None


def cluster(
    config: Config, store: Store, node_name: str, metrics: Metrics, stopping: Callable[[], bool] = lambda: False
) -> Cluster:
    """All that talks to an API server, or reads manifests. Raises the errors of kube.client and kube.manifests.

    ``stopping`` tells that the process is to end, also while ``start`` of a source runs.
    """
    if config.manifests is not None:
        from proxyd.kube.manifests import ManifestSource  # noqa: PLC0415  (needs watchfiles, the API source does not)

        return Cluster([ManifestSource(config.manifests, store, node_name, stopping)], {}, None)
    # The kubernetes package costs more memory than all objects; manifests do without.
    from proxyd.kube.client import connect  # noqa: PLC0415
    from proxyd.kube.recorder import Recorder, uids  # noqa: PLC0415
    from proxyd.kube.reflector import Reflector  # noqa: PLC0415
    from proxyd.kube.resources import ENDPOINT_SLICES, SERVICES, own_node  # noqa: PLC0415

    client = connect(config.kubeconfig, config.master, observer=metrics.api)
    nodes = Reflector(client, own_node(node_name), store.nodes)
    services = Reflector(client, SERVICES, store.services)
    slices = Reflector(client, ENDPOINT_SLICES, store.slices)
    watches: dict[str, Watched] = {"nodes": nodes, "services": services, "endpointslices": slices}
    return Cluster([nodes, services, slices], watches, Recorder(client, node_name, uids(store), metrics.api))


class Watched(Protocol):
    """Something with a watch that metrics tell about."""

    @property
    def state(self) -> WatchState:
        """How the watch is right now."""
