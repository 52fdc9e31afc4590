"""An install that changes nothing ends before the program is loaded, and only then."""

import fcntl
import json
import mmap
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from installer.host.glance import mark
from installer.host.questions import Question, answers
from tests.crash.strace import log_calls
from tests.support.site import PROJECT, Site

CONFIG = "etc/containerd/config.toml"
TOOLKIT = "usr/local/nvidia/toolkit"
HOME = "usr/local/nvidia/.toolkit-installer"
ENGINE = ("--runtime", "containerd", "--restart-mode", "none")
LEFT = f"{TOOLKIT}/.config/unchanged"
RANDOM = 20


class Told(NamedTuple):
    """How an install has ended: what it told, without the times, and whether all of the program was loaded."""

    code: int
    events: list[dict[str, object]]
    loaded: bool


def command(site: "Site | Copy", *more: str) -> list[str]:
    where = ["--host-root", str(site.root), "--toolkit-source", str(site.source)]
    return ["-X", "importtime", "-m", "installer", "install", *where, *ENGINE, *more]


def installed(
    site: "Site | Copy",
    *more: str,
    env: dict[str, str] | None = None,
    cwd: Path = PROJECT,
    how: Sequence[str] = (),
) -> Told:
    environment = {"PATH": os.defpath, "PYTHONPATH": str(PROJECT)} | (env or {})
    done = subprocess.run(
        [sys.executable, *(how or command(site, *more))],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=cwd,
    )
    lines = done.stderr.splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    for event in events:
        del event["timestamp"]
    return Told(done.returncode, events, any("installer.program" in line for line in lines))


def questions(root: Path) -> list[Question]:
    """Return what an install has left, without what is about this very process."""
    lines = (root / LEFT).read_text().splitlines()[1:]
    asked = [(line.split(" ")[0], line.split(" ", 2)[2]) for line in lines if not line.startswith("says ")]
    return [each for each in asked if each[0] not in {"asked", "rights"}]


def prepared(directory: Path) -> Site:
    """Return a node on which all is installed, and which an install has left as it was."""
    site = Site(directory)
    (site.root / "etc/containerd/conf.d").mkdir()
    for name in ("docker", "crio"):
        shutil.rmtree(site.root / "etc" / name)
    config = site.root / CONFIG
    config.write_text('imports = ["/etc/containerd/conf.d/*.toml"]\n' + config.read_text())
    assert installed(site).code == 0
    assert (site.root / LEFT).exists()
    return site


@pytest.fixture
def good(tmp_path: Path) -> Site:
    return prepared(tmp_path / "one")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("once")
    prepared(directory)
    return directory


class Copy(NamedTuple):
    """A node like the one that was installed, and what was left there about it."""

    root: Path
    source: Path
    asked: list[Question]


def answered(site: Copy) -> dict[Question, str] | None:
    """Return the answers; None where one cannot be had, and all of the program is loaded."""
    try:
        return answers(site.asked)
    except OSError:
        return None


def copied(once: Path, directory: Path) -> Copy:
    shutil.copytree(once, directory, symlinks=True)
    asked = questions(directory / "node")
    assert any(str(once) in what for _, what in asked)
    there = [(kind, what.replace(str(once), str(directory))) for kind, what in asked]
    return Copy(directory / "node", directory / "artifacts", there)


@pytest.fixture
def copy(once: Path, tmp_path: Path) -> Copy:
    return copied(once, tmp_path / "copy")


def test_an_install_that_changes_nothing_says_the_same_before_the_program_is_loaded(good: Site) -> None:
    short = installed(good)
    (good.root / LEFT).unlink()
    long = installed(good)

    assert (short.code, short.loaded, long.loaded) == (0, False, True)
    assert short.events == long.events
    assert "nothing changed" in [each["event"] for each in short.events]


def test_an_install_that_changes_nothing_writes_nothing(good: Site) -> None:
    before = good.tree(times=True)

    assert not installed(good).loaded

    assert good.tree(times=True) == before


def test_a_config_without_our_runtimes_is_mended(good: Site) -> None:
    (good.root / CONFIG).write_text("version = 2\n")

    told = installed(good)

    assert (told.code, told.loaded) == (0, True)
    assert "nvidia" in (good.root / CONFIG).read_text()


def test_other_words_variables_and_places_are_looked_at_anew(good: Site, tmp_path: Path) -> None:
    told = (
        installed(good, "--no-set-as-default"),
        installed(good, env={"TOOLKIT_INSTALLER_TIMEOUT": "31"}),
        installed(good, env={"TOOLKIT_INSTALLER_TIMEOUTS": "31"}),
        installed(good, cwd=tmp_path),
    )

    assert [(each.code, each.loaded) for each in told] == [(0, True)] * 4


def started(site: Site, script: Path, path: Path) -> Told:
    """Return how an install has ended that a script starts, as those of packages are started."""
    words = command(site)
    where = {"PYTHONPATH": f"{path}:{PROJECT}"}
    return installed(site, env=where, how=[*words[:2], str(script), *words[4:]])


def test_another_program_on_pythons_path_finds_out_for_itself(good: Site, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/installer").symlink_to(PROJECT / "installer")
    script = tmp_path / "toolkit-installer"
    script.write_text("from installer.__main__ import main\nmain()\n")
    time.sleep(0.05)  # code that is younger than a process is not believed
    first = started(good, script, tmp_path), started(good, script, tmp_path)

    elsewhere = started(good, script, tmp_path / "new"), started(good, script, tmp_path)
    again = started(good, script, tmp_path)
    (tmp_path / "installer").symlink_to(PROJECT / "installer")
    come = started(good, script, tmp_path)

    told = (*first, *elsewhere, again, come)
    assert [(each.code, each.loaded) for each in told] == [
        (0, one) for one in (True, False, True, True, False, True)
    ]


def test_a_stop_that_was_asked_for_before_is_obeyed(good: Site) -> None:
    stopped = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]);"
    stopped += (
        "signal.raise_signal(signal.SIGTERM); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )

    told = installed(good, how=["-c", stopped, *command(good)])

    assert (told.code, told.loaded) == (1, True)


def test_a_ledger_that_is_locked_is_told_of(good: Site) -> None:
    with (good.root / HOME / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = installed(good)

    assert told.loaded
    assert told.code != 0


@pytest.mark.parametrize("text", [b"", b"as it was, 1\n", b"\xff" * 99])
def test_what_is_left_is_believed_only_whole(good: Site, text: bytes) -> None:
    kept = (good.root / LEFT).read_bytes()
    (good.root / LEFT).write_bytes(text or kept[: len(kept) // 2])

    assert installed(good).loaded


def test_what_lost_a_line_is_not_believed(good: Site) -> None:
    lines = (good.root / LEFT).read_bytes().splitlines(keepends=True)
    (good.root / LEFT).write_bytes(b"".join(lines[:1] + lines[2:]))

    assert installed(good).loaded


@pytest.mark.parametrize("mode", [0o602, 0o620])
def test_what_others_could_have_left_is_not_believed(good: Site, mode: int) -> None:
    (good.root / LEFT).chmod(mode)

    assert installed(good).loaded


def test_what_was_left_for_a_toolkit_goes_with_it(good: Site) -> None:
    where = ["--host-root", str(good.root)]
    code = subprocess.run(
        [sys.executable, "-m", "installer", "uninstall", *where, *ENGINE], check=False, cwd=PROJECT
    ).returncode

    assert (code, (good.root / "usr/local/nvidia").exists()) == (0, False)


def _append(path: str) -> Callable[[Copy], None]:
    def act(site: Copy) -> None:
        with (site.root / path).open("ab") as file:
            file.write(b"\n")

    return act


def _same_again(path: str) -> Callable[[Copy], None]:
    def act(site: Copy) -> None:
        file = site.root / path
        content, times = file.read_bytes(), file.stat()
        file.write_bytes(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    return act


def _mode(path: str, mode: int) -> Callable[[Copy], None]:
    return lambda site: (site.root / path).chmod(mode)


def _owner(path: str) -> Callable[[Copy], None]:
    return lambda site: os.chown(site.root / path, 1, -1, follow_symlinks=False)


def _gone(path: str) -> Callable[[Copy], None]:
    def act(site: Copy) -> None:
        place = site.root / path
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()

    return act


def _made(path: str, text: str = "") -> Callable[[Copy], None]:
    def act(site: Copy) -> None:
        (site.root / path).parent.mkdir(parents=True, exist_ok=True)
        (site.root / path).write_text(text)

    return act


def _linked(path: str) -> Callable[[Copy], None]:
    return lambda site: _moved(site.root / path)


def _payload(act: Callable[[Path], object]) -> Callable[[Copy], None]:
    return lambda site: (act(next(site.source.rglob("nvidia-ctk"))), None)[1]


def _moved(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


CHANGES = {
    "a config is edited": _append(CONFIG),
    "a config is written again": _same_again(CONFIG),
    "a config is another's": _owner(CONFIG),
    "a config has another mode": _mode(CONFIG, 0o600),
    "a config is gone": _gone(CONFIG),
    "a config is a link": _linked(CONFIG),
    "a config has a second name": lambda site: os.link(site.root / CONFIG, site.root / "etc/other"),
    "the directory of configs is a link": _linked("etc/containerd"),
    "others may write the directory of configs": _mode("etc/containerd", 0o777),
    "an import comes": _made("etc/containerd/conf.d/10-other.toml"),
    "a killed install left its text": _made("etc/containerd/.config.toml.toolkit-installer"),
    "the ledger is edited": _append(f"{HOME}/ledger"),
    "the ledger is gone": _gone(f"{HOME}/ledger"),
    "the ledger is for others": _mode(f"{HOME}/ledger", 0o644),
    "the lock is for others": _mode(f"{HOME}/lock", 0o644),
    "our directory is for others": _mode(HOME, 0o777),
    "the backups are gone": _gone(f"{HOME}/backups"),
    "the backups are for others": _mode(f"{HOME}/backups", 0o755),
    "counts come": _made(f"{HOME}/counts"),
    "a check was cut short": _made(f"{HOME}/check/one"),
    "the link to the toolkit is made anew": lambda site: _relinked(site.root / TOOLKIT),
    "the install-dir is another's": _owner("usr/local/nvidia"),
    "others may write above it": _mode("usr/local", 0o777),
    "a program is edited": _append(f"{TOOLKIT}/nvidia-container-runtime"),
    "a program is written again": _same_again(f"{TOOLKIT}/nvidia-container-runtime.real"),
    "a program is gone": _gone(f"{TOOLKIT}/nvidia-ctk"),
    "a program may not be started": _mode(f"{TOOLKIT}/nvidia-ctk", 0o644),
    "a program is another's": _owner(f"{TOOLKIT}/nvidia-ctk"),
    "a file comes beside the programs": _made(f"{TOOLKIT}/other"),
    "its config is edited": _append(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"),
    "its config is gone": _gone(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"),
    "known digests come": _made(f"{TOOLKIT}/.config/digests"),
    "another version is left": _made(f"{HOME}/versions/other/one"),
    "a toolkit stands aside": _made(f"{HOME}/replaced/one"),
    "the payload is edited": _payload(lambda path: path.write_bytes(path.read_bytes() + b"\n")),
    "the payload is written again": _payload(lambda path: path.write_bytes(path.read_bytes())),
    "the payload is gone": _payload(lambda path: path.unlink()),
    "the payload may not be started": _payload(lambda path: path.chmod(0o644)),
    "the payload is elsewhere": _payload(_moved),
    "the payload's directory is a link": _payload(lambda path: _moved(path.parent)),
    "a better payload comes": lambda site: _first_place(site.source),
    "an engine's socket comes": _made("run/containerd/containerd.sock"),
    "systemd comes": _made("run/systemd/private"),
    "a bus comes": _made("run/dbus/system_bus_socket"),
    "a driver comes": _made("run/nvidia/driver/one"),
    "a driver's library comes": _made("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"),
    "the family of the node changes": _made("etc/os-release", "ID_LIKE=suse\n"),
    "a container runs": _made("run/containerd/io.containerd.runtime.v2.task/k8s.io/one/config.json", "{}"),
}


def _relinked(path: Path) -> None:
    target = path.readlink()
    path.unlink()
    path.symlink_to(target)


def _first_place(source: Path) -> None:
    from installer.decide.artifacts import search_paths

    now = next(source.rglob("nvidia-ctk"))
    places = [source / place for place in search_paths("nvidia-ctk")]
    better = next(place for place in places if not place.exists())
    better.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(now, better)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_what_an_install_looks_at_gives_another_answer(
    copy: Copy, change: Callable[[Copy], None]
) -> None:
    before = answers(copy.asked)

    change(copy)

    assert answered(copy) != before


def test_a_config_that_is_written_through_memory_gives_another_answer(copy: Copy) -> None:
    with (copy.root / CONFIG).open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        content[:1] = content[
            :1
        ]  # the kernel marks the file now, and no more as long as this is not on the disk
        before, marked = answers(copy.asked), mark(str(copy.root / CONFIG))

        content[:1] = b"#"

        assert mark(str(copy.root / CONFIG)) == marked
        assert answers(copy.asked) != before


EDITS: dict[str, Callable[[Path], object]] = {
    "append": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "empty": lambda path: path.write_bytes(b""),
    "write again": lambda path: path.write_bytes(path.read_bytes()),
    "remove": lambda path: path.unlink(),
    "for all": lambda path: path.chmod(0o666),
    "for nobody": lambda path: path.chmod(0),
    "a stranger's": lambda path: os.chown(path, 1, 1, follow_symlinks=False),
    "beside": lambda path: path.with_name(f"{path.name}.bak").write_text(""),
    "above": lambda path: (path.parent.parent / "other").write_text(""),
    "above for all": lambda path: path.parent.chmod(0o777),
    "linked": _moved,
    "above linked": lambda path: _moved(path.parent),
    "twice": lambda path: path.with_name("twice").hardlink_to(path),
}


def test_one_random_edit_is_seen_or_changes_nothing(once: Path, tmp_path: Path) -> None:
    seed = os.environ.get("SEED") or str(random.randrange(10**9))  # noqa: S311 - no secret
    chosen = random.Random(seed)  # noqa: S311
    for number in range(RANDOM):
        copy = copied(once, tmp_path / f"copy{number}")
        places = sorted(path for top in (copy.root, copy.source) for path in top.rglob("*") if path.is_file())
        path, edit = chosen.choice(places), chosen.choice(sorted(EDITS))
        before = answers(copy.asked)

        EDITS[edit](path)

        if answered(copy) == before:
            told = installed(copy)
            assert told.code == 0, (seed, edit, path, told)
            assert "nothing changed" in [each["event"] for each in told.events], (seed, edit, path, told)


def test_what_nobody_touches_gives_the_same_answers(copy: Copy) -> None:
    assert answers(copy.asked) == answers(copy.asked)


MANY = 100
ASKED_OF_PROC = {
    *("/proc/self/limits", "/proc/self/mountinfo", "/proc/self/status", "/proc/self/stat"),
    "/proc/sys/kernel/random/boot_id",
}
# How much an engine's config may be read into; where that is too little, nothing at all is installed.
MEMORY = {"/proc/self/cgroup", "/proc/meminfo"}
LOOKING = (
    *("open", "openat", "stat", "lstat", "newfstatat", "statx", "readlink", "readlinkat", "access"),
    *("faccessat", "faccessat2", "statfs", "getxattr", "lgetxattr", "getdents64"),
)


def looked_at(site: Site, log: Path) -> tuple[set[str], set[str]]:
    """Return what an install looks at, and which directories it lists, as the kernel is asked."""
    (site.root / LEFT).unlink()
    seen, listed = set(), set()
    for call in log_calls([sys.executable, *command(site)], log, LOOKING):
        if call.name == "getdents64":
            listed.add(str(call.directory))
        elif call.strings:
            name = os.fsdecode(call.strings[0])
            with_directory = call.arguments.startswith("AT_FDCWD") or call.arguments[:1].isdigit()
            seen.add(os.path.normpath(call.directory / name if with_directory else PROJECT / name))
    return seen, listed


def test_all_that_an_install_looks_at_is_asked_again(good: Site, tmp_path: Path) -> None:
    asked = questions(good.root)

    seen, listed = looked_at(good, tmp_path / "calls")

    ours = (str(good.root), str(good.source))
    assert len({each for each in seen if each.startswith(ours)}) > MANY
    left = (good.root / LEFT).resolve()
    own = {str(left), str(left.with_name(".unchanged.toolkit-installer"))}
    assert {each for each in seen if each.startswith(ours)} - {what for _, what in asked} == own
    lists = {what for kind, what in asked if kind == "listed"} | {str(left.parent)}
    assert {each for each in listed if each.startswith(ours)} - lists == set()
    made_up = {re.sub(r"^/proc/\d+/", "/proc/self/", each) for each in seen if each.startswith("/proc/")}
    assert made_up <= ASKED_OF_PROC | MEMORY
