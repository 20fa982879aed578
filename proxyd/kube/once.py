"""The objects of an API server as they are at one moment, for a command that answers and ends: lists, no watches."""

from __future__ import annotations

from typing import Any

import msgspec

from proxyd.errors import CannotWorkHereError
from proxyd.kube.client import ApiError, Client, TransportError
from proxyd.kube.decode import Decoded, ObjectKey
from proxyd.kube.resources import ENDPOINT_SLICES, SERVICES, Resource, own_node
from proxyd.kube.store import Store
from proxyd.kube.wire import Page, WatchError, list_page

PAGE = 500
READ_SECONDS = 30.0
_GROUPS = {"endpointslices": "discovery.k8s.io"}


class NotListedError(CannotWorkHereError):
    """The API server does not say what is asked for; the text is one line for the user."""


class _List:
    """One complete list. ``nameless`` counts objects of which not even the name can be read."""

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, Decoded[Any]] = {}
        self.nameless = 0

    def add(self, resource: Resource[Any], raw: msgspec.Raw) -> None:
        try:
            decoded = resource.decode(raw)
        except (msgspec.MsgspecError, ValueError, TypeError):
            self.nameless += 1
        else:
            self.objects[decoded.key] = decoded


def list_once(client: Client, store: Store, node_name: str) -> tuple[str, ...]:
    """Lists Services, EndpointSlices and the own Node into a store. Raises ``NotListedError``; nothing is tried again.

    Gives notes for the user: one for each kind of which objects are so wrong that not even their names can be read, which
    are left out, as the daemon does.
    """
    notes: list[str] = []
    for resource, intake in (
        (own_node(node_name), store.nodes),
        (SERVICES, store.services),
        (ENDPOINT_SLICES, store.slices),
    ):
        listed = _listed(client, resource)
        intake.replace(listed.objects.values())
        if listed.nameless:
            notes.append(f"{resource.name} left out, for they have no readable name: {listed.nameless}")
    return tuple(notes)


def _listed(client: Client, resource: Resource[Any]) -> _List:
    try:
        return _pages(client, resource)
    except ApiError as error:
        raise NotListedError(
            f"cannot list {resource.name} at {client.host}: {error}{_hint(error, resource)}"
        ) from error
    except (TransportError, WatchError) as error:
        raise NotListedError(f"cannot list {resource.name} at {client.host}: {error}") from error


def _hint(error: ApiError, resource: Resource[Any]) -> str:
    match error.status:
        case 401:
            return " (its credentials are not, or no longer, believed)"
        case 403:
            group = _GROUPS.get(resource.name, "")
            named = f'API group "{group}"' if group else "the core API group"
            return f" (a role must allow the verb list on {resource.name} of {named})"
    return ""


def _pages(client: Client, resource: Resource[Any]) -> _List:
    """A complete list; where a page expires (410) in between, one list without pages."""
    found, limit, token = _List(), {"limit": str(PAGE)}, ""
    while True:
        try:
            page = _page(client, resource, {**limit, **({"continue": token} if token else {})})
        except ApiError as error:
            if error.status != 410 or not token:
                raise
            found, limit, token = _List(), {}, ""
            continue
        for raw in page.items or ():
            found.add(resource, raw)
        token = page.metadata.continue_ or ""
        if not token:
            return found


def _page(client: Client, resource: Resource[Any], params: dict[str, str]) -> Page:
    response = client.get(resource.path, {**resource.selection, **params}, read_timeout=READ_SECONDS)
    try:
        return list_page(response.read())
    finally:
        response.close()
