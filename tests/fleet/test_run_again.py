"""Whether a pod of the DaemonSet will run on this node again: each case is a DaemonSet, a node, and what a stop does."""

from typing import Any, NamedTuple

import pytest
import yaml

from installer.fleet.run_again import Keep, Missing, Unanswered, Undo, Unknown, will_run_again
from tests.support.site import PROJECT

AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"
DELETED = "2026-11-28T12:00:00Z"


def daemonset(metadata: dict[str, Any] | None = None, **pod: Any) -> dict[str, Any]:
    containers = [{"name": "toolkit", "args": ["run", "--on-exit", "auto"]}]
    template = {"spec": {"containers": containers, "nodeSelector": {"gpu": "true"}, **pod}}
    return {"metadata": {"name": "toolkit", "uid": "1", **(metadata or {})}, "spec": {"template": template}}


def affinity(*terms: Any) -> dict[str, Any]:
    return daemonset(affinity={"nodeAffinity": {AFFINITY: {"nodeSelectorTerms": [*terms]}}})


def term(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}


def field(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [*values]}]}


def tolerating(*tolerations: dict[str, str], **pod: Any) -> dict[str, Any]:
    return daemonset(tolerations=[*tolerations], **pod)


def node(*taints: tuple[str, str] | tuple[str, str, str], **changes: Any) -> dict[str, Any]:
    named = [dict(zip(("key", "effect", "value"), taint, strict=False)) for taint in taints]
    labels = {"gpu": "true", "zone": "b", "memory": "40"}
    return {"metadata": {"name": "gpu-node-1", "labels": labels, **changes}, "spec": {"taints": named}}


DAEMONSET = daemonset()
NODE = node()
NO_SELECTOR = Undo("the node's label gpu does not match the DaemonSet's node selector")
NO_AFFINITY = Undo("the node does not match the DaemonSet's node affinity")
UNINSTALLS = Undo("the DaemonSet uninstalls")


def untolerated(taint: str) -> Undo:
    return Undo(f"the DaemonSet does not tolerate the node's taint {taint}")


class Case(NamedTuple):
    """A DaemonSet and a node, and what a stop of the pod does there."""

    decision: Keep | Undo | Unknown
    daemonset: dict[str, Any] | Missing | Unanswered = DAEMONSET
    node: dict[str, Any] | Missing | Unanswered = NODE


CASES = {
    "the image is updated, the pod is drained, evicted or deleted": Case(Keep()),
    "a DaemonSet of the same name was made anew": Case(Keep(), daemonset({"uid": "2"})),
    "a DaemonSet without a selector runs on each node": Case(Keep(), daemonset(nodeSelector=None)),
    # The DaemonSet.
    "the DaemonSet is gone: deleted in the background, or as an orphan": Case(
        Undo("the DaemonSet is unknown (404)"), Missing("404")
    ),
    "the DaemonSet is being deleted in the foreground": Case(
        Undo("the DaemonSet is being deleted"), daemonset({"deletionTimestamp": DELETED})
    ),
    "the DaemonSet uninstalls": Case(UNINSTALLS, daemonset(containers=[{"args": ["uninstall"]}])),
    "the DaemonSet uninstalls by a shell": Case(
        UNINSTALLS,
        daemonset(
            containers=[{"command": ["sh", "-c"], "args": ["toolkit-installer uninstall && sleep infinity"]}]
        ),
    ),
    "the DaemonSet only names uninstall": Case(
        Keep(), daemonset(containers=[{"args": ["run", "--label", "uninstall-me"]}])
    ),
    "the DaemonSet has no template": Case(Undo("the DaemonSet has no pod template"), {"spec": {}}),
    "the DaemonSet names this node": Case(Keep(), daemonset(nodeName="gpu-node-1")),
    "the DaemonSet names another node": Case(
        Undo("the DaemonSet names another node"), daemonset(nodeName="gpu-node-2")
    ),
    # The node.
    "the node is gone": Case(Undo("the node is unknown (404)"), node=Missing("404")),
    "the node is being deleted": Case(
        Undo("the node is being deleted"), node=node(deletionTimestamp=DELETED)
    ),
    "the API refuses the DaemonSet": Case(Undo("the DaemonSet is unknown (403)"), Missing("403")),
    "the API does not answer about the DaemonSet": Case(Unknown("timed out"), Unanswered("timed out")),
    "the API does not answer about the node": Case(Unknown("timed out"), node=Unanswered("timed out")),
    # Selectors.
    "the node has lost its label": Case(NO_SELECTOR, node=node(labels={})),
    "the node's label has another value": Case(NO_SELECTOR, node=node(labels={"gpu": "false"})),
    "the selector got a label that the node lacks": Case(
        Undo("the node's label new does not match the DaemonSet's node selector"),
        daemonset(nodeSelector={"gpu": "true", "new": "true"}),
    ),
    "the node has no labels at all": Case(NO_SELECTOR, node=node(labels=None)),
    # Affinity.
    "affinity In": Case(Keep(), affinity(term("zone", "In", "a", "b"))),
    "affinity In, with other values": Case(NO_AFFINITY, affinity(term("zone", "In", "a"))),
    "affinity NotIn": Case(NO_AFFINITY, affinity(term("zone", "NotIn", "b"))),
    "affinity NotIn, of a label that the node lacks": Case(Keep(), affinity(term("rack", "NotIn", "b"))),
    "affinity Exists": Case(Keep(), affinity(term("zone", "Exists"))),
    "affinity DoesNotExist": Case(NO_AFFINITY, affinity(term("zone", "DoesNotExist"))),
    "affinity Gt": Case(Keep(), affinity(term("memory", "Gt", "39"))),
    "affinity Gt, of an equal number": Case(NO_AFFINITY, affinity(term("memory", "Gt", "40"))),
    "affinity Lt": Case(Keep(), affinity(term("memory", "Lt", "41"))),
    "affinity Lt, of a label that is no number": Case(NO_AFFINITY, affinity(term("zone", "Lt", "41"))),
    "affinity with an operator that is unknown": Case(NO_AFFINITY, affinity(term("zone", "Like", "b"))),
    "one of two terms matches": Case(Keep(), affinity(term("zone", "In", "a"), term("gpu", "Exists"))),
    "one of two requirements matches": Case(
        NO_AFFINITY,
        affinity(
            {
                "matchExpressions": [
                    {"key": "gpu", "operator": "Exists"},
                    {"key": "rack", "operator": "Exists"},
                ]
            }
        ),
    ),
    "a term without requirements matches nothing": Case(NO_AFFINITY, affinity({})),
    "no term matches nothing": Case(NO_AFFINITY, affinity()),
    "affinity by the node's name": Case(Keep(), affinity(field("In", "gpu-node-1"))),
    "affinity by another node's name": Case(NO_AFFINITY, affinity(field("In", "gpu-node-2"))),
    "affinity that excludes the node by its name": Case(NO_AFFINITY, affinity(field("NotIn", "gpu-node-1"))),
    "a preferred affinity does not count": Case(
        Keep(),
        daemonset(
            affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
        ),
    ),
    # Taints.
    "a taint that is not tolerated": Case(
        untolerated("gpu:NoSchedule"), node=node(("gpu", "NoSchedule", "a100"))
    ),
    "a taint that evicts": Case(untolerated("gone:NoExecute"), node=node(("gone", "NoExecute"))),
    "a taint that is only a preference": Case(Keep(), node=node(("gpu", "PreferNoSchedule"))),
    "the taint is tolerated by its value": Case(
        Keep(), tolerating({"key": "gpu", "value": "a100"}), node(("gpu", "NoSchedule", "a100"))
    ),
    "the taint has another value": Case(
        untolerated("gpu:NoSchedule"),
        tolerating({"key": "gpu", "value": "a100"}),
        node(("gpu", "NoSchedule", "h100")),
    ),
    "the taint is tolerated whatever its value": Case(
        Keep(), tolerating({"key": "gpu", "operator": "Exists"}), node(("gpu", "NoSchedule", "h100"))
    ),
    "another effect is tolerated": Case(
        untolerated("gpu:NoExecute"),
        tolerating({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}),
        node(("gpu", "NoExecute")),
    ),
    "each taint is tolerated": Case(
        Keep(), tolerating({"operator": "Exists"}), node(("gpu", "NoSchedule"), ("gone", "NoExecute"))
    ),
    "one of two taints is tolerated": Case(
        untolerated("gone:NoExecute"),
        tolerating({"key": "gpu", "operator": "Exists"}),
        node(("gpu", "NoSchedule"), ("gone", "NoExecute")),
    ),
    "the node is drained: cordoned": Case(
        Keep(), node=node(("node.kubernetes.io/unschedulable", "NoSchedule"))
    ),
    "the node does not answer": Case(
        Keep(),
        node=node(
            ("node.kubernetes.io/unreachable", "NoExecute"), ("node.kubernetes.io/not-ready", "NoExecute")
        ),
    ),
    "the node is short of memory": Case(
        Keep(), node=node(("node.kubernetes.io/memory-pressure", "NoSchedule"))
    ),
    "the node has no network, which a pod of the host's network tolerates": Case(
        Keep(), daemonset(hostNetwork=True), node(("node.kubernetes.io/network-unavailable", "NoSchedule"))
    ),
    "the node has no network": Case(
        untolerated("node.kubernetes.io/network-unavailable:NoSchedule"),
        node=node(("node.kubernetes.io/network-unavailable", "NoSchedule")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_stop_of_the_pod(name: str) -> None:
    case = CASES[name]

    assert will_run_again(case.daemonset, case.node) == case.decision


@pytest.mark.parametrize("odd", [None, 7, "text", [], {"a": 1}, [None], [{"key": {}}], [["x"]]])
def test_odd_objects_end_in_an_answer(odd: Any) -> None:
    keys = ("nodeSelector", "affinity", "tolerations", "containers", "nodeName", "hostNetwork")
    for key in keys:
        decision = will_run_again(daemonset(**{key: odd}), node(("gpu", "NoSchedule")))
        assert isinstance(decision, Keep | Undo)
    for changes in ({"labels": odd}, {"name": odd}):
        assert isinstance(will_run_again(affinity(field("In", "x")), node(**changes)), Keep | Undo)
    assert isinstance(will_run_again(affinity(odd, {"matchExpressions": odd}), node()), Undo)
    assert isinstance(will_run_again(daemonset(), {"spec": {"taints": odd}}), Keep | Undo)


def test_the_manifests_that_uninstall_are_known() -> None:
    component = PROJECT / "deploy/kustomize/components/uninstall/kustomization.yaml"
    patches = yaml.safe_load(component.read_text())["patches"]
    (manifest,) = [yaml.safe_load(each["patch"]) for each in patches]
    pod = manifest["spec"]["template"]["spec"]

    assert will_run_again(daemonset(containers=pod["containers"]), node()) == UNINSTALLS
