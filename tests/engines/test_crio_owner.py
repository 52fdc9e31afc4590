"""CRI-O as its owner uses it: execs and probes all the time, reloads, handlers of his own."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from tests.engines.conftest import Boot
from tests.engines.crios import DROP_INS, OURS, STATE, bundle, call, crio_booted, run_pod, starts
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.versions import EngineSet

ASKED = ("--runtime", "crio", "--toolkit-source", ARTIFACTS)
RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
OWNERS = f"{DROP_INS}/50-owner.conf"
HANDLER = f'[crio.runtime.runtimes.gpu]\nruntime_path = "{RUNTIME}"\n'
SANDBOX = "415635d5fdde8b8339d4"


@pytest.fixture(scope="module")
def crio_node(booted: Boot, engines_today: list[EngineSet]) -> Iterator[Node]:
    with crio_booted(booted, engines_today) as node:
        yield node


@pytest.fixture
def crio(crio_node: Node) -> Iterator[Node]:
    """Return the node of the fake CRI-O, as it was; a test may leave nothing behind."""
    files = snapshot(crio_node)
    yield crio_node
    crio_node.run(["rm", "-rf", STATE])
    crio_node.installer("uninstall", check=True)
    assert snapshot(crio_node) == files


@contextmanager
def exec_in_flight(node: Node) -> Iterator[None]:
    """Have an exec run during the block: it ends with the engine, as a probe's does at each restart."""

    def run() -> None:
        try:
            call(node, "ExecSync")
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise

    thread = threading.Thread(target=run)
    thread.start()
    node.wait_for("conmon", ["sh", "-c", "cat /proc/[0-9]*/comm"])
    try:
        yield
    finally:
        node.run(["pkill", "-x", "conmon"], check=False)
        thread.join()


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_an_exec_in_flight_keeps_no_verb_from_its_restart(crio: Node, verb: str) -> None:
    if verb == "uninstall":
        crio.installer("install", *ASKED, check=True)
    count = starts(crio)

    with exec_in_flight(crio):
        done = crio.installer(verb, *(ASKED if verb == "install" else ()))

    assert done.returncode == 0, done.stderr
    assert starts(crio) == count + 1


def test_an_undo_that_is_refused_is_told_by_status_until_the_next(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    unit = crio.read("/run/systemd/system/crio.service")
    crio.write("/run/systemd/system/crio.service", f"[Unit]\nRefuseManualStop=yes\n{unit}")
    crio.run(["systemctl", "daemon-reload"])

    refused = crio.installer("uninstall")
    told = crio.installer("status")

    crio.write("/run/systemd/system/crio.service", unit)
    crio.run(["systemctl", "daemon-reload"])
    installed = crio.installer("install", *ASKED)
    assert (refused.returncode, told.returncode) == (4, 1), (refused.stderr, told.stdout)
    assert "RefuseManualStop=yes" in told.stdout
    assert installed.returncode == 0, installed.stderr
    assert crio.installer("status").returncode == 0


def reload(node: Node) -> None:
    node.run(["systemctl", "reload", "crio"])
    time.sleep(0.2)


def test_what_a_reload_makes_crio_forget_changes_nothing(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    count, files = starts(crio), snapshot(crio)
    reload(crio)

    plan = crio.installer("plan", *ASKED)
    again = crio.installer("install", *ASKED)

    assert plan.returncode == 0, plan.stdout
    assert "nothing changed" in again.stderr
    assert (starts(crio), snapshot(crio)) == (count, files)


def test_an_install_after_a_reload_is_as_one_before(crio: Node) -> None:
    reload(crio)
    crio.installer("install", *ASKED, check=True)
    count, text = starts(crio), crio.read(OURS)

    again = crio.installer("install", *ASKED)

    assert "nothing changed" in again.stderr
    assert (starts(crio), crio.read(OURS)) == (count, text)


def test_the_toolkit_stays_for_a_handler_that_its_owner_has_made_of_it(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    crio.write(OWNERS, HANDLER)
    crio.restart("crio")

    kept = crio.installer("uninstall")
    there = (crio.root / RUNTIME[1:]).exists()
    told = crio.installer("status")

    run_pod(crio, "gpu")
    crio.run(["rm", OWNERS])
    crio.restart("crio")
    assert (kept.returncode, told.returncode) == (4, 1), (kept.stderr, told.stdout)
    assert f"{OWNERS} names {RUNTIME}" in kept.stderr
    assert there
    assert crio.installer("uninstall").returncode == 0


def test_a_stopped_pod_on_a_handler_of_before_the_install_keeps_what_it_is_removed_by(crio: Node) -> None:
    crio.write(OWNERS, HANDLER)
    crio.installer("install", *ASKED, check=True)
    annotations = (
        f'{{"io.kubernetes.cri-o.SandboxID": "{SANDBOX}", "io.kubernetes.cri-o.RuntimeHandler": "gpu"}}'
    )
    bundle(crio, SANDBOX, annotations)

    kept = crio.installer("uninstall", "--in-use", "keep")
    there = (crio.root / RUNTIME[1:]).exists()

    crio.run(["rm", "-rf", OWNERS, STATE])
    crio.restart("crio")
    assert kept.returncode == 4, kept.stderr
    assert there
    assert crio.installer("uninstall").returncode == 0
