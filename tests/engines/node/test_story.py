"""The built image as the DaemonSet's pod, on nodes whose engine it reconfigures from inside."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from installer.lifecycle.uninstall import UNDECIDED_S
from tests.deploy.rendered import Layer, Manifest, kustomized, pod_of
from tests.documents import starting
from tests.engines.by_cdi import GPU, TELLS, Client, answers, driver
from tests.engines.cri import Container
from tests.engines.live import run_through_us, start
from tests.engines.node.conftest import load
from tests.engines.node.kubelet import (
    ACCOUNT,
    NODE_NAME,
    TAG,
    announce,
    apply,
    begin,
    daemon_set,
    forget,
    network_of,
    on_disk,
    probe,
    with_api,
)
from tests.engines.nodes import OURS, Node
from tests.engines.told import served, snapshot, starts
from tests.fleet.api_server import TOKEN, ApiServer, serving
from tests.support.entry import PROJECT
from tests.support.site import LEDGER
from tests.support.waiting import until

NEXT = "next"
HOME = "/usr/local/nvidia/.toolkit-installer"
GRACE_OF_THE_OPERATOR_S = 30
IMAGE = "node-toolkit-installer"
UPPER = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
UNIT = "toolkit-installer-undo"
UNIT_ENDED = "inactive"
HANDED_OVER = 4
FIRST, SECOND = "toolkit-aaaaa", "toolkit-bbbbb"
WISH = {"nvidia.cdi.k8s.io/container.main": GPU}


def payload(node: Node) -> str:
    """Return which version of the payload containers run on."""
    installed = node.root / "usr/local/nvidia"
    program = installed / (installed / "toolkit").readlink() / "nvidia-container-runtime.real"
    return program.read_bytes().split()[-1].decode()


@pytest.mark.sampled(16)
def test_with_the_policy_undo_a_pod_leaves_no_trace(containerd_with_images: Node) -> None:
    node, manifest = containerd_with_images, daemon_set("undo")
    files, before, count = snapshot(node), served(node), starts(node)

    pod = begin(node, "toolkit", manifest)
    assert starts(node) == count + 1
    assert served(node) == (before[0] | OURS, before[1])
    assert payload(node) == "1.0.0"
    assert probe(pod, manifest, "livenessProbe") == 0, "in the engine that it restarted"
    run_through_us(node)

    pod.kill()  # it crashes and is created again
    pod.delete()
    installed = on_disk(snapshot(node, times=True))
    pod = begin(node, "toolkit-again", manifest)
    until(lambda: "waiting for a signal" in pod.log(), pod.log)
    assert "nothing changed" in pod.log()
    assert on_disk(snapshot(node, times=True)) == installed, "not one inode is another"
    assert starts(node) == count + 1

    assert pod.delete() == 0  # for an update
    assert (snapshot(node), served(node)) == (files, before)
    pod = begin(node, "toolkit-next", manifest, NEXT)
    assert starts(node) == count + 3, "one undo, one install"
    assert payload(node) == "2.0.0"

    for goes_down in (node.shut_down_and_boot, node.reboot):  # reboot: it loses its power
        goes_down()
        node.cri.wait()
        assert served(node) == (before[0] | OURS, before[1])
        engine = node.pid_of()
        pod = begin(node, f"toolkit-{goes_down.__name__}", manifest, NEXT)
        assert node.pid_of() == engine, "it is as it should be"
    run_through_us(node)

    assert pod.delete() == 0
    assert served(node) == before
    assert on_disk(snapshot(node)) == on_disk(files)


@pytest.mark.any_version
def test_with_the_policy_keep_an_update_restarts_nothing(containerd_with_images: Node) -> None:
    node, manifest = containerd_with_images, daemon_set("keep")
    files, before, count = snapshot(node), served(node), starts(node)
    _plans(node)
    pod = begin(node, "toolkit", manifest)
    live = start(node)

    assert pod.delete() == 0  # for an update
    assert served(node)[0] >= OURS
    pod = begin(node, "toolkit-next", manifest, NEXT)
    assert payload(node) == "2.0.0"
    assert starts(node) == count + 1, "the update restarted nothing"
    assert live.exec() == "alive\n", "on the payload of before"
    live.end()
    run_through_us(node)

    assert pod.delete() == 0
    uninstall = begin(node, "uninstall", pod_of(kustomized("uninstall")), NEXT)
    assert uninstall.delete() == 0
    assert (snapshot(node), served(node)) == (files, before)


@contextmanager
def _cluster(node: Node) -> Iterator[tuple[ApiServer, int]]:
    """Serve the node an API with its DaemonSet and its Node, as a real server answered."""
    server = ApiServer()
    recorded = json.loads((PROJECT / "tests/fleet/stops.json").read_text())
    daemon_set = recorded["DaemonSet"]
    daemon_set["metadata"]["name"] = "node-toolkit-installer"
    server.put("daemonsets", daemon_set)
    server.put("nodes", recorded["Node"])
    server.users = {TOKEN: "admin"}  # the rights by name are tested without a node
    account = node.root / ACCOUNT
    account.mkdir()
    with ExitStack() as stack:
        with network_of(node):
            api = stack.enter_context(serving(server, account))
        yield server, api.port
    shutil.rmtree(account)


def _by_auto(port: int, layer: Layer) -> Manifest:
    return with_api(pod_of(layer("overlays/auto", "components/auto")), port)


@pytest.mark.any_version
def test_with_the_policy_auto_an_update_restarts_nothing_and_a_removal_undoes_everything(
    containerd_with_images: Node, tmp_path: Path
) -> None:
    node = containerd_with_images
    files, before, count = snapshot(node), served(node), starts(node)
    with _cluster(node) as (server, port):
        manifest = _by_auto(port, Layer(tmp_path))
        pod = begin(node, "toolkit", manifest)
        until(lambda: "waiting for a signal" in pod.log(), pod.log)
        installed = on_disk(snapshot(node, times=True))

        assert pod.delete() == 0  # for an update
        assert "a pod of the DaemonSet will run on this node again" in pod.log()
        kept = on_disk(snapshot(node, times=True))
        assert {path for path in installed if kept.get(path) != installed[path]} <= {HOME}
        pod = begin(node, "toolkit-next", manifest, NEXT)
        assert payload(node) == "2.0.0"
        assert starts(node) == count + 1, "the update restarted nothing"
        run_through_us(node)

        server.delete("daemonsets", "node-toolkit-installer")
        assert pod.delete() == 0
        assert "undo decided" in pod.log()
        assert starts(node) == count + 2
        assert served(node) == before
    assert snapshot(node) == files


@pytest.mark.any_version
@pytest.mark.night
def test_with_the_policy_auto_and_without_an_answer_the_next_pod_takes_over_or_a_unit_undoes_everything(
    containerd_with_images: Node, tmp_path: Path
) -> None:
    node = containerd_with_images
    files, before, count = snapshot(node), served(node), starts(node)
    with _cluster(node) as (server, port):
        manifest = _by_auto(port, Layer(tmp_path))
        pod = begin(node, "toolkit", manifest)
        server.swallows.add("get")

        began = time.monotonic()
        assert pod.delete() == HANDED_OVER
        assert time.monotonic() - began < GRACE_OF_THE_OPERATOR_S
        assert "the Kubernetes API does not answer" in pod.log()
        assert "the Kubernetes API does not answer" in node.installer("status").stdout
        pod = begin(node, "toolkit-next", manifest, NEXT)
        until(lambda: UNIT_ENDED in node.run(["systemctl", "is-active", UNIT], check=False).stdout)
        assert "undo left to another" in node.journal(UNIT)
        assert starts(node) == count + 1, "an update while the API is away restarts nothing"
        run_through_us(node)

        assert pod.delete() == HANDED_OVER
        assert served(node) == (before[0] | OURS, before[1])
        _shorten_the_wait(node)
        until(lambda: UNIT_ENDED in node.run(["systemctl", "is-active", UNIT], check=False).stdout)
    assert "undo complete" in node.journal(UNIT)
    assert starts(node) == count + 2
    assert (snapshot(node), served(node)) == (files, before)


def _shorten_the_wait(node: Node) -> None:
    """Have the unit that waits for the next pod wait one second: by the ledger, which it reads every ten."""
    ledger = node.root / LEDGER
    record = json.loads(ledger.read_text())
    assert record["undo_pending"]["waits_s"] >= UNDECIDED_S
    record["undo_pending"]["waits_s"] = 1.0
    written = ledger.with_suffix(".test")
    written.write_text(json.dumps(record))
    written.rename(ledger)


@pytest.mark.long
@pytest.mark.any_version
def test_an_undo_that_waits_needs_nothing_of_the_pods_image(containerd_with_images: Node) -> None:
    node = containerd_with_images
    files, before = snapshot(node), served(node)
    pod = begin(node, "toolkit", daemon_set("undo", SET_AS_DEFAULT="true"))
    live = start(node)
    upper = node.path(UPPER)
    with_image = len(list(upper.iterdir()))

    code = pod.delete()
    pid = node.pid_of(UNIT)
    uninstall = apply(node, "uninstall", pod_of(kustomized("uninstall")), TAG)
    until(lambda: not uninstall.runs(), uninstall.log)
    again = uninstall.exit_code()
    uninstall.delete()
    _remove_images(node)

    assert (code, again, node.pid_of(UNIT)) == (4, 4, pid), "a unit that waits already goes on"
    assert len(list(upper.iterdir())) < with_image - 2, "its layers and what it has written are gone"
    assert not list(upper.glob("*/fs/opt/toolkit-installer"))
    assert not list(upper.glob("*/fs/usr/lib/python3*"))
    assert served(node) == (before[0] | OURS, before[1])
    assert live.exec() == "alive\n"
    live.end()
    until(lambda: UNIT_ENDED in node.run(["systemctl", "is-active", UNIT], check=False).stdout)
    assert "undo complete" in node.journal(UNIT)
    assert (snapshot(node), served(node)) == (files, before)


def _remove_images(node: Node) -> None:
    """Remove both images under all their names, and with them their layers."""
    ctr = ("ctr", "--namespace", "k8s.io", "images")
    rows = [line.split() for line in node.run([*ctr, "ls"]).stdout.splitlines()[1:]]
    digests = {row[2] for row in rows if IMAGE in row[0]}
    node.run([*ctr, "rm", "--sync", *(row[0] for row in rows if row[2] in digests)])


def _plans(node: Node) -> None:
    """Have the Job of the documents print the plan of a node, which is not changed by it."""
    files, engine = snapshot(node, times=True), node.pid_of()
    job = apply(node, "plan", pod_of(kustomized("plan-node")), TAG)
    until(lambda: not job.runs(), job.log)
    said, code = job.log(), job.exit_code()
    job.delete()
    assert code == 0, said
    assert "toolkit/nvidia-container-runtime.cdi" in said
    assert "* restart containerd" in said
    assert (snapshot(node, times=True), node.pid_of()) == (files, engine)
    _plans_of_all(node)


def _plans_of_all(node: Node) -> None:
    """Have the DaemonSet that only plans stay ready on a node, which is not changed by it."""
    files, engine = snapshot(node, times=True), node.pid_of()
    pod = begin(node, "plan-all", pod_of(kustomized("plan-all")))
    lines = pod.log().splitlines()
    assert lines[-1].endswith(f"{NODE_NAME}: would edit 1 file and restart containerd"), pod.log()
    pod.delete()
    assert (snapshot(node, times=True), node.pid_of()) == (files, engine)


def _without_runtimes(node: Node, mode: str) -> None:
    """Have a pod give GPUs without a runtime, see one in a container, and delete the pod."""
    manifest = daemon_set("undo", MODE=mode, DRIVER_ROOT="/opt/driver", NRI_ALLOW="default=nvidia.com/gpu")
    files, before, engine = snapshot(node), served(node), node.pid_of()
    with Client(partial(answers, node)) as client:
        pod = begin(node, f"by-{mode}", manifest)
        if mode == "nri":
            until(lambda: '"event": "NRI plugin registered"' in pod.log(), pod.log)
        asks = node.cri.run_pod(annotations=WISH if mode == "nri" else {})
        devices = (GPU,) if mode == "cdi" else ()
        container = Container(command=("/bin/sleep", "100000"), name="main", devices=devices)
        seen = node.cri.exec(node.cri.start(asks, container), "sh", "-c", TELLS).stdout
        node.cri.remove_pod(asks)
        assert pod.delete() == 0
    assert seen.split() == ["void", "libcuda.so.550.1", "device"]
    assert (client.refused, node.pid_of()) == (0, engine)
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.night
def test_without_runtimes_no_engine_is_touched_and_a_pod_that_is_deleted_by_force_hands_over(
    newest_with_images: Node,
) -> None:
    node, manifest, codes = newest_with_images, daemon_set("undo"), list[int]()
    driver(node, "550.1")
    for mode in ("cdi", "nri"):
        _without_runtimes(node, mode)
    files, before = snapshot(node), served(node)
    announce(node, FIRST)
    first = begin(node, FIRST, manifest)
    engine = node.pid_of()
    announce(node, SECOND)
    ends = threading.Thread(target=lambda: codes.append(first.delete()))
    ends.start()
    until(lambda: "waiting for the next pod" in first.log(), first.log)

    following = begin(node, SECOND, manifest)  # the DaemonSet makes it before the first has ended

    ends.join()
    assert codes == [0]
    assert "the next run takes over" in first.log()
    assert "nothing changed" in following.log()
    assert node.pid_of() == engine
    assert served(node)[0] >= OURS
    assert following.delete() == 0  # its label was taken away
    forget(node)
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.any_version
@pytest.mark.night
def test_a_container_of_dockers_installs_and_uninstalls_by_the_documents_commands(docker_node: Node) -> None:
    node, name = load(docker_node), f"node-toolkit-installer:{TAG}"
    files, before = snapshot(node), served(node)
    install, uninstall = starting("docker run --rm --network")

    node.run(install.text.replace(f" {name} ", f" localhost/{name} ").split())
    assert served(node) == (before[0] | OURS, before[1])
    node.run(uninstall.text.replace(f" {name} ", f" localhost/{name} ").split())
    assert (snapshot(node), served(node)) == (files, before)
