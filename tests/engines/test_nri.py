"""The NRI plugin with a real containerd that gives CDI devices by NRI, and with one that does not."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from signal import SIGKILL, SIGSTOP, Signals
from statistics import median

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Container, CriError, Pod
from tests.engines.distribution import newest
from tests.engines.nodes import PYTHON, Node, Running, boot
from tests.engines.nri import HOOK_RAN, KIND, OTHER, SOCKET, STATE, WISH, Between, add_devices
from tests.engines.roots import Roots
from tests.engines.versions import EngineSet
from tests.support.specifications import DEVICE, READ, UNREAD

MANY = "vendor.example/many"
ALLOW = tuple(word for kind in (KIND, OTHER, MANY) for word in ("--nri-allow", f"default={kind}"))
BACK_S = 0.1
RESTARTS = 3
HANG_S = 2.0  # an engine waits so long for an answer
BUSY_S = 1.0  # what a container takes on this machine, others beside
SLEEP = ("/bin/sleep", "100000")
OURS = {"name": "ours", "containerEdits": {"env": ["A=ours"]}}
# Messages of a session with three containers, as the real one sends them.
REGISTERED = ["RegisterPlugin", "answer", "Configure", "answer", "Synchronize", "answer"]
OF_A_CONTAINER = ["CreateContainer", "answer"]
CONTAINERS = ("plain", "main", "forbidden")


@pytest.fixture(scope="module")
def nri_node(roots: Roots, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot one node whose containerd takes CDI devices from a plugin."""
    with boot(roots, newest(engines_today, "2")) as node:
        add_devices(node)
        yield node


@contextmanager
def plugin(node: Node) -> Iterator[Running]:
    """Start a plugin that is registered, without any capability, and end it."""
    bare = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    process = node.start([*bare, PYTHON, "-m", "installer", "nri", *ALLOW])
    try:
        process.wait_for('"event": "NRI plugin registered"')
        yield process
    finally:
        process.terminate()
        process.wait(20)


def container(name: str) -> Container:
    return Container(command=SLEEP, name=name)


def thing_in(node: Node, number: str) -> str:
    return node.cri.exec(number, "/bin/sh", "-c", "echo $THING").stdout.strip()


def test_a_container_gets_its_device_and_nothing_else_on_the_node_changes(nri_node: Node) -> None:
    before, config = nri_node.pid_of("containerd"), nri_node.read(CONTAINERD)
    with plugin(nri_node) as process:
        pod = nri_node.cri.run_pod(annotations={"nvidia.cdi.k8s.io/container.main": f" {KIND}=0, {KIND}=0 ,"})
        main, plain = (nri_node.cri.start(pod, container(name)) for name in ("main", "plain"))
        look = "echo $THING; cat /thing/hello; ls /dev/thing; echo x > /dev/thing && echo written"

        seen = nri_node.cri.exec(main, "/bin/sh", "-c", look).stdout.split("\n")
        without = nri_node.cri.exec(plain, "/bin/sh", "-c", "echo [$THING]; ls /dev/thing")

        assert seen[:4] == ["0", "from the node", "/dev/thing", "written"]
        assert without.stdout.strip() == "[]"
        assert "devices given" in process.log
        assert "CapEff:\t0000000000000000" in nri_node.read(f"/proc/{process.pid}/status")
    assert nri_node.read(HOOK_RAN).strip() == "ran"
    assert nri_node.pid_of("containerd") == before
    assert nri_node.read(CONTAINERD) == config
    assert sorted(path.name for path in (nri_node.root / "run/nri").iterdir()) == ["nri.sock"]
    nri_node.cri.remove_pod(pod)


def test_an_answer_that_is_longer_than_a_frame_comes_through(nri_node: Node) -> None:
    names = [f"n{number:04}" for number in range(400)]
    devices = [{"name": name, "containerEdits": {"env": [f"{name}=1"]}} for name in names]
    spec = {"cdiVersion": "0.5.0", "kind": MANY, "devices": devices}
    nri_node.write("/etc/cdi/many.json", json.dumps(spec))
    wish = ",".join(f"{MANY}={name}" for name in names)
    with plugin(nri_node):
        pod = nri_node.cri.run_pod(annotations={"nvidia.cdi.k8s.io/pod": wish})
        main = nri_node.cri.start(pod, container("main"))

        seen = nri_node.cri.exec(main, "/bin/env").stdout

        assert [name for name in names if f"{name}=1" not in seen] == []
        nri_node.cri.remove_pod(pod)


def test_a_device_that_cannot_be_given_fails_its_container_alone(nri_node: Node) -> None:
    wrong = {
        "broken": (f"{OTHER}=0", "/opt/thing/gone"),
        "absent": (f"{KIND}=7", "unresolvable CDI devices"),
        "forbidden": ("vendor.example/other=0", "its namespace may not"),
    }
    wishes = {f"nvidia.cdi.k8s.io/container.{name}": wish for name, (wish, _) in wrong.items()}
    with plugin(nri_node):
        pod = nri_node.cri.run_pod(annotations=wishes | WISH)

        for name, (_, words) in wrong.items():
            with pytest.raises(CriError, match=words):
                nri_node.cri.start(pod, container(name))

        assert thing_in(nri_node, nri_node.cri.start(pod, container("main"))) == "0"
        nri_node.cri.remove_pod(pod)


def test_of_specifications_that_are_written_in_odd_ways_the_same_are_read_as_here(nri_node: Node) -> None:
    spelled = [*READ.values(), *UNREAD.values()]
    names = [f"n{number}x" for number in range(len(spelled))]
    beside = nri_node.root / "etc/cdi-beside"
    beside.mkdir()
    for name, text in zip(names, spelled, strict=True):
        content = text.encode() if isinstance(text, str) else text
        letters = "utf-16-le" if b"k\0" in content else "utf-8"
        there = content.replace(DEVICE.encode(letters), name.encode(letters))
        (beside / f"{name}.yaml").write_bytes(there)
    # A containerd that sees a write in /etc/cdi reads all files there: it was busy for minutes with one after another.
    nri_node.run(["sh", "-c", "mv /etc/cdi-beside/* /etc/cdi/ && rmdir /etc/cdi-beside"])
    ours = json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [OURS]})
    nri_node.write("/etc/cdi/ours.json", ours)
    pod = nri_node.cri.run_pod()
    asked = tuple(f"nvidia.com/gpu={name}" for name in ("ours", *names))

    with pytest.raises(CriError) as caught:
        nri_node.cri.create(pod, Container(command=SLEEP, devices=asked))

    assert "unresolvable CDI devices " in caught.value.details
    unresolved = caught.value.details.partition("unresolvable CDI devices ")[2].split(", ")
    assert sorted(unresolved) == sorted(f"nvidia.com/gpu={name}" for name in names[len(READ) :])
    nri_node.run(["sh", "-c", "rm /etc/cdi/n*x.yaml /etc/cdi/ours.json"])
    nri_node.cri.remove_pod(pod)


def _at_once(done: Callable[[], bool]) -> float:
    """Return when something is so, to a few milliseconds."""
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return time.monotonic()


def test_it_is_back_in_a_tenth_of_a_second_after_a_restart_of_the_engine(nri_node: Node) -> None:
    socket, took = nri_node.path(SOCKET), []

    def is_another(before: int) -> bool:
        with suppress(FileNotFoundError):
            return socket.stat().st_ino != before
        return False

    def has_registered(times: int) -> bool:
        return process.log.count('"event": "NRI plugin registered"') >= times

    with plugin(nri_node) as process, ThreadPoolExecutor() as pool:
        for turn in range(2, 2 + RESTARTS):
            new = partial(is_another, socket.stat().st_ino)
            time.sleep(1.2)  # as long as a session must last, for it to be back without a pause
            restart = pool.submit(nri_node.restart, "containerd")
            began = _at_once(new)
            took.append(_at_once(partial(has_registered, turn)) - began)
            restart.result()
            nri_node.cri.wait()
        pod = nri_node.cri.run_pod(annotations=WISH)
        assert thing_in(nri_node, nri_node.cri.start(pod, container("main"))) == "0"
        nri_node.cri.remove_pod(pod)

    assert median(took) < BACK_S, took


@pytest.mark.parametrize("number", [SIGKILL, SIGSTOP])
@pytest.mark.night
def test_a_plugin_that_dies_or_hangs_at_any_message_harms_nobody_without_a_wish_and_names_what_it_missed(
    nri_node: Node, number: Signals
) -> None:
    wishes = WISH | {"nvidia.cdi.k8s.io/container.forbidden": "vendor.example/other=0"}
    whole = [*REGISTERED, *OF_A_CONTAINER * len(CONTAINERS)]
    given = 0
    for at in range(1, len(whole) + 1):
        pod = nri_node.cri.run_pod(name=f"at{at}-{number.name.lower()}", annotations=wishes)
        between = Between(nri_node, at, number)
        process = nri_node.start_installer("nri", *ALLOW, "--nri-socket", between.path)
        between.aim_at(process.signal)
        _at_once(partial(_has_said, between, min(len(REGISTERED), at)))
        began = time.monotonic()

        things = {name: _outcome(nri_node, pod, name) for name in CONTAINERS}

        took_s = time.monotonic() - began
        process.kill()
        process.wait(20)
        between.close()
        # The answer to RegisterPlugin comes before Configure or behind it.
        asked = [name for name in between.said if name != "answer"]
        assert asked == [name for name in whole if name != "answer"][: len(asked)]
        with plugin(nri_node):
            missed = json.loads(nri_node.read(STATE))["missed"]
        assert things["plain"] == "without"
        assert took_s < HANG_S + 3 * BUSY_S, (at, took_s)
        assert things["forbidden"] in {"refused", "without"}
        ungiven = {name for name in ("main", "forbidden") if things[name] == "without"}
        assert {each["container"] for each in missed if each["pod"] == pod.name} == ungiven, (at, things)
        given += things["main"] == "0"
        nri_node.cri.remove_pod(pod)
    assert given


def _has_said(between: Between, messages: int) -> bool:
    return len(between.said) >= messages


def _outcome(node: Node, pod: Pod, name: str) -> str:
    """Return what became of a container: its device, "without" or "refused"; one without a wish is not."""
    try:
        return thing_in(node, node.cri.start(pod, container(name))) or "without"
    except CriError as error:
        assert name != "plain", error.details
        return "refused"
