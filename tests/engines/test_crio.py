"""CRI-O: a fake one under a real systemd, which says and does what a real one was recorded to."""

import time

import grpc
import pytest

from tests.engines.crios import (
    ASKED,
    DROP_INS,
    OURS,
    SANDBOX,
    STATE,
    bundle,
    reload,
    run_pod,
    stop_container,
)
from tests.engines.nodes import Node, Running
from tests.engines.told import but_the_ledger, sentence, snapshot, starts

TOOLKIT = "/usr/local/nvidia/toolkit"
HOOK_FILE = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
ID = "c5996a2ef532b1118cb5"
GRACE_S = 30
# A container of its own: /host and the capabilities as in our manifests, its own processes, mounts and /proc.
CONTAINER = """
mount --make-rprivate / && mkdir -p /run/container && mount -t tmpfs none /run/container &&
mkdir /run/container/host && mount --rbind / /run/container/host && mount -t proc proc /proc &&
exec setpriv --bounding-set=-all,+chown,+dac_override,+fowner,+sys_chroot --inh-caps=-all \
    /usr/bin/python3 -m installer "$@"
"""
WORDS = ("run", *ASKED, "--host-root", "/run/container/host", "--set-as-default")


def test_it_is_installed_and_undone_with_one_restart_each(crio: Node) -> None:
    files, count = snapshot(crio), starts(crio, "crio")

    done = crio.installer("install", *ASKED)

    assert done.returncode == 0, done.stderr
    run_pod(crio, "nvidia")
    assert starts(crio, "crio") == count + 1
    assert 'monitor_path = "/usr/libexec/crio/conmon"' in crio.read(OURS)
    again = crio.installer("install", *ASKED)
    assert "nothing changed" in again.stderr
    assert starts(crio, "crio") == count + 1
    undone = crio.installer("uninstall")
    assert undone.returncode == 0, undone.stderr
    assert starts(crio, "crio") == count + 2
    assert snapshot(crio) == files
    with pytest.raises(grpc.RpcError, match="failed to find runtime handler nvidia"):
        run_pod(crio, "nvidia")


def test_no_verb_restarts_into_a_drop_in_that_is_a_link_to_no_file(crio: Node) -> None:
    name = f"{DROP_INS}/50-site.conf"
    crio.installer("install", *ASKED, check=True)
    count, written = starts(crio, "crio"), snapshot(crio)
    crio.run(["ln", "-s", "/srv/gone.conf", name])

    undone = crio.installer("uninstall")
    renamed = crio.installer("install", *ASKED, "--runtime-name", "gpu")

    assert (undone.returncode, renamed.returncode) == (4, 1), (undone.stderr, renamed.stderr)
    for done in (undone, renamed):
        assert f"it reads {name}, which is a link to nowhere, or no file" in sentence(done.stderr)
    run_pod(crio, "nvidia")
    assert starts(crio, "crio") == count
    crio.run(["rm", name])
    assert but_the_ledger(snapshot(crio)) == but_the_ledger(written)


def run_in_a_pod(node: Node) -> Running:
    """Start ``run`` as CRI-O's container ID."""
    contained = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CONTAINER, "sh"]
    process = node.start([*contained, *WORDS])
    process.wait_for("waiting for a signal")
    inside = node.run(["pgrep", "--parent", str(process.pid)]).stdout.strip()
    bundle(node, ID, {"SandboxID": SANDBOX}, int(inside))
    bundle(node, SANDBOX, {"SandboxID": SANDBOX, "RuntimeHandler": ""})
    return process


def test_a_pod_that_undoes_the_crio_it_runs_under_ends_at_once_and_all_is_undone(crio: Node) -> None:
    files, count = snapshot(crio), starts(crio, "crio")
    process = run_in_a_pod(crio)
    began = time.monotonic()

    stop_container(crio, ID, GRACE_S).join()
    took_s = time.monotonic() - began
    crio.wait_for("gone", ["sh", "-c", "test -e /usr/local/nvidia || echo gone"])
    crio.wait_for("inactive", ["systemctl", "is-active", "toolkit-installer-undo"])

    assert process.wait() == 0, process.log
    assert took_s < GRACE_S / 2
    assert "undo complete" in crio.journal("toolkit-installer-undo")
    assert starts(crio, "crio") == count + 2
    assert snapshot(crio) == files
    assert not (crio.root / "run/nvidia/toolkit/ready").exists()


def test_a_restart_is_waited_for_as_long_as_the_calls_in_flight(crio: Node) -> None:
    count = starts(crio, "crio")
    busy = crio.start(["sh", "-c", 'trap "" TERM; while :; do sleep 0.1; done'])
    bundle(crio, ID, {"SandboxID": "x"}, busy.pid)
    stopping = stop_container(crio, ID, 9)
    time.sleep(0.5)

    done = crio.installer("install", *ASKED, "--timeout", "3")

    stopping.join()
    busy.wait()
    assert done.returncode == 0, done.stderr
    assert starts(crio, "crio") == count + 1
    run_pod(crio, "nvidia")


def test_a_reload_is_not_taken_for_a_restart(crio: Node) -> None:
    crio.installer("install", *ASKED, "--restart-mode", "none", check=True)
    reload(crio)
    count = starts(crio, "crio")

    done = crio.installer("install", *ASKED)

    assert done.returncode == 0, done.stderr
    assert starts(crio, "crio") == count + 1
    run_pod(crio, "nvidia")
    crio.run(["rm", OURS])
    reload(crio)  # it serves ours still, and says so no more
    crio.installer("uninstall", check=True)
    assert starts(crio, "crio") == count + 2


def test_containers_that_are_being_made_run_our_hook_before_it_goes(crio: Node) -> None:
    files = snapshot(crio)
    crio.installer("install", *ASKED, "--crio-hook", check=True)
    hook = f"{TOOLKIT}/nvidia-container-runtime-hook"
    crio.write(f"{STATE}/{ID}/userdata/config.json", f'{{"hooks": {{"prestart": [{{"path": "{hook}"}}]}}}}')

    undo = crio.start_installer("uninstall")
    crio.wait_for("gone", ["sh", "-c", f"test -e {HOOK_FILE} || echo gone"])
    time.sleep(2)

    assert (crio.root / hook[1:]).parent.exists() or (crio.root / TOOLKIT[1:]).is_symlink()
    crio.write(f"{STATE}/{ID}/userdata/pidfile", "186")
    assert undo.wait() == 0, undo.log
    assert snapshot(crio) == files
