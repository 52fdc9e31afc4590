"""A reload that goes wrong, and stops at any moment: the engine serves and the files are as promised."""

import json
import random
import time
from collections.abc import Callable

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.cri import Container, Cri
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import but_the_ledger, snapshot
from tests.engines.told import sentence, served, starts

pytestmark = pytest.mark.any_version

SOURCE = ("--toolkit-source", ARTIFACTS)
DROP_IN = "/run/systemd/system/containerd.service.d/other.conf"
STOPS = 9  # on each of six kinds of nodes


def serve_from(node: Node, config: str, cri: Cri) -> None:
    """Let containerd run from another config file than the one at the usual place."""
    node.write(DROP_IN, f"[Service]\nExecStart=\nExecStart=/usr/bin/containerd --config {config}\n")
    node.run(["systemctl", "daemon-reload"])
    node.restart("containerd")
    cri.wait()


def test_the_config_on_the_command_line_of_the_running_engine_is_the_one_that_is_edited(
    containerd_node: Node, cri: Cri
) -> None:
    containerd_node.run(["cp", CONTAINERD, "/opt/mine.toml"])
    serve_from(containerd_node, "/opt/mine.toml", cri)
    files = snapshot(containerd_node)

    containerd_node.installer("install", *SOURCE, check=True)

    assert "nvidia-container-runtime" in containerd_node.read("/opt/mine.toml")
    assert "nvidia-container-runtime" not in containerd_node.read(CONTAINERD)
    assert set(cri.status().runtimes) == {"runc", "nvidia", "nvidia-cdi", "nvidia-legacy"}
    containerd_node.installer("uninstall", check=True)
    assert snapshot(containerd_node) == files


def test_a_config_that_the_unit_names_for_the_next_start_is_not_restarted_into(
    containerd_node: Node, cri: Cri
) -> None:
    containerd_node.run(["cp", CONTAINERD, "/opt/mine.toml"])
    line = "ExecStart=/usr/bin/containerd --config /opt/mine.toml"
    containerd_node.write(DROP_IN, f"[Service]\nExecStart=\n{line}\n")
    containerd_node.run(["systemctl", "daemon-reload"])
    files, pid = snapshot(containerd_node), containerd_node.pid_of("containerd")

    refused = containerd_node.installer("install", *SOURCE)

    assert refused.returncode == 1
    assert "at its next start containerd.service gives it --config /opt/mine.toml" in sentence(refused.stderr)
    assert "restart containerd.service at a time of your choice" in sentence(refused.stderr)
    assert snapshot(containerd_node) == files
    assert containerd_node.pid_of("containerd") == pid
    containerd_node.restart("containerd")
    cri.wait()
    containerd_node.installer("install", *SOURCE, check=True)
    containerd_node.installer("uninstall", check=True)
    assert snapshot(containerd_node) == files


def test_an_edit_of_another_runtime_that_no_start_has_read_yet_fails_nothing(
    containerd_node: Node, cri: Cri
) -> None:
    table = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]'
    plain = f'version = 2\n{table}\nruntime_type = "io.containerd.runc.v2"\n'
    containerd_node.write(CONTAINERD, plain)
    containerd_node.restart("containerd")
    cri.wait()
    edited = f"{plain}options.SystemdCgroup = true\n"
    containerd_node.write(CONTAINERD, edited)

    containerd_node.installer("install", *SOURCE, check=True)

    containerd_node.write(CONTAINERD, containerd_node.read(CONTAINERD).replace("true", "false", 1))
    containerd_node.installer("uninstall", check=True)
    assert containerd_node.read(CONTAINERD) == edited.replace("true", "false")


def test_of_two_containerds_the_one_behind_the_socket_is_restarted(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    config = node.read(CONTAINERD).replace("/var/lib/containerd", "/var/lib/other")
    node.write(
        "/etc/other/config.toml", f'state = "/run/other"\n{config}'.replace("# Written", "# Also written")
    )
    node.write(
        "/run/systemd/system/other.service",
        "[Service]\nType=notify\nExecStart=/usr/bin/containerd --config /etc/other/config.toml"
        " --address /run/other/containerd.sock\nDelegate=yes\nKillMode=process\nRestart=always\n",
    )
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", "other"])
    files, pids = snapshot(node), (node.pid_of("containerd"), node.pid_of("other"))
    socket = ("--socket", "containerd=/run/other/containerd.sock")

    node.installer("install", *SOURCE, "--runtime", "containerd", *socket, check=True)

    assert node.pid_of("containerd") == pids[0]
    assert node.pid_of("other") != pids[1]
    assert "nvidia-container-runtime" in node.read("/etc/other/config.toml")
    assert set(cri.status().runtimes) == {"runc"}
    assert "nvidia" in Cri(node.root / "run/other/containerd.sock").status().runtimes
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
    assert node.pid_of("containerd") == pids[0]


@pytest.mark.any_version
def test_an_undo_of_a_masked_unit_is_refused_before_anything_is_written(containerd_node: Node) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    node.run(["ln", "-s", "/dev/null", "/etc/systemd/system/containerd.service"])
    node.run(["systemctl", "daemon-reload"])
    installed, pid = snapshot(node), node.pid_of("containerd")

    refused = node.installer("uninstall")

    assert refused.returncode == 4, refused.stderr
    assert "its unit containerd.service is masked" in sentence(refused.stderr)
    assert but_the_ledger(snapshot(node)) == but_the_ledger(installed)
    assert node.pid_of("containerd") == pid
    node.run(["rm", "/etc/systemd/system/containerd.service"])
    node.run(["systemctl", "daemon-reload"])
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.parametrize("again", [False, True], ids=["undone at once", "installed again"])
def test_an_engine_that_its_owner_has_moved_to_another_socket_is_found_there(
    containerd_node: Node, *, again: bool
) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    node.run(["mkdir", "-p", "/run/moved"])
    start = "/usr/bin/containerd --address /run/moved/api.sock"
    node.write(DROP_IN, f"[Service]\nExecStart=\nExecStart={start}\n")
    node.run(["systemctl", "daemon-reload"])
    node.restart("containerd")
    moved = Cri(node.root / "run/moved/api.sock")
    moved.wait()
    pid = node.pid_of("containerd")

    if again:
        renamed = node.installer("install", *SOURCE, "--runtime-name", "gpu")
        assert renamed.returncode == 0, renamed.stderr
        assert "gpu" in moved.status().runtimes
    undone = node.installer("uninstall")

    assert undone.returncode == 0, undone.stderr
    assert node.pid_of("containerd") != pid
    assert set(moved.status().runtimes) == {"runc"}
    assert snapshot(node) == files


def test_a_node_that_goes_down_keeps_everything(node: Node) -> None:
    unit = f"[Service]\nExecStart=/usr/bin/python3 -m installer run --toolkit-source {ARTIFACTS}\n"
    node.write("/run/systemd/system/toolkit.service", unit)
    before = snapshot(node)
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", "toolkit"])
    _until((node.root / "run/nvidia/toolkit/ready").exists)
    files = {path: text for path, text in snapshot(node).items() if not path.startswith("/run")}

    node.shut_down_and_boot()

    assert {path: text for path, text in snapshot(node).items() if not path.startswith("/run")} == files
    if node.engine == "containerd":
        node.cri.wait()
    assert "nvidia" in served(node)[0]
    node.installer("uninstall", check=True)
    assert {path: text for path, text in before.items() if not path.startswith("/run")} == snapshot(node)


def test_a_config_that_the_engine_itself_refuses_never_reaches_its_place(
    containerd_node: Node, cri: Cri
) -> None:
    text = containerd_node.read(CONTAINERD)
    broken = text.replace('root = "/var', 'imports = ["/opt/gone.toml"]\nroot = "/var')
    broken = broken.replace("root = '/var", "imports = ['/opt/bad.toml']\nroot = '/var")
    containerd_node.write(CONTAINERD, broken)
    containerd_node.write("/opt/bad.toml", "version = 3\nroot = [1]\n")  # 2.x lets a missing file pass
    count = starts(containerd_node)

    done = containerd_node.installer("install", *SOURCE)

    assert done.returncode == 1, done.stderr
    assert (
        "cannot configure containerd in /etc/containerd/config.toml (it refuses the config it has: "
        in sentence(done.stderr)
    )
    assert containerd_node.read(CONTAINERD) == broken
    assert starts(containerd_node) == count
    assert set(cri.status().runtimes) == {"runc"}


def test_a_failed_start_is_rolled_back_and_twenty_more_restart_nothing(
    containerd_node: Node,
) -> None:
    # What dies is not the program that has read the config before: the roll-back has to cope.
    files, before = snapshot(containerd_node), served(containerd_node)
    containerd_node.write(
        DROP_IN,
        "[Service]\nExecStartPre=/bin/sh -c '! grep -q nvidia-container-runtime /etc/containerd/config.toml"
        " || { echo level=fatal the disk is on strike; exit 1; }'\n",
    )
    containerd_node.run(["systemctl", "daemon-reload"])
    count = starts(containerd_node)

    first = containerd_node.installer("install", *SOURCE)
    after = starts(containerd_node)
    later = [containerd_node.installer("install", *SOURCE) for _ in range(19)]

    assert [done.returncode for done in (first, *later)] == [1] * 20
    assert "the disk is on strike" in sentence(first.stderr)
    for done in later:
        assert sentence(done.stderr).startswith(
            "cannot configure again what failed before (restart containerd"
        )
    assert (after - count, starts(containerd_node) - after) == (1, 0)  # the try never came to be started
    assert served(containerd_node) == before
    assert containerd_node.installer("status").returncode == 1
    containerd_node.run(["rm", DROP_IN])
    containerd_node.run(["systemctl", "daemon-reload"])
    retried = containerd_node.installer("install", *SOURCE, "--retry")
    assert retried.returncode == 0, retried.stderr
    containerd_node.installer("uninstall", check=True)
    assert snapshot(containerd_node) == files


def test_a_start_that_fails_without_a_log_line_is_not_explained_by_the_process_before(
    containerd_node: Node, cri: Cri
) -> None:
    containerd_node.write(
        DROP_IN,
        "[Service]\nExecStop=/bin/sh -c 'echo level=error goodbye; kill $MAINPID'\n"
        f"ExecStartPre=/bin/sh -c '! grep -q nvidia-container-runtime {CONTAINERD}'\n",
    )
    containerd_node.run(["systemctl", "daemon-reload"])
    files = snapshot(containerd_node)

    done = containerd_node.installer("install", *SOURCE)

    assert done.returncode == 1, done.stderr
    assert "exit-code): its ExecStartPre /bin/sh exited with status 1; " in sentence(done.stderr)
    assert set(cri.status().runtimes) == {"runc"}
    containerd_node.installer("uninstall", check=True)
    assert snapshot(containerd_node) == files


def test_a_config_that_takes_cri_down_is_rolled_back_with_the_reason(containerd_node: Node) -> None:
    files, before = snapshot(containerd_node), served(containerd_node)
    lost = containerd_node.read(CONTAINERD).replace('= "runc"', '= "gone"').replace("= 'runc'", "= 'gone'")
    containerd_node.write("/run/lost.toml", lost)
    # A real containerd whose CRI really does not load, as soon as our config is in its place.
    start = f"grep -q nvidia-container-runtime {CONTAINERD} && exec containerd --config /run/lost.toml"
    containerd_node.write(
        DROP_IN, f"[Service]\nExecStart=\nExecStart=/bin/sh -c '{start}; exec containerd'\n"
    )
    containerd_node.run(["systemctl", "daemon-reload"])
    count, began = starts(containerd_node), time.monotonic()

    done = containerd_node.installer("install", *SOURCE, "--timeout", "90")
    took_s = time.monotonic() - began
    again = containerd_node.installer("install", *SOURCE, "--timeout", "90")

    assert (done.returncode, again.returncode) == (1, 1)
    assert "no corresponding runtime configured" in sentence(done.stderr)
    assert 'default_runtime_name = \\"gone\\"' in done.stderr
    assert took_s < 60  # what is hopeless is not waited for
    assert starts(containerd_node) - count == 2
    assert served(containerd_node) == before
    containerd_node.installer("uninstall", check=True)
    assert snapshot(containerd_node) == files


IMPORTED = "/etc/containerd/conf.d/site.toml"


def test_no_verb_restarts_into_what_somebody_has_broken_since(containerd_node: Node, cri: Cri) -> None:
    node, fine = containerd_node, 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
    node.write(IMPORTED, "oom_score = -900\n")
    node.write(CONTAINERD, fine + node.read(CONTAINERD))
    node.restart("containerd")
    cri.wait()
    files = snapshot(node)
    node.installer("install", *SOURCE, check=True)
    text, pid = node.read(CONTAINERD), node.pid_of("containerd")
    breaks = [
        (IMPORTED, 'oom_score = "none"\n'),
        (CONTAINERD, text.replace(fine, 'imports = ["/etc/containerd/absent.toml"]\n')),
        (CONTAINERD, text.replace(fine, f"{fine}required_plugins = 1\n")),
    ]

    for path, broken in breaks:
        whole = node.read(path)
        node.write(path, broken)
        written = snapshot(node)
        undone = node.installer("uninstall")
        renamed = node.installer("install", *SOURCE, "--runtime-name", "gpu")

        assert (undone.returncode, renamed.returncode) == (4, 1), (undone.stderr, renamed.stderr)
        assert "it would not come up again with the config it has: " in sentence(undone.stderr)
        assert "it refuses the config it has: " in sentence(renamed.stderr)
        assert but_the_ledger(snapshot(node)) == but_the_ledger(written)
        assert node.pid_of("containerd") == pid
        assert "nvidia" in cri.status().runtimes
        node.write(path, whole)

    node.installer("uninstall", check=True)
    assert snapshot(node) == files


def test_no_verb_restarts_into_an_import_that_is_no_file(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    node.write(IMPORTED, "oom_score = -900\n")
    node.run(["ln", "-s", "/dev/null", "/etc/containerd/conf.d/masked.toml"])  # reads as empty
    node.write(CONTAINERD, 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + node.read(CONTAINERD))
    node.restart("containerd")
    cri.wait()
    files = snapshot(node)
    node.installer("install", *SOURCE, check=True)
    written, pid = snapshot(node), node.pid_of("containerd")
    name = "/etc/containerd/conf.d/a.toml"

    for command in (["ln", "-s", "/srv/gone.toml", name], ["mkdir", name]):
        node.run(command)
        undone = node.installer("uninstall")
        renamed = node.installer("install", *SOURCE, "--runtime-name", "gpu")

        assert (undone.returncode, renamed.returncode) == (4, 1), (undone.stderr, renamed.stderr)
        assert name in sentence(undone.stderr)
        assert name in sentence(renamed.stderr)
        assert node.pid_of("containerd") == pid
        assert "nvidia" in cri.status().runtimes
        node.run(["rm", "-d", name])
        assert but_the_ledger(snapshot(node)) == but_the_ledger(written)

    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_file_that_is_broken_while_a_restart_is_waited_for_is_seen(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    node.write(IMPORTED, "oom_score = -900\n")
    node.write(CONTAINERD, 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + node.read(CONTAINERD))
    node.restart("containerd")
    cri.wait()
    files = snapshot(node)
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    pod = cri.run_pod()
    cri.create(pod, Container())  # a restart waits for what is created and not started yet
    pid, before = node.pid_of("containerd"), node.read(CONTAINERD)
    running = node.start_installer(verb, *(SOURCE if verb == "install" else ()))
    _until(lambda: node.read(CONTAINERD) != before)
    node.write(IMPORTED, 'oom_score = "none"\n')

    returncode = running.wait()

    assert returncode == {"install": 1, "uninstall": 4}[verb], running.log
    assert f"another process has just written {IMPORTED}: " in sentence(running.log)
    assert node.pid_of("containerd") == pid
    cri.remove_pod(pod)
    node.write(IMPORTED, "oom_score = -900\n")
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


def test_a_drop_in_of_ours_that_was_moved_and_linked_to_goes_with_the_link(
    containerd_node: Node, cri: Cri
) -> None:
    node, ours = containerd_node, "/etc/containerd/conf.d/99-nvidia.toml"
    node.write(IMPORTED, "oom_score = -900\n")
    node.write(CONTAINERD, 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + node.read(CONTAINERD))
    node.restart("containerd")
    cri.wait()
    files = snapshot(node)
    options = ("--runtime", "containerd", "--drop-in-config", ours)
    node.installer("install", *SOURCE, *options, check=True)
    merges = node.containerd_version.startswith("2.")
    moved = ours if merges else IMPORTED  # 1.x takes no drop-in: then it is a file of somebody's, and stays
    node.run(["mv", moved, "/srv/x.toml"])
    node.run(["ln", "-s", "/srv/x.toml", moved])
    node.restart("containerd")
    cri.wait()

    node.installer("uninstall", check=True)

    left = snapshot(node)
    assert (moved not in left, (node.root / "srv/x.toml").exists()) == (merges, not merges)
    assert {**left, moved: ""} == {**files, moved: ""}
    node.restart("containerd")
    cri.wait()
    assert set(cri.status().runtimes) == {"runc"}


def test_runtimes_that_the_engine_cannot_see_are_never_configured(node: Node) -> None:
    files, pid = snapshot(node), node.pid_of(f"{node.engine}.service")
    installer = f"/usr/bin/python3 -m installer install --toolkit-source {ARTIFACTS}"
    hidden = f"mkdir /usr/local/nvidia && mount -t tmpfs -o mode=755 none /usr/local/nvidia && {installer}"

    done = node.run(["unshare", "--mount", "sh", "-c", hidden], check=False)

    assert done.returncode == 1, done.stderr
    assert "does not see /usr/local/nvidia/toolkit/nvidia-container-runtime: it has other mounts" in sentence(
        done.stderr
    )
    assert node.pid_of(f"{node.engine}.service") == pid
    node.run(["rmdir", "/usr/local/nvidia"])
    assert snapshot(node) == files


def test_a_run_that_failed_before_is_refused_without_a_write(containerd_node: Node, cri: Cri) -> None:
    containerd_node.run(["cp", CONTAINERD, "/opt/frozen.toml"])
    serve_from(containerd_node, "/opt/frozen.toml", cri)
    options = ("--config", f"containerd={CONTAINERD}", "--runtime", "containerd", "--timeout", "2")
    assert containerd_node.installer("run", *SOURCE, *options).returncode == 1
    files, count = snapshot(containerd_node, times=True), starts(containerd_node)

    again = containerd_node.installer("run", *SOURCE, *options)
    other = containerd_node.installer("plan", *SOURCE, *options, "--runtime-name", "gpu")

    assert "cannot configure again what failed before (verify that containerd" in sentence(again.stderr)
    assert snapshot(containerd_node, times=True) == files
    assert starts(containerd_node) == count
    assert "failed before" not in other.stdout
    containerd_node.installer("uninstall", check=True)
    assert not (containerd_node.root / "usr/local/nvidia").exists()


def test_dockerd_started_with_runtimes_on_its_command_line_is_reported_not_fought(docker_node: Node) -> None:
    docker_node.write(
        "/run/systemd/system/docker.service.d/flags.conf",
        "[Service]\nExecStart=\nExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock"
        " $DOCKER_OPTS --add-runtime other=/usr/sbin/runc\n",
    )
    docker_node.run(["systemctl", "daemon-reload"])
    docker_node.restart("docker")
    text = docker_node.read(DOCKER)

    done = docker_node.installer("install", *SOURCE)

    assert done.returncode == 1
    assert "started with --add-runtime" in sentence(done.stderr)
    assert docker_node.read(DOCKER) == text
    assert "other" in served(docker_node)[0]


def test_a_bus_that_is_gone_leaves_systemctl(containerd_node: Node, cri: Cri) -> None:
    files = snapshot(containerd_node)
    # systemctl finds systemd where its own library looks, the installer where the mounts are.
    hidden = ("--mount", "/run/dbus=/run/nothing", "--mount", "/run/systemd=/run/nothing")

    containerd_node.installer("install", *SOURCE, *hidden, check=True)

    assert set(cri.status().runtimes) == {"runc", "nvidia", "nvidia-cdi", "nvidia-legacy"}
    containerd_node.installer("uninstall", *hidden, check=True)
    assert snapshot(containerd_node) == files


def test_a_stop_at_any_moment_leaves_an_engine_that_serves_and_files_as_promised(node: Node) -> None:
    files, before = snapshot(node), served(node)
    chance = random.Random(20261121)  # noqa: S311 - moments, not secrets
    outcomes: list[int] = []
    for turn in range(STOPS):
        verb = ("run", "install")[turn % 2]
        process = node.start_installer(verb, *SOURCE, "--set-as-default")
        time.sleep(chance.uniform(0.0, 0.9))  # the moment is the point
        for _ in range(1 + turn % 3):
            if process.running:
                process.terminate()
        code = process.wait(30)
        outcomes.append(code)
        kept = code == 0 and verb == "install"

        assert code in {0, 1, -15}, process.log  # -15: before its first line, nothing was done
        assert served(node)[1] == ("nvidia" if kept else before[1]), process.log
        if kept:
            node.installer("uninstall", check=True)
        assert snapshot(node) == files, (verb, process.log)
        assert served(node) == before
    assert node.show(f"{node.engine}.service", "ActiveState") == "active"


def test_an_uninstall_right_after_a_kill_is_not_fooled_by_a_restart_that_is_still_going_on(
    node: Node,
) -> None:
    files, before = snapshot(node), served(node)
    for turn in range(6):
        process = node.start_installer("install", *SOURCE)
        process.wait_for("config written")
        time.sleep(0.015 * turn)  # the restart takes some 80 ms
        process.kill()
        process.wait()

        done = node.installer("uninstall")

        assert done.returncode == 0, done.stderr
        assert snapshot(node) == files
        assert served(node) == before, done.stderr


def test_a_stop_while_the_undo_is_at_work_changes_nothing(node: Node) -> None:
    files, before = snapshot(node), served(node)
    for event in ("stop requested", "config written", '"event": "engine re'):
        process = node.start_installer("run", *SOURCE)
        process.wait_for("waiting for a signal")
        process.terminate()
        _again(process.wait_for, event)
        if process.running:
            process.terminate()

        assert process.wait() == 0, process.log
        assert snapshot(node) == files
        assert served(node) == before


def _again(wait_for: Callable[[str], None], event: str) -> None:
    try:
        wait_for(event)
    except AssertionError:  # it was quicker than we look
        return


def test_a_hangup_reconciles_and_closed_streams_are_survived(node: Node) -> None:
    files = snapshot(node)
    command = "exec /usr/bin/python3 -m installer run --toolkit-source /artifacts >&- 2>&- <&-"
    process = node.start(["/bin/sh", "-c", command])
    ready = node.root / "run/nvidia/toolkit/ready"
    _until(ready.exists)
    first = json.loads(ready.read_text())
    path = DOCKER if node.engine == "docker" else CONTAINERD
    original = node.read(path)
    node.run(["sh", "-c", f"rm {path}; cp -a /usr/local/nvidia/.toolkit-installer/backups/* {path}"])

    _send_sighup(process.signal)
    _until(lambda: ready.exists() and json.loads(ready.read_text()) != first)

    assert node.read(path) == original
    process.terminate()
    assert process.wait() == 0
    assert {name: text for name, text in snapshot(node).items() if name != path} == {
        name: text for name, text in files.items() if name != path
    }


def _send_sighup(send: Callable[..., None]) -> None:
    import signal

    send(signal.SIGHUP)


def _until(done: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
