"""What this pod knows of itself, and whether a pod of its DaemonSet will run on its node again."""

import json
import time
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from installer.config_text import value_at
from installer.errors import InstallerError
from installer.fleet.client import path_of_daemonset, path_of_node, read_or_missing
from installer.fleet.run_again import Keep, Missing, Unanswered, Undo, Unknown, will_run_again
from installer.host.kubernetes import Api, own_pod_name

DAEMONSET: Final = "DaemonSet"
PARTS: Final = 3  # of a token: header, claims, signature
NODE_AT_LEAST_S: Final = 2.0  # for the node, once the API has answered for the DaemonSet


class OwnPod(Struct, frozen=True):
    """The names of this pod, of its node, and of its DaemonSet; "" for an unknown name."""

    pod: str
    node: str
    daemonset: str


def ask_run_again(daemonset: str, node: str, until_s: float) -> Keep | Undo | Unknown:
    """Ask the API whether a pod of the DaemonSet will run on the node again.

    Every failure but an API without an answer means undo, with the reason.

    Args:
        daemonset: the name of the DaemonSet in the namespace of this pod; "" for the owner of this pod.
        node: the name of the node; "" for the node of this pod.
        until_s: the moment, by ``time.monotonic``, from which on no answer is awaited, except for a question
            about the node that begins late: the API has answered then.
    """
    try:
        api = Api.of_this_pod()
        own = find_own_pod(api, daemonset, node, until_s)
        if isinstance(own, Missing | Unanswered):
            return will_run_again(own, own)
        found = read_or_missing(api, path_of_daemonset(api.namespace, own.daemonset), until_s=until_s)
        if isinstance(found, Missing | Unanswered):
            return will_run_again(found, found)
        until_s = max(until_s, time.monotonic() + NODE_AT_LEAST_S)
        return will_run_again(found, read_or_missing(api, path_of_node(own.node), until_s=until_s))
    except InstallerError as error:
        return Undo(error.problem)


def find_own_pod(api: Api, daemonset: str, node: str, until_s: float) -> OwnPod | Missing | Unanswered:
    """Complete the names of the options: by this pod's token, and by the pod in the API."""
    claims = read_claims((api.account / "token").read_text())
    pod = _text(claims, "pod", "name") or own_pod_name()
    node = node or _text(claims, "node", "name")
    if daemonset and node:
        return OwnPod(pod, node, daemonset)
    found = read_or_missing(api, _path_of_pod(api.namespace, pod), until_s=until_s)
    if isinstance(found, Missing | Unanswered):
        return found
    node = node or _text(found, "spec", "nodeName")
    daemonset = daemonset or _find_owner(found)
    if not daemonset:
        return Missing(f"the pod {pod} belongs to no DaemonSet")
    return OwnPod(pod, node, daemonset)


def find_own_node(api: Api, node: str) -> str:
    """Find the name of this pod's node: ``node``, or the name in this pod's token.

    Raises:
        InstallerError: the name is not known.
    """
    name = node or _text(read_claims((api.account / "token").read_text()), "node", "name")
    if not name:
        remedy = "give it with --node-name, in a pod as its field spec.nodeName"
        raise InstallerError(
            "find the name of this node (the pod's token has none)", remedy=remedy, code="kubernetes-api"
        )
    return name


def read_claims(token: str) -> Mapping[str, Any]:
    """Read the claims of a service account's token about its pod; an empty mapping for any other token.

    The node is in tokens since Kubernetes 1.30 (engine-facts.md#pod-token). The signature is not checked:
    whoever exchanges this file can exchange the API's address as well.
    """
    parts = token.strip().split(".")
    if len(parts) != PARTS:
        return {}
    with suppress(ValueError, RecursionError):
        padding = "=" * (-len(parts[1]) % 4)
        claims = json.loads(urlsafe_b64decode(parts[1] + padding))
        bound = value_at(claims, ("kubernetes.io",)) if isinstance(claims, dict) else None
        if isinstance(bound, Mapping):
            return bound
    return {}


def _find_owner(pod: Mapping[str, Any]) -> str:
    """Return the name of a pod's DaemonSet, "" without a DaemonSet as owner."""
    owners = value_at(pod, ("metadata", "ownerReferences"))
    for owner in owners if isinstance(owners, list) else []:
        if isinstance(owner, Mapping) and owner.get("kind") == DAEMONSET and owner.get("controller") is True:
            return _text(owner, "name")
    return ""


def _path_of_pod(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _text(tree: Mapping[str, Any], *path: str) -> str:
    value = value_at(tree, path)
    return value if isinstance(value, str) else ""
