"""A probe that is answered without loading anything says what ``status`` says."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from installer import probes
from installer.cli import main as status
from installer.flags import FLAGS, options_from
from installer.host.files import Host
from installer.host.nri_state import State, publish
from installer.marks import marks
from installer.probes import answer
from installer.record import ready
from installer.record.ledger import read_record
from tests.support.neighbours import NOBODY, only_as_root
from tests.support.program import as_in_the_image
from tests.support.site import DAEMON_JSON, ENGINES, LEDGER, PIDFILE, PROJECT, Site, waits

READY = "run/nvidia/toolkit/ready"
TOOLKIT = "usr/local/nvidia/toolkit"
HOME = "usr/local/nvidia/.toolkit-installer"
CRIO = "etc/crio/crio.conf.d"
Act = Callable[[Path], object]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    assert site.call("install", "--set-as-default").returncode == 0
    (site.root / READY).parent.mkdir(parents=True)
    published(site)
    return site


def published(site: Site) -> None:
    """Publish what ``run`` does once it has proven an engine."""
    options = options_from(
        {flag.field: flag.default for flag in FLAGS} | {"host_root": str(site.root)}, frozenset()
    )
    host = Host.under(options.host_root)
    held = read_record(host, options.layout)
    assert held is not None
    ready.publish(
        host, options.ready_file, held, (str(options.install_dir), str(options.host_root)), marks(options)[1]
    )


def variables(site: Site) -> dict[bytes, bytes]:
    return {b"TOOLKIT_INSTALLER_HOST_ROOT": os.fsencode(site.root)}


def whole(site: Site) -> int:
    """Return what ``status`` answers, which compares everything."""
    return status(["status", "--ready", "--host-root", str(site.root)])


def probed(site: Site, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.defpath, "PYTHONPATH": str(PROJECT)} | {
        name.decode(): os.fsdecode(value) for name, value in variables(site).items()
    }
    command = [sys.executable, "-m", "installer", "status", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def rewritten(name: str, old: str, new: str) -> Act:
    def act(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new))

    return act


def of_a_killed_run(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    said = (root / READY).read_text()
    (root / READY).write_text(said.replace(f'"pid": {os.getpid()},', f'"pid": {ended.pid},'))


def of_another_boot(root: Path) -> None:
    said = (root / READY).read_text()
    (root / READY).write_text(said.replace(json.loads(said)["boot_id"], "0" * 36))


def same_again(root: Path) -> None:
    (root / DAEMON_JSON).write_bytes((root / DAEMON_JSON).read_bytes())


def another_drop_in(root: Path) -> None:
    (root / CRIO / "99-site.conf").write_text('[crio.runtime]\ndefault_runtime = "runc"\n')


def behind_a_link(root: Path) -> None:
    (root / "etc/docker").rename(root / "etc/elsewhere")
    (root / "etc/docker").symlink_to("elsewhere")


NODES: dict[str, tuple[Act, int, int | None]] = {
    "good": (lambda _: None, 0, 0),
    "an edit that leaves ours in force": (
        rewritten(DAEMON_JSON, '"runtimes"', '"debug": true, "runtimes"'),
        0,
        None,
    ),
    "the same bytes again": (same_again, 0, None),
    "a directory that is a link by now": (behind_a_link, 0, None),
    "drifted": (rewritten(DAEMON_JSON, '"default-runtime": "nvidia"', '"default-runtime": "runc"'), 1, None),
    "a config removed": (lambda root: (root / DAEMON_JSON).unlink(), 1, None),
    "a drop-in that overrules ours": (another_drop_in, 1, None),
    "a program missing": (lambda root: (root / TOOLKIT / "nvidia-ctk.real").unlink(), 1, None),
    "a program not executable": (lambda root: (root / TOOLKIT / "nvidia-ctk.real").chmod(0o600), 1, None),
    "the toolkit gone": (lambda root: (root / TOOLKIT).unlink(), 1, None),
    "a directory for all to write": (lambda root: (root / HOME).chmod(0o777), 1, None),
    "the ledger lost": (lambda root: (root / LEDGER).unlink(), 1, None),
    "another boot": (of_another_boot, 1, None),
    "a run that was killed": (of_a_killed_run, 1, None),
    "withdrawn": (lambda root: (root / READY).unlink(), 1, None),
    "cut short": (lambda root: os.truncate(root / READY, 200), 1, None),
}


@pytest.mark.parametrize(("act", "code", "short"), NODES.values(), ids=NODES)
def test_a_probe_says_of_each_node_what_status_says(
    site: Site, act: Act, code: int, short: int | None
) -> None:
    act(site.root)

    assert answer(["status", "--ready"], variables(site)) == short
    assert whole(site) == code


@only_as_root
def test_a_plugin_that_should_be_there_is_looked_for_at_each_probe(site: Site) -> None:
    ledger, nri = site.root / LEDGER, site.root / "var/run/nri"
    rows = json.loads(ledger.read_text())
    ledger.write_text(json.dumps(rows | {"nri": "/var/run/nri/nri.sock"}))
    nri.mkdir(parents=True)
    publish(str(nri / "toolkit-installer.json"), State(registered=True, engine="containerd 2.1.9"))
    with (nri / "toolkit-installer.pid").open("w+") as lock:
        Path(lock.name).chmod(0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        published(site)
        there = answer(["status", "--ready"], variables(site)), whole(site)
        state = (nri / "toolkit-installer.json").read_text()
        publish(str(nri / "toolkit-installer.json"), State(problem="it waits for the engine"))
        waits_for_it = answer(["status", "--ready"], variables(site)), whole(site)
    (nri / "toolkit-installer.json").write_text(state)
    published(site)
    gone = answer(["status", "--ready"], variables(site)), whole(site)

    assert there == (0, 0)
    assert waits_for_it == (None, 1)
    assert gone == (None, 1)


def test_readiness_that_somebody_else_wrote_is_none(site: Site) -> None:
    os.chown(site.root / READY, NOBODY, NOBODY)

    assert answer(["status", "--ready"], variables(site)) is None
    assert whole(site) == 1


def test_each_thing_that_status_looked_at_is_looked_at_again(site: Site) -> None:
    said = json.loads((site.root / READY).read_text())["seen"]
    paths = sorted({Path(line.partition(" ")[2]) for line in said})
    unseen = []

    for path in paths:
        if path.is_symlink() or path.is_file():
            moved = path.with_name("moved")
            path.rename(moved)
            missed = answer(["status", "--ready"], variables(site)) is not None
            moved.rename(path)
            published(site)
            assert answer(["status", "--ready"], variables(site)) == 0
            unseen += [path] if missed else []

    assert len(paths) > 40
    assert unseen == []


def test_what_is_changed_right_after_it_was_seen_is_seen(site: Site) -> None:
    config = site.root / DAEMON_JSON
    before = config.read_bytes()
    for turn in range(20):
        config.write_bytes(before)
        published(site)
        config.write_bytes(before.replace(b"nvidia", b"nvidiX"))

        assert answer(["status", "--ready"], variables(site)) is None, turn


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("INSTALL_DIR", "/opt/nvidia", id="another install-dir"),
        pytest.param("MOUNT", "/etc=/etc", id="mounts"),
        pytest.param("PID_FILE", "/nonexistent/toolkit.pid", id="another pidfile"),
        pytest.param("HOST_ROOT", "/nonexistent", id="another root"),
    ],
)
def test_what_was_published_for_one_question_answers_no_other(site: Site, name: str, value: str) -> None:
    asked = variables(site) | {f"TOOLKIT_INSTALLER_{name}".encode(): value.encode()}

    assert answer(["status", "--ready"], asked) is None


@pytest.mark.parametrize(
    "words", [[], ["status"], ["status", "--json"], ["status", "--ready", "--json"], ["run"]], ids=str
)
def test_other_words_are_for_the_whole_program(site: Site, words: list[str]) -> None:
    assert answer(words, variables(site)) is None


def test_a_path_that_the_file_would_have_to_escape_is_left_to_status(tmp_path: Path) -> None:
    site = Site(tmp_path / "größer")
    assert site.call("install").returncode == 0
    (site.root / READY).parent.mkdir(parents=True)
    published(site)

    assert answer(["status", "--ready"], variables(site)) is None
    assert probed(site, "--ready").returncode == 0


def test_run_is_alive_while_it_holds_its_pidfile(site: Site) -> None:
    with site.running("--on-exit", "keep") as child:
        while_it_waits = answer(["status", "--alive"], variables(site)), probed(site, "--alive").returncode
        child.send_signal(signal.SIGKILL)
        child.wait(30)
    after = answer(["status", "--alive"], variables(site)), probed(site, "--alive").returncode

    assert (site.root / PIDFILE).exists()
    assert (while_it_waits, after) == ((0, 0), (None, 1))


def test_a_probe_reads_the_variables_of_the_flags() -> None:
    by_name = {flag.variable: flag.default or "" for flag in FLAGS}

    for name, default in (probes.INSTALL_DIR, probes.HOST_ROOT, probes.PID_FILE, probes.MOUNT):
        assert by_name[name] == default


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return as_in_the_image(tmp_path / "program")


def test_the_programs_of_the_image_start_without_site(image: Path, site: Site) -> None:
    environment = {name.decode(): os.fsdecode(value) for name, value in variables(site).items()}
    source = f"--toolkit-source={site.source}"

    codes = [
        subprocess.run([image / name, *words], capture_output=True, env=environment, check=False).returncode
        for name, *words in (
            ("toolkit-installer", "status", "--ready"),
            ("toolkit-installer", "status", "--alive"),
            ("toolkit-installer", "plan", "--runtime=docker", "--restart-mode=none", source),
            ("nvidia-toolkit", "--help"),
        )
    ]

    assert codes == [0, 1, 10, 0]


def test_a_run_of_the_image_wakes_as_itself(image: Path, site: Site) -> None:
    words = ["run", "--host-root", str(site.root), "--toolkit-source", str(site.source), *ENGINES]
    with subprocess.Popen([image / "toolkit-installer", *words], stderr=subprocess.PIPE, text=True) as child:
        waits(child)
        (image / "toolkit-installer").rename(image / "elsewhere")
        child.terminate()
        assert child.stderr is not None
        said = child.stderr.read()

    assert child.returncode == 4
    assert f"cannot start {image}/toolkit-installer again" in said


@pytest.mark.parametrize("word", ["--ready", "--alive"])
def test_a_probe_loads_the_modules_of_a_bare_interpreter_and_four_of_ours(site: Site, word: str) -> None:
    code = (
        "import sys; before = set(sys.modules); sys.path.append(sys.argv[1]); import installer.__main__ as program;"
        "print(program.answer(['status', sys.argv[2]], {b'TOOLKIT_INSTALLER_HOST_ROOT': sys.argv[3].encode()}));"
        "print(sorted(set(sys.modules) - before))"
    )
    with site.running("--on-exit", "keep"):
        published(site)
        bare = [sys.executable, "-I", "-S", "-c", code, str(PROJECT), word, str(site.root)]
        done = subprocess.run(bare, capture_output=True, text=True, check=True)

    ours = ["", ".__main__", ".host", ".host.glance", ".probes"]
    assert done.stdout.splitlines() == ["0", str(["_stat", *(f"installer{name}" for name in ours)])]
