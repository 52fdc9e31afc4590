"""A stop of ``run`` with --on-exit auto: the API tells whether another pod comes, else everything is undone."""

import json
import os
import socket
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Timer
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from installer.change.ledger import Ledger, hold
from installer.errors import Exit
from installer.fleet import leases, own_pod
from installer.fleet.own_pod import OwnPod, ask_run_again, find_own_pod, read_claims
from installer.fleet.run_again import Keep, Missing, Unanswered, Unknown
from installer.host import kubernetes
from installer.host.files import Host
from installer.host.kubernetes import Api
from installer.lifecycle import handover, uninstall
from installer.model.facts import TurnRow
from installer.model.options import OnExit, Options, RestartMode
from installer.supervisor import HANDED_OVER
from tests.fleet.api_server import TOKEN, TOKENS, USER, ApiServer, serving, settings_lease
from tests.support.site import LEDGER, PROJECT, Site

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "stops.json").read_text())
DAEMONSET = "toolkit"
NODE = "gpu-node-1"
POD = "toolkit-abcde"
LABEL = "nvidia.com/gpu.present"
LEASE = "gpu-turn-0"
SHORT_S = 1.0


@dataclass
class Cluster:
    """An API server with a DaemonSet, a Node and a Pod, for the site of a test."""

    server: ApiServer
    api: Api
    options: Options

    def change(self, resource: str, name: str, change: Callable[[Any], object]) -> None:
        """Change an object as its owner does."""
        thing = deepcopy(self.server.objects[resource, name])
        change(thing)
        self.server.put(resource, thing)


@pytest.fixture
def cluster(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    server = ApiServer()
    for resource, kind in (("daemonsets", "DaemonSet"), ("nodes", "Node"), ("pods", "Pod")):
        server.put(resource, RECORDED[kind])
    account = tmp_path / "account"
    account.mkdir()
    options = Options(
        engines=("docker", "containerd", "crio"),
        host_root=PurePosixPath(site.root),
        toolkit_source=PurePosixPath(site.source),
        restart_mode=RestartMode.NONE,
        on_exit=OnExit.AUTO,
        daemonset=DAEMONSET,
        node_name=NODE,
    )
    with serving(server, account) as api:
        monkeypatch.setattr(kubernetes, "ACCOUNT", account)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", api.host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        yield Cluster(server, api, options)


def template(daemonset: Any) -> Any:
    return daemonset["spec"]["template"]["spec"]


def update(daemonset: Any) -> None:
    template(daemonset)["containers"][0]["image"] = "node-toolkit-installer:2"


def roll_back(daemonset: Any) -> None:
    template(daemonset)["containers"][0]["image"] = "node-toolkit-installer:0"


def switch_to_uninstall(daemonset: Any) -> None:
    component = PROJECT / "deploy/kustomize/components/uninstall/kustomization.yaml"
    (patch,) = yaml.safe_load(component.read_text())["patches"]
    (container,) = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]["containers"]
    template(daemonset)["containers"][0] |= {"command": container["command"], "args": container["args"]}


def cordon(node: Any) -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    node["spec"] = {"unschedulable": True, "taints": [taint]}


def evict(pod: Any) -> None:
    pod["metadata"] |= {"deletionTimestamp": "2026-11-28T23:14:03Z", "deletionGracePeriodSeconds": 30}


KEPT: dict[str, Callable[[Cluster], object]] = {
    "a restart of the container, such as by its liveness probe": lambda _: None,
    "the image is updated": lambda cluster: cluster.change("daemonsets", DAEMONSET, update),
    "the image is rolled back": lambda cluster: cluster.change("daemonsets", DAEMONSET, roll_back),
    "the node is drained": lambda cluster: cluster.change("nodes", NODE, cordon),
    "the pod is deleted or evicted": lambda cluster: cluster.change("pods", POD, evict),
    "the DaemonSet is made anew": lambda cluster: cluster.server.put("daemonsets", RECORDED["made anew"]),
}
UNDONE: dict[str, tuple[Callable[[Cluster], object], str]] = {
    "the DaemonSet is deleted in the foreground": (
        lambda cluster: cluster.server.put("daemonsets", RECORDED["deleted in the foreground"]),
        "the DaemonSet is being deleted",
    ),
    "the DaemonSet is deleted in the background": (
        lambda cluster: cluster.server.delete("daemonsets", DAEMONSET),
        'daemonsets.apps \\"toolkit\\" not found',
    ),
    "the DaemonSet is deleted, its pods orphaned": (
        lambda cluster: cluster.server.put("daemonsets", RECORDED["deleted with its pods orphaned"]),
        "the DaemonSet is being deleted",
    ),
    "the label is removed from the node": (
        lambda cluster: cluster.change("nodes", NODE, lambda node: node["metadata"]["labels"].pop(LABEL)),
        f"the node's label {LABEL} does not match",
    ),
    "the node is deleted": (
        lambda cluster: cluster.server.delete("nodes", NODE),
        'nodes \\"gpu-node-1\\" not found',
    ),
    "the DaemonSet uninstalls": (
        lambda cluster: cluster.change("daemonsets", DAEMONSET, switch_to_uninstall),
        "the DaemonSet uninstalls",
    ),
    "the right is missing": (lambda cluster: cluster.server.refused.add(("get", "nodes")), "403"),
    "the token is not valid": (lambda cluster: cluster.server.users.clear(), "401"),
}


def stop(cluster: Cluster) -> float:
    """Stop as ``run`` does; return how long that took."""
    began = time.monotonic()
    assert uninstall.stop(cluster.options, began) == Exit.OK
    return time.monotonic() - began


def on_disk(site: Site) -> dict[str, str]:
    return {path: what for path, what in site.tree(times=True).items() if not path.startswith(("run", "var"))}


@pytest.mark.parametrize("case", KEPT)
def test_a_stop_before_another_pod_writes_nothing(cluster: Cluster, site: Site, case: str) -> None:
    site.install()
    installed = on_disk(site)
    KEPT[case](cluster)

    stop(cluster)

    ledger = "usr/local/nvidia/.toolkit-installer"
    assert {path: what for path, what in on_disk(site).items() if path != ledger} == {
        path: what for path, what in installed.items() if path != ledger
    }
    assert cluster.server.calls == [f"get daemonsets/{DAEMONSET}", f"get nodes/{NODE}"]


@pytest.mark.parametrize("case", UNDONE)
def test_a_stop_without_another_pod_undoes_everything(
    cluster: Cluster, site: Site, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = site.tree()
    site.install()
    change, reason = UNDONE[case]
    change(cluster)

    stop(cluster)

    assert site.tree() == before
    assert reason in capfd.readouterr().err


def test_the_api_servers_own_restart_in_the_middle_is_waited_for(
    cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "ASK_S", 2 * SHORT_S)
    site.install()
    installed = site.tree()
    cluster.server.is_busy = True
    timer = Timer(SHORT_S / 2, lambda: setattr(cluster.server, "is_busy", False))
    timer.start()

    stop(cluster)

    timer.join()
    assert site.tree().keys() >= {path for path in installed if path.startswith("usr/local/nvidia/")}
    assert len(cluster.server.calls) == 3


def test_an_api_server_that_has_just_started_is_asked_again(cluster: Cluster) -> None:
    cluster.server.refused.add(("get", "daemonsets"))
    timer = Timer(SHORT_S / 2, cluster.server.refused.clear)
    timer.start()

    decision = ask_run_again(DAEMONSET, NODE, time.monotonic() + 2 * SHORT_S)

    timer.join()
    assert decision == Keep()


def test_a_single_refusal_after_no_answer_is_no_answer(cluster: Cluster) -> None:
    cluster.server.is_busy = True
    cluster.server.refused.add(("get", "daemonsets"))
    timer = Timer(SHORT_S / 2, lambda: setattr(cluster.server, "is_busy", False))
    timer.start()

    decision = ask_run_again(DAEMONSET, NODE, time.monotonic() + 2 * SHORT_S)

    timer.join()
    assert isinstance(decision, Unknown)
    assert "403" in decision.reason


def test_a_slow_api_server_may_use_all_of_the_time_for_an_answer(cluster: Cluster) -> None:
    # Seen with a kube-apiserver on a busy machine: two short tries failed, and an update was an undo.
    cluster.server.delays_s = {"daemonsets": 2.6 * SHORT_S}

    decision = ask_run_again(DAEMONSET, NODE, time.monotonic() + 4 * SHORT_S)

    assert decision == Keep()


def test_an_api_server_that_was_slow_about_the_daemonset_is_still_asked_for_the_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seen with a kube-apiserver on a busy machine: nothing was left for the node, and an update was an undo.
    monkeypatch.setattr(own_pod, "NODE_AT_LEAST_S", 10 * SHORT_S)
    cluster.server.is_busy = True
    cluster.server.delays_s = {"daemonsets": 1.5 * SHORT_S, "nodes": 0.6 * SHORT_S}
    timer = Timer(SHORT_S, lambda: setattr(cluster.server, "is_busy", False))
    timer.start()

    decision = ask_run_again(DAEMONSET, NODE, time.monotonic() + 4 * SHORT_S)

    timer.join()
    assert decision == Keep()


def test_a_missing_right_is_told_right_after_the_install(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    uninstall.warn_of_undo(cluster.options)
    silent = capfd.readouterr().err
    cluster.server.refused.add(("get", "daemonsets"))

    uninstall.warn_of_undo(cluster.options)

    told = capfd.readouterr().err
    assert silent == ""
    assert "undo at stop expected" in told
    assert "cannot get resource" in told


def refuse_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(unused.getsockname()[1]))


def be_silent(cluster: Cluster, _: pytest.MonkeyPatch) -> None:
    cluster.server.swallows.add("get")


def be_busy(cluster: Cluster, _: pytest.MonkeyPatch) -> None:
    cluster.server.is_busy = True


def be_slow_about_the_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_pod, "NODE_AT_LEAST_S", SHORT_S / 2)
    cluster.server.delays_s = {"nodes": 3 * SHORT_S}


def be_gone(_: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_connections(monkeypatch)


@pytest.mark.parametrize("behave", [be_gone, be_silent, be_busy, be_slow_about_the_node])
def test_a_stop_without_an_answer_leaves_the_node_to_the_next_pod_and_the_undo_to_a_unit(
    cluster: Cluster,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    behave: Callable[[Cluster, pytest.MonkeyPatch], None],
) -> None:
    # Seen on 200 nodes with a slow API server: an update undid 27 of 84 nodes, and 17 restarted at once.
    monkeypatch.setattr(uninstall, "ASK_S", SHORT_S)
    started: list[object] = []
    monkeypatch.setattr(handover, "_await_settled", lambda _: False)
    monkeypatch.setattr(handover, "_start", lambda *_: started.append(_))
    site.install()
    installed = on_disk(site)
    behave(cluster, monkeypatch)

    code = uninstall.stop(cluster.options, time.monotonic())

    changed = {path for path, what in on_disk(site).items() if installed.get(path) != what}
    assert (code, len(started)) == (HANDED_OVER, 1)
    assert changed <= {LEDGER, str(PurePosixPath(LEDGER).parent)}
    record = json.loads(site.read(LEDGER))
    assert uninstall.UNDECIDED_S <= record["undo_pending"]["waits_s"] <= 2 * uninstall.UNDECIDED_S
    assert "undo handed over" in capfd.readouterr().err


def test_a_stop_without_an_answer_and_without_a_unit_undoes_and_warns_of_nothing(
    cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uninstall, "ASK_S", SHORT_S)
    site.install()
    be_silent(cluster, monkeypatch)
    capfd.readouterr()

    code = uninstall.stop(cluster.options, time.monotonic())

    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (decided,) = [event for event in events if event["event"] == "undo decided"]
    assert code == 0
    assert LEDGER not in on_disk(site)
    assert "does not answer" in decided["reason"]
    assert "; cannot hand over the undo (" in decided["reason"]
    assert [event for event in events if event["level"] != "info"] == []


@contextmanager
def silent_addresses(number: int) -> Iterator[list[tuple[str, int]]]:
    """Yield addresses that neither accept nor refuse a connection: their queues are full."""
    with ExitStack() as sockets:
        addresses: list[tuple[str, int]] = []
        for last in range(number):
            listener = sockets.enter_context(socket.socket())
            listener.bind((f"127.0.0.{10 + last}", 0))
            listener.listen(0)
            addresses.append(listener.getsockname())
            for _ in range(3):
                queued = sockets.enter_context(socket.socket())
                queued.setblocking(False)
                queued.connect_ex(addresses[-1])
        yield addresses


def resolve_to(
    monkeypatch: pytest.MonkeyPatch, addresses: list[tuple[str, int]], *, slow_s: float = 0
) -> None:
    """Let the resolver find these addresses for our API server's."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = int(os.environ["KUBERNETES_SERVICE_PORT"])
    ask = socket.getaddrinfo

    def answer(asked: str, asked_port: int, *args: Any, **named: Any) -> list[Any]:
        if (asked, asked_port) != (host, port):
            return ask(asked, asked_port, *args, **named)
        if named.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        time.sleep(slow_s)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.usefixtures("cluster")
def test_a_name_with_silent_addresses_takes_no_more_than_the_time_of_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each address was given the whole time of the stop.
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "api.example")
    with silent_addresses(5) as addresses:
        resolve_to(monkeypatch, addresses)
        began = time.monotonic()
        decision = ask_run_again(DAEMONSET, NODE, began + SHORT_S)

    assert isinstance(decision, Unknown)
    assert time.monotonic() - began < SHORT_S + 0.5


def test_a_silent_address_leaves_time_for_the_next(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real = (cluster.api.host, cluster.api.port)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with silent_addresses(1) as addresses:
        resolve_to(monkeypatch, [*addresses, real])
        decision = ask_run_again(DAEMONSET, NODE, time.monotonic() + 4 * SHORT_S)

    assert decision == Keep()
    assert cluster.server.calls == [f"get daemonsets/{DAEMONSET}", f"get nodes/{NODE}"]


@pytest.mark.usefixtures("cluster")
def test_a_silent_resolver_takes_no_more_than_the_time_of_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "api.example")
    resolve_to(monkeypatch, [], slow_s=5 * SHORT_S)
    began = time.monotonic()
    decision = ask_run_again(DAEMONSET, NODE, began + SHORT_S)

    assert isinstance(decision, Unknown)
    assert "the name api.example was not resolved in time" in decision.reason
    assert time.monotonic() - began < SHORT_S + 0.5


@pytest.mark.usefixtures("cluster")
def test_an_unknown_name_of_the_api_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "KUBERNETES_SERVICE_HOST", f"{'x' * 70}.invalid"
    )  # longer than a part of a name may be
    decision = ask_run_again(DAEMONSET, NODE, time.monotonic() + SHORT_S)

    assert isinstance(decision, Unknown)


def test_nodes_without_an_answer_do_not_undo_at_the_same_moment(
    cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "ASK_S", SHORT_S)
    monkeypatch.setattr(handover, "_await_settled", lambda _: False)
    monkeypatch.setattr(handover, "_start", lambda *_: None)
    site.install()
    refuse_connections(monkeypatch)
    waits = set()

    for _ in range(4):
        uninstall.stop(cluster.options, time.monotonic())
        waits.add(json.loads(site.read(LEDGER))["undo_pending"]["waits_s"])

    assert len(waits) == 4


def test_an_api_server_that_refuses_connections_ends_in_an_undo_where_no_unit_can_finish_it(
    cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uninstall, "ASK_S", SHORT_S)
    before = site.tree()
    site.install()
    refuse_connections(monkeypatch)

    stop(cluster)

    assert site.tree() == before
    assert "Connection refused" in capfd.readouterr().err


def test_a_silent_api_server_takes_six_seconds_of_the_grace_and_no_more(
    cluster: Cluster, site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    before = site.tree()
    site.install()
    cluster.server.swallows.add("get")

    took_s = stop(cluster)

    assert site.tree() == before
    assert uninstall.ASK_S <= took_s < uninstall.ASK_S + uninstall.SIGN_S + 3
    assert len(cluster.server.calls) == 1
    assert "timed out" in capfd.readouterr().err


def test_what_a_stop_may_wait_for_leaves_an_engine_its_time(cluster: Cluster) -> None:
    """A pod of the GPU Operator has 30 s: asking, an engine between two lives and a reload are all in UNDO_S."""
    asked_s = uninstall.ASK_S + uninstall.PROBE_S + uninstall.RELOAD_S
    next_pod_s = max(uninstall.ASK_S, uninstall.SIGN_S + uninstall.START_S) + uninstall.RELOAD_S

    assert asked_s <= uninstall.UNDO_S
    assert next_pod_s <= uninstall.UNDO_S
    assert cluster.options.daemonset


def test_a_stop_that_had_to_wait_for_a_child_still_asks(cluster: Cluster, site: Site) -> None:
    site.install()
    installed = site.read("etc/docker/daemon.json")

    assert uninstall.stop(cluster.options, time.monotonic() - uninstall.UNDO_S) == Exit.OK

    assert site.read("etc/docker/daemon.json") == installed
    assert len(cluster.server.calls) == 2


def test_a_pod_outside_a_cluster_undoes(
    cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    before = site.tree()
    site.install()

    stop(cluster)

    assert site.tree() == before


def test_without_names_the_pod_tells_them(cluster: Cluster, site: Site) -> None:
    """With the right to get pods, and a token of before Kubernetes 1.30 or one that is none of ours."""
    (cluster.api.account / "token").write_text(TOKENS["admin"])
    cluster.options = replace(cluster.options, daemonset="", node_name="")
    site.install()
    installed = site.read("etc/docker/daemon.json")

    stop(cluster)

    assert cluster.server.calls == ["get pods/" + POD, f"get daemonsets/{DAEMONSET}", f"get nodes/{NODE}"]
    assert site.read("etc/docker/daemon.json") == installed


@pytest.fixture(autouse=True)
def pod_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", POD)


def token_of(claims: Any) -> str:
    def part(value: Any) -> str:
        return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'RS256'})}.{part(claims)}.c2ln"


def find(cluster: Cluster, daemonset: str, node: str) -> OwnPod | Missing | Unanswered:
    return find_own_pod(cluster.api, daemonset, node, time.monotonic() + SHORT_S)


def test_the_token_tells_the_node(cluster: Cluster) -> None:
    token = token_of(RECORDED["claims"])
    (cluster.api.account / "token").write_text(token)
    cluster.server.users[token] = USER

    assert find(cluster, DAEMONSET, "") == OwnPod(POD, NODE, DAEMONSET)
    assert cluster.server.calls == []
    refused = find(cluster, "", "")

    assert isinstance(refused, Missing)
    assert RECORDED["forbidden"] in refused.reason


def test_a_pod_of_no_daemonset_has_no_next_pod(cluster: Cluster) -> None:
    (cluster.api.account / "token").write_text(TOKENS["admin"])
    # As an orphaned one.
    cluster.change("pods", POD, lambda pod: pod["metadata"].pop("ownerReferences"))

    assert find(cluster, "", NODE) == Missing(f"the pod {POD} belongs to no DaemonSet")


@pytest.mark.parametrize(
    "token",
    [
        "",
        TOKEN,
        "a.b.c",
        "a.////.c",
        token_of([]),
        token_of({"kubernetes.io": 7}),
        f"a.{'W' * 40_000}.c",
        "\N{SNOWMAN}.\N{SNOWMAN}.c",
    ],
)
def test_an_odd_token_says_nothing(token: str) -> None:
    assert read_claims(token) == {}


def kubelet_makes(site: Site, pod: str) -> None:
    """Make the directory for a pod's logs, as the kubelet does right before the sandbox of the pod."""
    (site.root / f"var/log/pods/gpu_{pod}_0c5d-{pod}").mkdir(parents=True)


def test_a_pod_deleted_by_force_waits_for_the_next_although_its_token_has_ended(
    cluster: Cluster, site: Site, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "START_S", SHORT_S)
    kubelet_makes(site, POD)
    site.install()
    cluster.server.users.clear()
    kubelet_makes(site, "toolkit-fghij")

    stop(cluster)

    assert "waiting for the next pod" in capfd.readouterr().err


@pytest.fixture
def turn(cluster: Cluster, site: Site) -> str:
    """Return the Lease of the turn that this node holds, by its ledger and by the API."""
    site.install()
    cluster.server.put("leases", settings_lease(at_most="1", stop_after="1"))
    cluster.server.put("leases", leases.new_turn(LEASE, "gpu"))
    lease = cluster.server.lease(LEASE)
    cluster.server.put("leases", leases.taken(lease, NODE, cluster.server.server_s, 300))
    with hold(partial(Ledger.open, Host.under(cluster.options.host_root), cluster.options.layout)) as ledger:
        row = TurnRow("gpu", NODE, "r", ("containerd 2",), "2026-11-28T23:14:03Z 12.000")
        ledger.write(replace(ledger.record, turn=row))
    return LEASE


def uninstall_here(cluster: Cluster) -> None:
    assert uninstall.uninstall(cluster.options) == Exit.OK


def stop_for_ever(cluster: Cluster) -> None:
    cluster.server.delete("daemonsets", DAEMONSET)
    stop(cluster)


@pytest.mark.parametrize("act", [uninstall_here, stop_for_ever])
def test_a_complete_undo_gives_its_turn_back_before_the_ledger_goes(
    cluster: Cluster, site: Site, turn: str, act: Callable[[Cluster], None]
) -> None:
    recorded: list[bool] = []
    cluster.server.meddles.append(lambda: recorded.append('"turn"' in site.read(LEDGER)))

    act(cluster)

    assert cluster.server.lease(turn)["spec"].get("holderIdentity", "") == ""
    assert recorded == [True], "if this process dies here, the next undo gives it back"
    assert not (site.root / LEDGER).exists()


@pytest.mark.parametrize("act", [uninstall_here, stop_for_ever])
def test_an_undo_is_complete_although_its_turn_cannot_be_given_back(
    cluster: Cluster, site: Site, turn: str, act: Callable[[Cluster], None], capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.server.refused.add(("update", "leases"))

    act(cluster)

    assert not (site.root / LEDGER).exists()
    assert cluster.server.lease(turn)["spec"]["holderIdentity"] == NODE
    told = capfd.readouterr().err
    assert "turn not given back" in told
    assert f"delete the Lease gpu-turn-N that {NODE} holds" in told
