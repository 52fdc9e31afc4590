"""Turns and settings as Leases of coordination.k8s.io: their JSON, their names, and what an update changes.

An update keeps all of an object that is not named here: labels, annotations and owners that others have set.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from msgspec import MsgspecError, Struct, convert, json

from installer.config_text import value_at
from installer.errors import InstallerError
from installer.fleet.turn_rules import Failure, Proven, Settings, Turn, name_settings, split_selector

PREFIX: Final = "node-toolkit-installer/"
RELEASE: Final = f"{PREFIX}release"  # the label of all Leases of a release
AT_MOST: Final = f"{PREFIX}at-most"
STOP_AFTER: Final = f"{PREFIX}stop-after"
CANARY: Final = f"{PREFIX}canary"
PAUSED: Final = f"{PREFIX}paused"
PROVEN: Final = f"{PREFIX}proven"
FAILURES: Final = f"{PREFIX}failures"
ERROR: Final = f"{PREFIX}error"
LONGEST: Final = 300  # characters of an error that are written, and that are shown
MOST: Final = 1000  # a limit that nobody needs: each turn is an object in each answer
DIGITS: Final = 9  # of a number that is read at all
LONGEST_TURN_S: Final = 24 * 3600  # a holder that wants more time is late after a day all the same
MOST_TRANSITIONS: Final = 2**31 - 1  # of a Lease, by its schema
# A node has the name of a DNS subdomain (RFC 1123); another holder is no node.
LONGEST_NAME: Final = 253
NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NOT_PAUSED: Final = {"", "false", "no", "0"}  # every other text is meant to pause


def path_of(namespace: str, name: str = "") -> str:
    """Return the API's path of a Lease, or of all Leases of a namespace."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
    return f"{path}/{quote(name, safe='')}" if name else path


def path_of_release(namespace: str, release: str) -> str:
    """Return the path of a release's Leases. Without a resourceVersion the answer is the newest state."""
    return f"{path_of(namespace)}?labelSelector={quote(f'{RELEASE}={release}', safe='')}"


def read_turns(objects: Iterable[Any], release: str) -> tuple[Turn, ...]:
    """Read the turns of a release; other Leases with the release's label are left out."""
    turns = (read_turn(each) for each in objects if _is_turn(each, release))
    return tuple(sorted(turns, key=lambda turn: turn.name))


def read_turn(lease: Any) -> Turn:
    """Read a turn. A value written by no node of ours counts as absent: a turn without a time is late."""
    duration = value_at(lease, ("spec", "leaseDurationSeconds"))
    holder = _text(value_at(lease, ("spec", "holderIdentity")))
    return Turn(
        name=_text(value_at(lease, ("metadata", "name"))),
        holder=holder if _is_node_name(holder) else "",
        taken_s=_seconds(value_at(lease, ("spec", "acquireTime"))),
        lasts_s=float(min(duration, LONGEST_TURN_S)) if isinstance(duration, int) else 0.0,
        error=_shorten(_text(value_at(lease, ("metadata", "annotations", ERROR)))),
    )


def read_settings(lease: Any, release: str) -> Settings:
    """Return the settings of a release; InstallerError where a value makes no sense."""
    given = value_at(lease, ("metadata", "annotations"))
    annotations = given if isinstance(given, Mapping) else {}
    canary = _text(annotations.get(CANARY))
    if len(canary) > LONGEST or not canary.isprintable():
        raise _refuse(release, CANARY, f"no label selector of up to {LONGEST} characters")
    if canary:
        try:
            tuple(split_selector(canary))
        except ValueError as error:
            raise _refuse(release, CANARY, str(error)) from error
    failures = []
    for failure in _decode(annotations, FAILURES, release, Failure):
        if _is_node_name(failure.node):
            failures.append(Failure(failure.node, _shorten(failure.error)))
    return Settings(
        release=release,
        at_most=_number(annotations, AT_MOST, release),
        stop_after=_number(annotations, STOP_AFTER, release),
        canary=canary,
        paused=_text(annotations.get(PAUSED)).strip().lower() not in NOT_PAUSED,
        proven=_decode(annotations, PROVEN, release, Proven),
        failures=tuple(failures),
    )


def new_turn(name: str, release: str) -> dict[str, Any]:
    """Make the missing Lease of a turn."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": {RELEASE: release}},
        "spec": {},
    }


def new_settings(settings: Settings) -> dict[str, Any]:
    """Make the missing Lease of settings."""
    annotations = {AT_MOST: str(settings.at_most), STOP_AFTER: str(settings.stop_after)}
    if settings.canary:
        annotations[CANARY] = settings.canary
    return _annotated(new_turn(settings.lease, settings.release), annotations)


def taken(lease: Mapping[str, Any], holder: str, now_s: float, lasts_s: float) -> dict[str, Any]:
    """Return the Lease as held from now on."""
    before = value_at(lease, ("spec", "leaseTransitions"))
    transitions = before if isinstance(before, int) else 0
    moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {
        "holderIdentity": holder,
        "acquireTime": moment,
        "renewTime": moment,
        "leaseDurationSeconds": max(1, int(lasts_s)),
        "leaseTransitions": min(transitions + 1, MOST_TRANSITIONS),
    }
    return _annotated({**lease, "spec": spec}, {ERROR: None})


def returned(lease: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Lease as held by nobody."""
    spec = {}
    transitions = value_at(lease, ("spec", "leaseTransitions"))
    if isinstance(transitions, int):
        spec["leaseTransitions"] = transitions
    return _annotated({**lease, "spec": spec}, {ERROR: None})


def failed(lease: Mapping[str, Any], error: str) -> dict[str, Any]:
    """Return the Lease with the failure of the holder."""
    return _annotated(lease, {ERROR: _shorten(error)})


def noted(lease: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the Lease of the settings with the nodes' messages; the owner's annotations stay."""
    proven = json.encode(settings.proven).decode()
    failures = json.encode(settings.failures).decode()
    return _annotated(lease, {PROVEN: proven, FAILURES: failures})


def _annotated(lease: Mapping[str, Any], changes: Mapping[str, str | None]) -> dict[str, Any]:
    metadata = dict(lease["metadata"])
    annotations = dict(metadata.get("annotations") or {})
    for key, text in changes.items():
        if text is None:
            annotations.pop(key, None)
        else:
            annotations[key] = text
    metadata["annotations"] = annotations
    # The API server keeps these by itself, and a stale copy would only make the request larger.
    metadata.pop("managedFields", None)
    return {**lease, "metadata": metadata}


def _is_turn(lease: Any, release: str) -> bool:
    name = _text(value_at(lease, ("metadata", "name")))
    number = name.removeprefix(f"{release}-turn-")
    return number != name and number.isascii() and number.isdecimal()


def _is_node_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and NODE_NAME.fullmatch(text) is not None


def _number(annotations: Mapping[str, Any], key: str, release: str) -> int:
    text = _text(annotations.get(key, "1"))
    is_number = text.isascii() and text.isdecimal() and len(text) <= DIGITS
    if not is_number or not 1 <= int(text) <= MOST:
        raise _refuse(release, key, f"{text[:20]!r} is no number from 1 to {MOST}")
    return int(text)


def _decode(annotations: Mapping[str, Any], key: str, release: str, kind: type[Struct]) -> tuple[Any, ...]:
    text = _text(annotations.get(key)) or "[]"
    try:
        return convert(json.decode(text), tuple[kind, ...])  # type: ignore[valid-type]
    except (MsgspecError, RecursionError) as error:
        raise _refuse(release, key, str(error)) from error


def _refuse(release: str, key: str, reason: str) -> InstallerError:
    lease = name_settings(release)
    remedy = f"correct it with kubectl annotate --overwrite lease {lease}"
    return InstallerError(
        f"take a turn (annotation {key} of Lease {lease}: {reason})", remedy=remedy, code="kubernetes-api"
    )


def _seconds(moment: Any) -> float:
    try:
        return datetime.fromisoformat(_text(moment)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _shorten(text: str) -> str:
    """Fit a text of others for a single line of a log."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
