"""Whether a pod of a DaemonSet will run on a node again after this pod has stopped. Decides only.

The rules are the DaemonSet controller's (engine-facts.md#daemonset-node): node name, node selector, required
node affinity, and taints that no toleration matches.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from installer.config_text import value_at

EXISTS: Final = "Exists"
NO_EXECUTE: Final = "NoExecute"
NO_SCHEDULE: Final = "NoSchedule"
# The tolerations added to each pod by the DaemonSet controller.
ADDED: Final = (
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/unschedulable", NO_SCHEDULE),
)
NO_NETWORK: Final = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE)  # added for the host's network
# Our manifests uninstall by a shell: "toolkit-installer uninstall && sleep infinity".
UNINSTALLS: Final = re.compile(r"(^|[\s/])toolkit-installer\s+uninstall\b")
UNINSTALL: Final = "uninstall"

Object: TypeAlias = Mapping[str, Any]


class Missing(Struct, frozen=True):
    """The API does not have the object, or refuses the object."""

    reason: str


class Unanswered(Struct, frozen=True):
    """The API gives no answer about the object, or is too busy for one."""

    reason: str


class Keep(Struct, frozen=True):
    """A pod will run here again: keep everything and restart nothing."""


class Undo(Struct, frozen=True):
    """No pod will run here again: undo."""

    reason: str


class Unknown(Struct, frozen=True):
    """Only time will tell whether a pod runs here again."""

    reason: str


def will_run_again(
    daemonset: Object | Missing | Unanswered, node: Object | Missing | Unanswered
) -> Keep | Undo | Unknown:
    """Decide whether a stopped pod leaves the install in place for the next pod of the DaemonSet."""
    if isinstance(daemonset, Unanswered):
        return Unknown(daemonset.reason)
    if isinstance(daemonset, Missing):
        return Undo(f"the DaemonSet is unknown ({daemonset.reason})")
    if value_at(daemonset, ("metadata", "deletionTimestamp")):
        return Undo("the DaemonSet is being deleted")
    if isinstance(node, Unanswered):
        return Unknown(node.reason)
    if isinstance(node, Missing):
        return Undo(f"the node is unknown ({node.reason})")
    if value_at(node, ("metadata", "deletionTimestamp")):
        return Undo("the node is being deleted")
    pod = value_at(daemonset, ("spec", "template", "spec"))
    if not isinstance(pod, Mapping):
        return Undo("the DaemonSet has no pod template")
    if uninstalls(pod):
        return Undo("the DaemonSet uninstalls")
    refusal = find_refusal(pod, node)
    if refusal:
        return Undo(refusal)
    return Keep()


def uninstalls(pod: Object) -> bool:
    """Tell whether a container of the pod template runs ``uninstall``."""
    for container in _list(pod.get("containers")):
        words = [*_list(_at(container, "command")), *_list(_at(container, "args"))]
        texts = [word for word in words if isinstance(word, str)]
        if UNINSTALL in texts or UNINSTALLS.search(" ".join(texts)):
            return True
    return False


def find_refusal(pod: Object, node: Object) -> str:
    """Explain why no pod of this template would run on the node; "" if a pod would run."""
    name = _text(value_at(node, ("metadata", "name")))
    labels = _map(value_at(node, ("metadata", "labels")))
    if pod.get("nodeName") not in (None, "", name):
        return "the DaemonSet names another node"
    for key, value in _map(pod.get("nodeSelector")).items():
        if labels.get(key) != value:
            return f"the node's label {key} does not match the DaemonSet's node selector"
    required = value_at(pod, ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"))
    if isinstance(required, Mapping):
        terms = _list(required.get("nodeSelectorTerms"))
        if not any(_term_matches(term, labels, name) for term in terms):
            return "the node does not match the DaemonSet's node affinity"
    for taint in _list(value_at(node, ("spec", "taints"))):
        effect = _at(taint, "effect")
        if effect in (NO_SCHEDULE, NO_EXECUTE) and not _is_tolerated(taint, pod):
            return f"the DaemonSet does not tolerate the node's taint {_text(_at(taint, 'key'))}:{effect}"
    return ""


def _term_matches(term: Any, labels: Mapping[str, Any], name: str) -> bool:
    """Tell whether all requirements of a term match. A term without requirements matches no node."""
    expressions = _list(_at(term, "matchExpressions"))
    fields = _list(_at(term, "matchFields"))
    if not expressions and not fields:
        return False
    for requirement in expressions:
        if not _requirement_matches(requirement, labels):
            return False
    # metadata.name is the only field there is.
    return all(_requirement_matches(requirement, {"metadata.name": name}) for requirement in fields)


def _requirement_matches(requirement: Any, labels: Mapping[str, Any]) -> bool:
    key = _text(_at(requirement, "key"))
    values = _list(_at(requirement, "values"))
    match _at(requirement, "operator"):
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt" as operator:
            return _compares(labels.get(key), operator, values)
        case _:
            return False


def _compares(label: Any, operator: str, values: list[Any]) -> bool:
    """Tell whether a label's number is greater or less than the single value."""
    try:
        (limit,) = (int(value) for value in values)
        number = int(label)
    except (TypeError, ValueError):
        return False
    if operator == "Gt":
        return number > limit
    return number < limit


def _is_tolerated(taint: Any, pod: Object) -> bool:
    return any(_tolerates(toleration, taint) for toleration in _tolerations(pod))


def _tolerations(pod: Object) -> Iterator[Any]:
    yield from _list(pod.get("tolerations"))
    added: Iterable[tuple[str, str]] = ADDED
    if pod.get("hostNetwork") is True:
        added = (*ADDED, NO_NETWORK)
    for key, effect in added:
        yield {"key": key, "operator": EXISTS, "effect": effect}


def _tolerates(toleration: Any, taint: Any) -> bool:
    """Tell whether a toleration matches a taint; an operator unknown here matches none."""
    key = _text(_at(toleration, "key"))
    effect = _text(_at(toleration, "effect"))
    operator = _text(_at(toleration, "operator"))
    if effect and effect != _at(taint, "effect"):
        return False
    if key and key != _at(taint, "key"):
        return False
    if operator == EXISTS:
        return True
    # Without a key only Exists is allowed.
    return (
        operator in {"", "Equal"}
        and bool(key)
        and _text(_at(toleration, "value")) == _text(_at(taint, "value"))
    )


def _at(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
