"""What an admin has prepared for a start of his own: no restart of ours brings it into force.

An undo takes our keys out and leaves that restart, and the toolkit until then, to him.
"""

import json
import re
import shutil

import pytest

from installer.config_text import Syntax, WantedKey
from installer.config_text.change import apply
from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.conftest import Containerd
from tests.engines.cri import Container, Cri
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import bad, but_the_ledger, doctor, sentence, served, snapshot, warned
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

DROP_IN = "/run/systemd/system/containerd.service.d/site.conf"
PROGRAM = "/usr/bin/containerd"
MINE = "/opt/mine.toml"
OURS = "nvidia-container-runtime"
# What the unit says, and what is told of it. The same places in other words move nothing.
UNITS = {
    f"[Service]\nExecStart=\nExecStart={PROGRAM} --config {MINE}": f"gives it --config {MINE}, and it runs with ",
    f"[Service]\nExecStart=\nExecStart=/usr/bin/env GODEBUG=x=1 {PROGRAM} --root /srv/root": "gives it --root /srv/root",
    f"[Service]\nExecStart=\nExecStart={PROGRAM} --bogus-flag": "flag provided but not defined",
    "[Service]\nKillMode=mixed": "KillMode=mixed",
    "[Unit]\nRefuseManualStop=yes": "RefuseManualStop=yes",
    "[Unit]\nConditionPathExists=/opt/flag": "it again: ConditionPathExists=/opt/flag does not hold)",
    "[Service]\nEnvironmentFile=/opt/flag": "it again: its EnvironmentFile /opt/flag is not there)",
}
SERVED_BY_US = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
SAME_PLACES = f"[Service]\nExecStart=\nExecStart={PROGRAM} --config={CONTAINERD} --state /run/containerd"
HARMLESS = (
    "EnvironmentFile=-/opt/flag\nExecStartPre=-/opt/flag\nExecStartPre=/usr/bin/test -d /etc\n"
    "[Unit]\nConditionPathExists=!/opt/flag\nConditionPathExists=|/opt/flag\nConditionPathExists=|/etc"
)
SETTINGS = {
    ("root", "/srv/root"): "root /srv/root, and it runs with /var/lib/containerd",
    ("state", "/run/other"): "state /run/other, and it runs with /run/containerd",
    ("address", "/run/o.sock"): "address /run/o.sock, and it runs with /run/containerd/containerd.sock",
}


def _edit(node: Node, text: str) -> None:
    node.write(DROP_IN, f"{text}\n")
    node.run(["systemctl", "daemon-reload"])


def _moved(text: str, key: str, value: str) -> str:
    """Return a config of containerd's with one of its places elsewhere."""
    place, rest = f'{key} = "{value}"', re.sub(rf"^ *{key} = .*\n", "", text, flags=re.MULTILINE)
    return f"{rest}\n[grpc]\n{place}\n" if key == "address" else f"{place}\n{rest}"


class Prepared:
    """A node, and what has to be as it was after a refusal: files, the engine's process, a live pod."""

    def __init__(self, node: Node, cri: Cri, verb: str) -> None:
        self.node, self.cri, self.verb = node, cri, verb
        if verb == "uninstall":
            node.installer("install", *SOURCE, check=True)
        self.pod = cri.run_pod()
        self.container = cri.start_container(self.pod)
        self.pid = node.pid_of()

    def refuses(self, words: str) -> None:
        files = snapshot(self.node)
        done = self.node.installer(self.verb, *(SOURCE if self.verb == "install" else ()))

        assert done.returncode == {"install": 1, "uninstall": 4}[self.verb], done.stderr
        assert words in sentence(done.stderr), done.stderr
        assert sentence(done.stderr).count("cannot ") == 1
        left = but_the_ledger(snapshot(self.node))
        if self.verb == "uninstall":
            assert OURS not in self.node.read(CONTAINERD)
            left = {path: what for path, what in left.items() if "/backups/" not in path}
            left[CONTAINERD] = files[CONTAINERD]
            files = {path: what for path, what in files.items() if "/backups/" not in path}
        assert left == but_the_ledger(files)
        assert self.node.pid_of() == self.pid
        assert self.cri.exec(self.container, "echo", "alive").stdout == "alive\n"

    def goes_on(self) -> None:
        """Undo what is left, and see that the pod lives on."""
        self.node.installer("uninstall", check=True)
        self.cri.wait()
        assert self.cri.exec(self.container, "echo", "alive").stdout == "alive\n"
        self.cri.remove_pod(self.pod)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_what_a_unit_says_of_its_next_start_is_not_brought_into_force(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    node.run(["cp", CONTAINERD, MINE])
    prepared = Prepared(node, cri, verb)

    for text, words in UNITS.items():
        _edit(node, text)
        prepared.refuses(words)

    _edit(node, f"{SAME_PLACES}\n{HARMLESS}")
    node.installer("install", *SOURCE, "--runtime-name", "gpu", check=True)
    prepared.goes_on()
    _edit(node, "[Service]\nKillMode=mixed")
    node.installer("install", *SOURCE, check=True)  # nobody lives there any more


@pytest.mark.sampled(16)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_places_in_a_config_that_no_start_has_read_yet_are_not_brought_into_force(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    prepared, text = Prepared(node, cri, verb), node.read(CONTAINERD)

    for (key, value), words in SETTINGS.items():
        node.write(CONTAINERD, _moved(text, key, value))
        prepared.refuses(words)

    node.write(CONTAINERD, text)
    prepared.goes_on()


def _cri(node: Node) -> tuple[str, str]:
    old = node.containerd_version.startswith("1.")
    return ("plugins", "io.containerd.grpc.v1.cri" if old else "io.containerd.cri.v1.runtime")


@pytest.mark.sampled(16)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_what_is_served_now_is_not_taken_away_by_a_restart_of_ours(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node, plugin = containerd_node, _cri(containerd_node)

    def edited(text: str, *wants: WantedKey) -> str:
        return apply(text, wants, Syntax.TOML, name=CONTAINERD)[0]

    kata = f"\n[{plugin[0]}.'{plugin[1]}'.containerd.runtimes.kata]\nruntime_type = 'io.containerd.runc.v2'\n"
    other = WantedKey((*plugin, "containerd", "default_runtime_name"), "kata")
    node.write(CONTAINERD, node.read(CONTAINERD) + kata)
    node.restart_engine()
    prepared = Prepared(node, cri, verb)
    text = node.read(CONTAINERD)

    edits = {
        text.replace(kata, ""): "its next start takes away the runtime kata, which it serves",
        text.replace("SystemdCgroup = false", "SystemdCgroup = true", 1): (
            "its next start gives the runtime runc SystemdCgroup = true, and it runs with false"
        ),
        edited(text, other): "its next start makes kata the default runtime in the place of runc",
    }
    for edit, words in edits.items():
        node.write(CONTAINERD, edit)
        prepared.refuses(words)
        if verb == "install":
            plan = node.installer("plan", *SOURCE, "--json")
            assert plan.returncode == 1
            assert words in " ".join(each["problem"] for each in json.loads(plan.stdout)["obstacles"])

    node.write(CONTAINERD, text)
    prepared.goes_on()


@pytest.mark.sampled(16)
def test_what_others_have_added_since_the_start_is_named_and_goes_on(containerd_node: Node) -> None:
    node, (plugins, plugin) = containerd_node, _cri(containerd_node)
    table = f"[{plugins}.'{plugin}'.containerd.runtimes.kata]"
    node.write(CONTAINERD, f"{node.read(CONTAINERD)}\n{table}\nruntime_type = 'io.containerd.runc.v2'\n")
    _edit(node, "[Service]\nEnvironment=HTTPS_PROXY=http://who:secret@proxy:1")
    node.run(["cp", PROGRAM, f"{PROGRAM}.new"])
    node.run(["mv", f"{PROGRAM}.new", PROGRAM])
    expected = {
        f"{CONTAINERD} was changed after the start of containerd: its restart brings that into force",
        f"{PROGRAM} was replaced after the start of containerd: its restart runs the new program",
        "containerd.service was changed after the start of containerd: its restart takes up HTTPS_PROXY",
        "the restart of containerd adds the runtime kata, which others have defined",
    }

    plan = node.installer("plan", *SOURCE, "--json")
    installed = node.installer("install", *SOURCE, check=True)

    assert plan.returncode == 10, plan.stdout
    assert {*json.loads(plan.stdout)["notes"]} >= expected
    assert all(note in installed.stderr for note in expected)
    assert "secret" not in plan.stdout + plan.stderr + installed.stderr
    assert served(node)[0] >= {"runc", "kata", "nvidia"}
    node.installer("uninstall", check=True)
    assert served(node)[0] == {"runc", "kata"}


@pytest.mark.sampled(16)
def test_a_unit_that_systemd_has_not_read_again_is_told_and_not_brought_into_force(
    containerd_node: Node,
) -> None:
    node = containerd_node
    node.write("/etc/systemd/system/containerd.service.d/unread.conf", "[Service]\nEnvironment=UNREAD=1\n")
    note = (
        "containerd.service was changed on disk, and systemd uses that only after systemctl daemon-reload: "
        "the restart of containerd does not bring that into force"
    )

    plan = node.installer("plan", *SOURCE, "--json")
    installed = node.installer("install", *SOURCE, check=True)
    doctor = node.installer("doctor")
    undone = node.installer("uninstall", check=True)

    assert note in json.loads(plan.stdout)["notes"]
    assert note in installed.stderr
    assert note in undone.stderr
    assert "changed on disk, and not read by systemd since: containerd.service" in doctor.stdout
    assert "UNREAD" not in node.run(["cat", f"/proc/{node.pid_of('containerd')}/environ"]).stdout


@pytest.mark.sampled(16)
def test_a_text_that_is_written_again_or_read_by_a_reboot_keeps_nothing_from_going_on(
    containerd_node: Node,
) -> None:
    node, text = containerd_node, containerd_node.read(CONTAINERD)
    changed = f"{CONTAINERD} was changed after the start of containerd: its restart brings that into force"
    node.write(CONTAINERD, text)

    def notes(*verb: str) -> list[str]:
        plan = node.installer("plan", *SOURCE, *verb, "--json")
        assert plan.returncode == 10, plan.stdout
        found: list[str] = json.loads(plan.stdout)["notes"]
        return found

    assert changed in notes(), "that it means the same is not known the first time"
    node.reboot()
    node.cri.wait()
    assert changed not in notes()
    node.installer("install", *SOURCE, check=True)
    node.write(CONTAINERD, node.read(CONTAINERD))  # as a tool does every 30 minutes
    assert changed not in notes("--set-as-default"), "it is as the last install has left and proven it"
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    node.installer("uninstall", check=True)
    assert node.read(CONTAINERD) == text


def test_what_a_reload_of_docker_takes_up_besides_is_named(docker_node: Node) -> None:
    node = docker_node
    config = {"log-driver": "json-file", "labels": ["a=b"], "debug": True, "live-restore": False}
    node.write(DOCKER, json.dumps({**config, "max-concurrent-downloads": 3}))

    plan = node.installer("plan", *SOURCE, "--json")
    node.installer("install", *SOURCE, check=True)

    assert plan.returncode == 10, plan.stdout
    said = f"{DOCKER} was changed after the start of Docker: its reload takes up debug, labels and may take up max-concurrent-downloads, too"
    assert said in json.loads(plan.stdout)["notes"]
    node.installer("uninstall", check=True)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_another_major_version_is_started_by_its_owner(
    containerd_node: Node, containerds: dict[str, Containerd], cri: Cri, verb: str
) -> None:
    node = containerd_node
    node.run(["cp", PROGRAM, "/root/containerd"])
    prepared = Prepared(node, cri, verb)
    other = "sid" if node.containerd_version.startswith("1.") else "bookworm"
    shutil.copy(containerds[other][0], node.path(f"{PROGRAM}.new"))
    node.run(["mv", f"{PROGRAM}.new", PROGRAM])
    words = f"it runs {node.containerd_version}, and its program was replaced by one of another major version"

    prepared.refuses(words)

    node.run(["mv", "/root/containerd", PROGRAM])
    prepared.goes_on()


@pytest.mark.sampled(16)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_unit_that_is_edited_right_before_the_restart_is_seen(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    files = snapshot(node)
    pod = cri.run_pod()
    cri.create(pod, Container())  # a restart waits for what is created and not started yet
    pid, before = node.pid_of(), node.read(CONTAINERD)
    running = node.start_installer(verb, *(SOURCE if verb == "install" else ()))
    until(lambda: node.read(CONTAINERD) != before, lambda: running.log)
    _edit(node, "[Service]\nEnvironmentFile=/opt/flag")

    returncode = running.wait()

    assert returncode == {"install": 1, "uninstall": 4}[verb], running.log
    assert "its EnvironmentFile /opt/flag is not there" in sentence(running.log)
    assert node.pid_of() == pid
    assert verb == "uninstall" or snapshot(node) == files


@pytest.mark.sampled(16)
def test_status_and_reconcile_agree_on_a_restart_that_is_left_to_the_owner(node: Node) -> None:
    left = ("--restart-mode", "none")

    def restart() -> None:
        if node.engine == "docker":  # a reload is enough
            node.run(["systemctl", "reload", "docker"])
            until(lambda: served(node)[0] >= SERVED_BY_US, lambda: node.journal("docker"))
        else:
            node.restart_engine()

    node.installer("install", *SOURCE, *left, check=True)
    before = node.installer("status")
    restart()
    after = node.installer("status")

    assert (before.returncode, after.returncode) == (0, 0)
    assert "pending since the last install" in before.stdout
    assert "pending" not in after.stdout

    node.installer("uninstall", *left)
    if node.engine == "docker":
        node.restart("docker")
    else:
        restart()
    node.installer("uninstall", check=True)
    run = node.start_installer("run", *SOURCE, *left)
    until(lambda: "leaves that to you" in node.installer("status", "--ready").stdout, lambda: run.log)
    asked = node.installer("reconcile")
    assert asked.returncode == 0, asked.stderr
    assert "pending: cannot verify that" in asked.stdout
    assert "--restart-mode none leaves that to you" in asked.stdout
    assert "pending" in node.installer("status").stdout
    restart()
    until(node.is_ready, lambda: run.log)
    assert node.installer("reconcile", check=True).stdout.endswith("nothing to do\n")
    assert "pending" not in node.installer("status").stdout
    run.kill()
    run.wait()


@pytest.mark.sampled(16)
@pytest.mark.parametrize("setting", [*SETTINGS, "unit"])
def test_status_tells_an_edit_that_moves_the_engine_at_its_next_start(
    containerd_node: Node, setting: tuple[str, str] | str
) -> None:
    node = containerd_node
    node.installer("install", *SOURCE, check=True)
    text = node.read(CONTAINERD)
    if isinstance(setting, tuple):
        node.write(CONTAINERD, _moved(text, *setting))
        words = f"its config gives it the {SETTINGS[setting]}"
    else:
        _edit(node, f"[Service]\nExecStart=\nExecStart={PROGRAM} --root /srv/root")
        words = "gives it --root /srv/root, and it runs with /var/lib/containerd"

    done = node.installer("status")
    state = " ".join(done.stdout.split())
    assert done.returncode == 0, state
    assert "containerd pending: cannot restart containerd (at its next start" in state, state
    assert words in state, state
    _, checks = doctor(node)
    assert {"installation", "config-accepted"}.isdisjoint(bad(checks)), bad(checks)
    assert words in warned(checks)["installation"]

    node.write(CONTAINERD, text)
    node.run(["rm", "-f", DROP_IN])
    node.run(["systemctl", "daemon-reload"])
    done = node.installer("status")
    assert (done.returncode, "pending" in done.stdout) == (0, False), done.stdout
