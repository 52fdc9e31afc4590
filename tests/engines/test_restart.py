"""A reload that goes wrong, and stops at any moment: the engine serves and the files are as promised."""

import random
import time
from contextlib import suppress

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Container, Cri
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.told import but_the_ledger, sentence, served, snapshot, starts
from tests.host.servers import message
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.any_version

STARTED_BY = "[Service]\nExecStart=\nExecStart=/usr/bin/containerd {}"
DROP_IN = "/run/systemd/system/containerd.service.d/other.conf"
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
IMPORTED = "/etc/containerd/conf.d/site.toml"
STOPS = 9  # on each of six kinds of nodes


def _unit_says(node: Node, text: str) -> None:
    """Let a drop-in of its owner's say more of containerd's unit from its next start on."""
    node.write(DROP_IN, f"{text}\n")
    node.run(["systemctl", "daemon-reload"])


def _with_an_import(node: Node) -> None:
    node.write(IMPORTED, "oom_score = -900\n")
    node.write(CONTAINERD, IMPORTS + node.read(CONTAINERD))
    node.restart_engine()


def test_the_config_on_the_command_line_of_the_running_engine_is_the_one_that_is_edited(
    containerd_node: Node, cri: Cri
) -> None:
    node = containerd_node
    node.run(["cp", CONTAINERD, "/opt/mine.toml"])
    _unit_says(node, STARTED_BY.format("--config /opt/mine.toml"))
    node.restart_engine()
    files = snapshot(node)

    node.installer("install", *SOURCE, check=True)

    assert "nvidia-container-runtime" in node.read("/opt/mine.toml")
    assert "nvidia-container-runtime" not in node.read(CONTAINERD)
    assert set(cri.status().runtimes) == {"runc"} | OURS
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


def test_an_edit_of_another_runtime_that_no_start_has_read_yet_fails_nothing(containerd_node: Node) -> None:
    node, table = containerd_node, '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]'
    plain = f'version = 2\n{table}\nruntime_type = "io.containerd.runc.v2"\n'
    node.write(CONTAINERD, plain)
    node.restart_engine()
    edited = f"{plain}options.NoNewKeyring = true\n"
    node.write(CONTAINERD, edited)

    node.installer("install", *SOURCE, check=True)

    node.write(CONTAINERD, node.read(CONTAINERD).replace("true", "false", 1))
    node.installer("uninstall", check=True)
    assert node.read(CONTAINERD) == edited.replace("true", "false")


def test_an_engine_that_its_owner_has_moved_to_another_socket_is_found_there(containerd_node: Node) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    node.run(["mkdir", "-p", "/run/moved"])
    _unit_says(node, STARTED_BY.format("--address /run/moved/api.sock"))
    node.restart("containerd")
    moved = Cri(node.root / "run/moved/api.sock")
    moved.wait()

    node.installer("install", *SOURCE, "--runtime-name", "gpu", check=True)

    assert "gpu" in moved.status().runtimes
    pid = node.pid_of()
    node.installer("uninstall", check=True)
    assert node.pid_of() != pid
    assert set(moved.status().runtimes) == {"runc"}
    assert snapshot(node) == files


@pytest.mark.sampled(16)
def test_a_node_that_goes_down_keeps_everything(node: Node) -> None:
    unit = f"[Service]\nExecStart=/usr/bin/python3 -m installer run {' '.join(SOURCE)}\n"
    node.write("/run/systemd/system/toolkit.service", unit)
    before = _of_the_disk(node)
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", "toolkit"])
    until((node.root / "run/nvidia/toolkit/ready").exists, lambda: node.journal("toolkit"))
    files = _of_the_disk(node)

    node.shut_down_and_boot()

    assert _of_the_disk(node) == files
    if node.engine == "containerd":
        node.cri.wait()
    assert "nvidia" in served(node)[0]
    node.installer("uninstall", check=True)
    assert _of_the_disk(node) == before


def _of_the_disk(node: Node) -> dict[str, str]:
    return {path: text for path, text in snapshot(node).items() if not path.startswith("/run")}


LOGIND = "org.freedesktop.login1"
REBOOT = ("busctl", "call", LOGIND, "/org/freedesktop/login1", f"{LOGIND}.Manager", "Reboot", "b", "false")
# What the kubelet does for its shutdownGracePeriod: a longer delay, and an inhibitor.
DELAY = "[Login]\nInhibitDelayMaxSec=60\n"
HOLD = ("systemd-inhibit", "--what=shutdown", "--mode=delay", "--who=kubelet", "sleep", "60")


def test_a_stop_while_the_kubelet_holds_a_shutdown_back_keeps_everything(containerd_node: Node) -> None:
    node, before = containerd_node, served(containerd_node)
    running = node.start_run(*SOURCE)
    pid = node.pid_of()

    node.write("/etc/systemd/logind.conf.d/99-kubelet.conf", DELAY)
    node.run(["systemctl", "restart", "systemd-logind"])
    held = node.start(HOLD)
    until(lambda: "kubelet" in node.run(["systemd-inhibit", "--list"]).stdout, lambda: held.log)
    node.run(REBOOT)
    assert node.run(["systemctl", "is-system-running"], check=False).stdout.strip() != "stopping"
    running.terminate()
    code, kept = running.wait(), (served(node), node.pid_of())
    held.kill()
    held.wait()

    assert code == 0
    assert "the node is going down" in running.log
    assert kept == ((before[0] | OURS, before[1]), pid), "nothing undone or restarted in the middle of it"


def test_a_failed_start_is_rolled_back_and_no_later_install_restarts_anything(containerd_node: Node) -> None:
    # What dies is not the program that has read the config before: the roll-back has to cope.
    node, files, before = containerd_node, snapshot(containerd_node), served(containerd_node)
    fails = f"! grep -q nvidia-container-runtime {CONTAINERD} || {{ echo level=fatal the disk is on strike; exit 1; }}"
    _unit_says(node, f"[Service]\nExecStartPre=/bin/sh -c '{fails}'")
    count = starts(node)

    first = node.installer("install", *SOURCE)
    after = starts(node)
    later = [node.installer("install", *SOURCE) for _ in range(3)]

    assert [done.returncode for done in (first, *later)] == [1] * 4
    assert "the disk is on strike" in sentence(first.stderr)
    for done in later:
        again = "cannot configure again what failed before (restart containerd"
        assert sentence(done.stderr).startswith(again)
    assert (after - count, starts(node) - after) == (1, 0)  # the try never came to be started
    assert served(node) == before
    assert node.installer("status").returncode == 3, "the ledger only remembers the failed plan"
    _unit_says(node, "")
    node.run(["rm", DROP_IN])
    node.installer("install", *SOURCE, "--retry", check=True)
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


def test_a_config_that_takes_cri_down_is_rolled_back_with_the_reason(containerd_node: Node) -> None:
    node, files, before = containerd_node, snapshot(containerd_node), served(containerd_node)
    lost = node.read(CONTAINERD).replace('= "runc"', '= "gone"').replace("= 'runc'", "= 'gone'")
    node.write("/run/lost.toml", lost)
    # A real containerd whose CRI really does not load, as soon as our config is in its place.
    start = f"grep -q nvidia-container-runtime {CONTAINERD} && exec containerd --config /run/lost.toml"
    _unit_says(node, f"[Service]\nExecStart=\nExecStart=/bin/sh -c '{start}; exec containerd'")
    count, began = starts(node), time.monotonic()

    done = node.installer("install", *SOURCE, "--timeout", str(2 * PATIENCE_S))
    took_s = time.monotonic() - began
    again = node.installer("install", *SOURCE, "--timeout", str(2 * PATIENCE_S))

    assert (done.returncode, again.returncode) == (1, 1)
    assert "no corresponding runtime configured" in sentence(done.stderr)
    assert 'default_runtime_name = \\"gone\\"' in done.stderr
    assert took_s < PATIENCE_S  # what is hopeless is not waited for
    assert starts(node) - count == 2
    assert served(node) == before
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


def test_no_verb_restarts_into_what_somebody_has_broken_since(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    node.run(["mkdir", "-p", "/etc/containerd/conf.d"])
    node.run(["ln", "-s", "/dev/null", "/etc/containerd/conf.d/masked.toml"])  # reads as empty
    _with_an_import(node)
    files = snapshot(node)
    node.installer("install", *SOURCE, check=True)
    text, pid = node.read(CONTAINERD), node.pid_of()
    no_file = "/etc/containerd/conf.d/a.toml"
    texts = (
        (IMPORTED, 'oom_score = "none"\n'),
        (CONTAINERD, text.replace(IMPORTS, 'imports = ["/etc/containerd/absent.toml"]\n')),
    )

    def refused(refused_config: str, would_not_start: str) -> None:
        written = snapshot(node)
        undone = node.installer("uninstall")
        renamed = node.installer("install", *SOURCE, "--runtime-name", "gpu")
        assert (undone.returncode, renamed.returncode) == (4, 1), (undone.stderr, renamed.stderr)
        assert would_not_start in sentence(undone.stderr)
        assert refused_config in sentence(renamed.stderr)
        assert but_the_ledger(snapshot(node)) == but_the_ledger(written)
        assert node.pid_of() == pid
        assert "nvidia" in cri.status().runtimes

    for path, broken in texts:
        whole = node.read(path)
        node.write(path, broken)
        refused("it refuses the config it has: ", "it would not start again with its present config: ")
        node.write(path, whole)
    for command in (["ln", "-s", "/srv/gone.toml", no_file], ["mkdir", no_file]):
        node.run(command)
        refused(no_file, no_file)
        node.run(["rm", "-d", no_file])
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.sampled(16)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_file_that_is_broken_while_a_restart_is_waited_for_is_seen(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    _with_an_import(node)
    files = snapshot(node)
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    pod = cri.run_pod()
    cri.create(pod, Container())  # a restart waits for what is created and not started yet
    pid, before = node.pid_of(), node.read(CONTAINERD)
    running = node.start_installer(verb, *(SOURCE if verb == "install" else ()))
    until(lambda: node.read(CONTAINERD) != before, lambda: running.log)
    node.write(IMPORTED, 'oom_score = "none"\n')

    returncode = running.wait()

    assert returncode == {"install": 1, "uninstall": 4}[verb], running.log
    assert f"another process has just written {IMPORTED}: " in sentence(running.log)
    assert node.pid_of() == pid
    cri.remove_pod(pod)
    node.write(IMPORTED, "oom_score = -900\n")
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.sampled(16)
def test_runtimes_that_the_engine_cannot_see_are_never_configured(node: Node) -> None:
    files, pid = snapshot(node), node.pid_of()
    installer = f"/usr/bin/python3 -m installer install {' '.join(SOURCE)}"
    hidden = f"mkdir /usr/local/nvidia && mount -t tmpfs -o mode=755 none /usr/local/nvidia && {installer}"

    done = node.run(["unshare", "--mount", "sh", "-c", hidden], check=False)

    assert done.returncode == 1, done.stderr
    unseen = "does not see /usr/local/nvidia/toolkit/nvidia-container-runtime: it has other mounts"
    assert unseen in sentence(done.stderr)
    assert node.pid_of() == pid
    node.run(["rmdir", "/usr/local/nvidia"])
    assert snapshot(node) == files


def test_without_a_way_to_systemd_an_engine_is_refused_and_left_as_it_is(containerd_node: Node) -> None:
    containerd_node.run(["mkdir", "/run/nothing"])
    node, files, pid = containerd_node, snapshot(containerd_node), containerd_node.pid_of()
    hidden = ("--mount", "/run/dbus=/run/nothing", "--mount", "/run/systemd=/run/nothing")

    done = node.installer("install", *SOURCE, *hidden)

    assert done.returncode == 1, done.stderr
    assert sentence(done.stderr).startswith("cannot reach systemd (")
    assert (snapshot(node), node.pid_of()) == (files, pid)


@pytest.mark.sampled(16)
def test_a_stop_at_any_moment_leaves_an_engine_that_serves_and_files_as_promised(node: Node) -> None:
    files, before = snapshot(node), served(node)
    chance = random.Random(20261121)  # noqa: S311 - moments, not secrets
    for turn in range(STOPS):
        verb = ("run", "install")[turn % 2]
        process = node.start_installer(verb, *SOURCE, "--set-as-default")
        time.sleep(chance.uniform(0.0, 0.9))  # the moment is the point
        for _ in range(1 + turn % 3):
            if process.running:
                process.terminate()
        code = process.wait(30)
        kept = code == 0 and verb == "install"

        assert code in {0, 1, -15}, process.log  # -15: before its first line, nothing was done
        assert served(node)[1] == ("nvidia" if kept else before[1]), process.log
        if kept:
            node.installer("uninstall", check=True)
        assert snapshot(node) == files, (verb, process.log)
        assert served(node) == before
    assert node.show(node.unit, "ActiveState") == "active"


@pytest.mark.sampled(16)
def test_an_uninstall_right_after_a_kill_is_not_fooled_by_a_restart_still_going_on(node: Node) -> None:
    files, before = snapshot(node), served(node)
    for delay_s in (0, 0.02, 0.045, 0.075):  # the restart takes some 80 ms
        process = node.start_installer("install", *SOURCE)
        process.wait_for("config written")
        time.sleep(delay_s)
        process.kill()
        process.wait()

        done = node.installer("uninstall", check=True)

        assert snapshot(node) == files
        assert served(node) == before, done.stderr


@pytest.mark.sampled(16)
def test_a_stop_while_the_undo_is_at_work_changes_nothing(node: Node) -> None:
    files, before = snapshot(node), served(node)
    for event in ("stop requested", "config written", '"event": "engine re'):
        process = node.start_run(*SOURCE)
        process.terminate()
        with suppress(AssertionError):  # it was quicker than we look
            process.wait_for(event)
        if process.running:
            process.terminate()

        assert process.wait() == 0, process.log
        assert (snapshot(node), served(node)) == (files, before)


# containerd is restarted at the first look at which it is creating no container.
IDLE = (*SOURCE, "--restart-mode", "when-idle")
TEXTFILE, FEATURES = "/var/lib/toolkit.prom", "/etc/features/toolkit"
TOLD_TO = ("--metrics-textfile", TEXTFILE, "--nfd-features", FEATURES)


def test_a_restart_is_pending_until_the_engine_is_idle_and_an_undo_before_it_restarts_nothing(
    containerd_node: Node, cri: Cri
) -> None:
    node, ready = containerd_node, containerd_node.path("/run/nvidia/toolkit/ready")
    node.path(FEATURES).parent.mkdir()
    files, pid, before = snapshot(node), node.pid_of("containerd"), served(node)
    creating = cri.create(cri.run_pod(), Container(command=("/bin/sleep", "100000")))
    process = node.start_run(*IDLE, *TOLD_TO)
    process.wait_for("restart pending")
    process.terminate()
    assert process.wait() == 0, process.log
    assert (snapshot(node), node.pid_of("containerd")) == (files, pid)

    process = node.start_run(*IDLE, *TOLD_TO)
    process.wait_for("restart pending")
    plan, status = node.installer("plan", *IDLE), node.installer("status")

    reason = (
        f"cannot restart containerd yet (it has created containers that are not started: {creating[:12]})"
    )
    assert "nvidia-container-runtime" in node.read(CONTAINERD)
    assert (node.pid_of("containerd"), served(node)) == (pid, before)
    assert (plan.returncode, reason in plan.stdout) == (10, True), plan.stdout
    assert (status.returncode, "pending since the last install: its restart" in status.stdout) == (1, True)
    assert reason in node.installer("status", "--ready").stdout
    assert not ready.exists()
    assert 'engine_restart_pending{engine="containerd"} 1' in node.read(TEXTFILE)
    assert "/engine-containerd=pending\n" in node.read(FEATURES)

    cri.call("RuntimeService/StartContainer", message((1, creating)))
    until(ready.exists, lambda: f"{node.installer('status', '--ready').stdout} {process.log}")

    assert served(node)[0] >= OURS
    assert "/engine-containerd=true\n" in node.read(FEATURES)
    assert process.log.count('"event": "engine re') == 1, process.log
    process.terminate()
    assert process.wait() == 0, process.log
    assert (snapshot(node), served(node)) == (files, before)
    assert cri.exec(creating, "echo", "alive").stdout == "alive\n"
    cri.create(cri.run_pod(), Container())
    process = node.start_run(*IDLE)
    process.wait_for("restart pending")
    node.installer("reconcile", check=True)
    assert served(node)[0] >= OURS, "who asks has no restart put off"
    process.terminate()
    assert process.wait() == 0, process.log


# What a site has its GPU nodes checked by ahead of each start of the engine.
ONLY_WITH_US = "/bin/grep -rq nvidia /etc/containerd"
NEVER = "/bin/grep -rq nvidia /etc/hostname /etc/none"


def test_a_containerd_that_does_not_start_without_us_has_our_runtimes_again(containerd_node: Node) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    written = snapshot(node)
    _unit_says(node, f"[Service]\nExecStartPre={ONLY_WITH_US}")

    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    node.cri.wait()
    assert served(node)[0] >= OURS
    assert but_the_ledger(snapshot(node)) == but_the_ledger(written)
    told = sentence(kept.stderr)
    assert told.startswith("cannot undo our edits of containerd (it does not run as before without them: ")
    assert "its ExecStartPre /bin/grep exited with status 1" in told
    assert told.endswith("so it has them again; correct that, then run toolkit-installer uninstall again")
    status = node.installer("status")
    assert status.returncode == 1
    assert "it does not run as before without them" in status.stdout

    _unit_says(node, f"[Service]\nExecStartPre={NEVER}")
    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert but_the_ledger(snapshot(node)) == but_the_ledger(written), "which stay where neither starts"
    told = sentence(kept.stderr)
    assert "(it does not run as before without them: " in told
    assert ", nor does it start with them again (" in told
    assert told.endswith("correct that, start containerd.service, then run toolkit-installer uninstall again")
    _unit_says(node, "[Service]")
    node.restart_engine()
    assert served(node)[0] >= OURS
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
    assert not served(node)[0] & OURS


def test_an_uninstall_does_not_restart_into_a_cri_that_is_switched_off_nor_one_that_runs_without(
    containerd_node: Node,
) -> None:
    node, before = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    written, pid = node.read(CONTAINERD), node.pid_of()
    new = "" if node.containerd_version.startswith("1.") else ', "io.containerd.cri.v1.runtime"'
    off = f'disabled_plugins = ["io.containerd.grpc.v1.cri"{new}]\n'
    node.write(CONTAINERD, off + written)

    plan, told = node.installer("plan", *SOURCE), node.installer("status")
    kept = node.installer("uninstall")

    assert (plan.returncode, told.returncode, kept.returncode) == (1, 1, 4), kept.stderr
    assert "CRI is switched off" in told.stdout, told.stdout
    assert "CRI is switched off" in kept.stderr
    assert node.pid_of() == pid
    assert served(node)[0] >= {"nvidia"}
    node.restart("containerd")
    pid = node.pid_of()
    node.installer("uninstall", check=True)
    assert node.pid_of() == pid, "there is nothing for it to read"
    assert node.installer("status").returncode == 3
    node.write(CONTAINERD, node.read(CONTAINERD).removeprefix(off))
    assert snapshot(node) == before
