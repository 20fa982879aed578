"""What should be read of a world's rules, from the forwarding that they are made of."""

from __future__ import annotations

from proxyd.desired.forwarding import Frontend, PortForwarding, Route
from proxyd.desired.services import Desired
from proxyd.plan.served import Effect, Served, Serving, backends, client_ranges
from tests.ipt_world import IptWorld
from tests.world import AnyWorld

_EFFECTS = {
    Route.CLUSTER: Effect.FORWARDED,
    Route.LOCAL: Effect.FORWARDED,
    Route.EXTERNAL: Effect.EXTERNAL,
    Route.EXTERNAL_LOCAL: Effect.EXTERNAL_LOCAL,
    Route.EXTERNAL_NO_LOCAL: Effect.EXTERNAL_NO_LOCAL,
    Route.REJECT: Effect.REJECTED,
    Route.DROP: Effect.DROPPED,
}
REFUSED = (Effect.REJECTED, Effect.DROPPED)


def forwarded(world: AnyWorld) -> Serving:
    """What is to be done with each frontend."""
    desired = Desired(world.family, world.store.service)
    keys = desired.concerned(world.store.keys())
    made = [desired.forwarding(key, world.settings)[0] for key in keys]
    return {
        frontend.key: _served(port, frontend, ipt=isinstance(world, IptWorld))
        for each in made
        if each is not None
        for port in each.ports
        for frontend in port.frontends
    }


def _served(port: PortForwarding, frontend: Frontend, *, ipt: bool) -> Served:
    effect = _EFFECTS[frontend.route]
    # In iptables mode an address that leads nowhere has no list of clients.
    sources = None if frontend.sources is None or (ipt and effect in REFUSED) else client_ranges(frontend.sources)
    if effect in REFUSED:
        return Served(port.name, effect, sources=sources)
    wide = port.local if frontend.route is Route.LOCAL else port.cluster
    near = port.local if frontend.route is Route.EXTERNAL_LOCAL else ()
    return Served(port.name, effect, backends(wide), backends(near), sources, port.affinity_seconds)
