"""The Leases of a release through the API: one look at all, and one change at a time.

Each change replaces the object that was read, with its resourceVersion and its uid. Without the uid an update
of a Lease that was deleted meanwhile would create the Lease anew (engine-facts.md#lease-update-creates).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from installer.config_text import value_at
from installer.errors import InstallerError
from installer.fleet import leases
from installer.fleet.run_again import Missing, Unanswered
from installer.fleet.turn_rules import Node, Settings, Turn, drop_failure, name_settings
from installer.host.kubernetes import (
    Api,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    Reply,
    UnauthorizedError,
)

TRIES: Final = 5  # at one change of the settings, which many nodes may change
TRIES_OF_A_STOP: Final = 2


class NoSettingsError(InstallerError):
    """The API has no Lease with the settings of a release."""

    usual = "kubernetes-api"


class Seen(Struct, frozen=True):
    """All Leases of a release from a single answer, and the API server's time."""

    turns: tuple[Turn, ...]
    settings: Settings
    objects: Mapping[str, dict[str, Any]]  # by name: an update changes the object just read
    server_s: float


def look(api: Api, release: str) -> Seen:
    """Read all Leases of a release.

    Raises:
        NoSettingsError: the Lease with the settings is missing.
        InstallerError: the API gives none, or a setting makes no sense.
    """
    reply = api.ask("GET", leases.path_of_release(api.namespace, release))
    items = reply.content.get("items")
    objects = {}
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, Mapping):
            continue
        # The objects of a list do not say their own kind.
        named = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **item}
        objects[str(value_at(item, ("metadata", "name")))] = named
    lease = name_settings(release)
    if lease not in objects:
        remedy = "restore it (the chart creates it)"
        raise NoSettingsError(f"take a turn (there is no Lease {lease})", remedy=remedy)
    settings = leases.read_settings(objects[lease], release)
    return Seen(leases.read_turns(objects.values(), release), settings, objects, reply.server_s)


def take(api: Api, seen: Seen, names: Iterable[str], node: Node, lasts_s: float) -> str:
    """Take the first free turn; return the turn's name, "" without a free turn.

    An account may create any Lease and change only those that its Role names: a turn that could not be given
    back is not taken.
    """
    for name in names:
        lease = seen.objects.get(name)
        try:
            if lease is None:
                _refuse_unreturnable(api, name)
                made = leases.taken(
                    leases.new_turn(name, seen.settings.release), node.name, seen.server_s, lasts_s
                )
                api.ask("POST", leases.path_of(api.namespace), made)
            else:
                _replace(api, leases.taken(lease, node.name, seen.server_s, lasts_s))
        except (ConflictError, NotFoundError):
            continue
        return name
    return ""


def _refuse_unreturnable(api: Api, name: str) -> None:
    """Raise ForbiddenError for the Lease of a turn that this account may not change."""
    with suppress(NotFoundError):
        api.ask("GET", leases.path_of(api.namespace, name))


def give_back(api: Api, name: str, node: Node) -> bool:
    """Return a turn; tell whether this node was the holder."""
    return _change_own(api, name, node, leases.returned)


def write_error(api: Api, name: str, node: Node, error: str) -> bool:
    """Write this node's failure into the turn; tell whether this node is still the holder."""
    return _change_own(api, name, node, lambda lease: leases.failed(lease, error))


def read_settings(api: Api, release: str) -> Settings:
    """Return the settings of a release, without the turns."""
    lease = api.ask("GET", leases.path_of(api.namespace, name_settings(release))).content
    return leases.read_settings(lease, release)


def change_settings(api: Api, release: str, change: Callable[[Settings], Settings]) -> None:
    """Change the settings; after a lost race the change is made again from the new state."""
    path = leases.path_of(api.namespace, name_settings(release))
    for left in reversed(range(TRIES)):
        lease = api.ask("GET", path).content
        settings = leases.read_settings(lease, release)
        changed = change(settings)
        if changed == settings:
            return
        try:
            _replace(api, leases.noted(lease, changed))
        except ConflictError:
            if not left:
                raise
        else:
            return


def create_settings(api: Api, settings: Settings) -> None:
    """Create the Lease of the settings; keep a Lease just created by another node."""
    with suppress(ConflictError):
        api.ask("POST", leases.path_of(api.namespace), leases.new_settings(settings))


def is_gone(api: Api, name: str) -> bool:
    """Tell whether the API does not know a node."""
    try:
        read_node(api, name)
    except NotFoundError:
        return True
    return False


def free_gone(api: Api, seen: Seen, name: str) -> None:
    """Return the turns of a removed node and drop the node's failure; a changed turn stays.

    A turn above the limits of the release may not be written: it counts no more, but it stays.
    """
    for turn in seen.turns:
        if turn.holder == name:
            with suppress(ConflictError, NotFoundError, ForbiddenError):
                _replace(api, leases.returned(seen.objects[turn.name]))
    if any(failure.node == name for failure in seen.settings.failures):
        change_settings(api, seen.settings.release, lambda settings: drop_failure(settings, name))


def read_node(api: Api, name: str) -> dict[str, Any]:
    """Return a Node."""
    return api.ask("GET", path_of_node(name)).content


def read_or_missing(api: Api, path: str, *, until_s: float) -> dict[str, Any] | Missing | Unanswered:
    """Return an object for ``will_run_again``.

    The API is asked twice: at once, and from the middle of the remaining time on. An API server that is being
    replaced refuses connections for some time, and one that has just started refuses every account, until it
    has read the rights (engine-facts.md#api-start): only two refusals are an answer. A connected server may
    use all of the time: a server that is only slow would answer no second request sooner.

    Args:
        api: the API.
        path: the object's path.
        until_s: the moment, by ``time.monotonic``, from which on no answer is awaited.
    """
    began_s = time.monotonic()
    middle_s = began_s + (until_s - began_s) / TRIES_OF_A_STOP
    reason = "there was no time to ask"
    refusals = 0
    for connected_by_s in (middle_s, until_s):
        now_s = time.monotonic()
        if now_s >= until_s:
            break
        patient = replace(api, answer_s=until_s - now_s, connect_s=connected_by_s - now_s)
        try:
            return patient.ask("GET", path).content
        except NotFoundError as error:
            return Missing(error.problem)
        except (UnauthorizedError, ForbiddenError) as error:
            reason = error.problem
            refusals += 1
        except InstallerError as error:
            reason = error.problem
        if connected_by_s < until_s:
            time.sleep(max(0.0, connected_by_s - time.monotonic()))
    if refusals == TRIES_OF_A_STOP:
        return Missing(reason)
    return Unanswered(reason)


def path_of_node(name: str) -> str:
    """Return the API's path of a Node."""
    return f"/api/v1/nodes/{quote(name, safe='')}"


def path_of_daemonset(namespace: str, name: str) -> str:
    """Return the API's path of a DaemonSet."""
    return f"/apis/apps/v1/namespaces/{quote(namespace, safe='')}/daemonsets/{quote(name, safe='')}"


def _change_own(
    api: Api, name: str, node: Node, change: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> bool:
    """Change a turn held by this node; tell whether the node held the turn.

    A lost answer to an update is settled by the next look: the turn is either this node's or not.
    """
    for left in reversed(range(TRIES)):
        try:
            lease = api.ask("GET", leases.path_of(api.namespace, name)).content
            if leases.read_turn(lease).holder != node.name:
                return False
            _replace(api, change(lease))
        except NotFoundError:
            return False
        except ConflictError:
            if not left:
                raise
        else:
            return True
    return False


def _replace(api: Api, lease: Mapping[str, Any]) -> Reply:
    """Replace the Lease just read, and no other: the metadata carry resourceVersion and uid."""
    metadata = lease["metadata"]
    if not metadata.get("uid") or not metadata.get("resourceVersion"):
        raise ValueError("a Lease that is replaced was read before")
    return api.ask("PUT", leases.path_of(api.namespace, str(metadata["name"])), lease)
