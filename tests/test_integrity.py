"""A program of ours that is missing, changed or planted is seen, and an install puts it right."""

import json
import os
import re
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.neighbours import NOBODY, locking, only_as_root
from tests.support.site import CONFIG_TOML, HOME, LEDGER, TOOLKIT, Site, sentence, waits

CONFIG = ".config/nvidia-container-runtime/config.toml"
LIBRARY = "libnvidia-container.so.1.99.0"
Harm = Callable[[Path], object]


def _mode(name: str, mode: int) -> Harm:
    return lambda toolkit: (toolkit / name).resolve().chmod(mode)


def _given_away(name: str) -> Harm:
    return lambda toolkit: os.chown(toolkit / name, NOBODY, -1)


def _tampered(toolkit: Path) -> None:
    """Change a program that keeps its size and its time."""
    program = toolkit / "nvidia-container-runtime.real"
    status = program.stat()
    program.write_bytes(program.read_bytes()[:-1] + b"!")
    os.utime(program, ns=(status.st_atime_ns, status.st_mtime_ns))


def _all_real_ones_gone(toolkit: Path) -> None:
    for program in toolkit.glob("*.real"):
        program.unlink()


def _a_wrapper_changed(toolkit: Path) -> None:
    wrapper = toolkit / "nvidia-ctk"
    wrapper.write_text(wrapper.read_text().replace("sh", "SH", 1))


def _led_elsewhere(name: str, target: str) -> Harm:
    def harm(toolkit: Path) -> None:
        (toolkit / name).unlink()
        (toolkit / name).symlink_to(target)

    return harm


def _version_moved(toolkit: Path) -> None:
    toolkit.resolve().rename(toolkit.resolve().with_name("moved"))


def _a_fifo(toolkit: Path) -> None:
    (toolkit / "nvidia-ctk.real").unlink()
    os.mkfifo(toolkit / "nvidia-ctk.real", 0o755)


def _planted(mode: int, owner: int) -> Harm:
    def harm(toolkit: Path) -> None:
        (toolkit / "runc").write_text("#!/bin/sh\n")
        (toolkit / "runc").chmod(mode)
        os.chown(toolkit / "runc", owner, -1)

    return harm


def _a_planted_link(toolkit: Path) -> None:
    (toolkit / "runc").symlink_to("/srv/theirs")
    os.chown(toolkit / "runc", NOBODY, -1, follow_symlinks=False)


def _with_capabilities(toolkit: Path) -> None:
    revision_2_effective, net_raw = 0x02000001, 1 << 13  # linux/capability.h
    value = struct.pack("<5I", revision_2_effective, net_raw, 0, 0, 0)
    os.setxattr(toolkit / "nvidia-container-cli.real", "security.capability", value)


RUNTIME, CTK = "nvidia-container-runtime", "nvidia-ctk.real"
SONAME = "libnvidia-container.so.1"
SETUID = "setuid, setgid or sticky"
DAMAGES = [
    pytest.param(_tampered, f"{RUNTIME}.real", "changed", id="same size, same time"),
    pytest.param(_a_wrapper_changed, "nvidia-ctk", "changed", id="a wrapper"),
    pytest.param(_all_real_ones_gone, "nvidia-container-cli.real", "missing", id="all real ones gone"),
    pytest.param(_led_elsewhere(SONAME, "/srv/theirs"), SONAME, "replaced", id="a link led elsewhere"),
    pytest.param(_a_fifo, CTK, "changed", id="a FIFO"),
    pytest.param(_planted(0o777, -1), "runc", "writable by others", id="a planted program"),
    *(
        pytest.param(harm, name, word, id=f"{name} {word} {number}", marks=only_as_root)
        for number, (name, word, harm) in enumerate(
            (
                ("runc", "owned by another user", _planted(0o755, NOBODY)),
                ("runc", "owned by another user", _a_planted_link),
                (CTK, "writable by others", _mode(CTK, 0o777)),
                (RUNTIME, "not executable", _mode(RUNTIME, 0o644)),
                (CTK, SETUID, _mode(CTK, 0o4755)),
                (LIBRARY, SETUID, _mode(LIBRARY, 0o1755)),
                ("nvidia-container-cli.real", "given capabilities", _with_capabilities),
                (f"{RUNTIME}.real", "owned by another user", _given_away(f"{RUNTIME}.real")),
                (LIBRARY, "not readable", _mode(LIBRARY, 0o600)),
                (CONFIG, "writable by others", _mode(CONFIG, 0o664)),
                (".config", "owned by another user", _given_away(".config")),
                (".", "writable by others", _mode(".", 0o777)),
            )
        )
    ),
]
WHOLE = [
    pytest.param(lambda toolkit: toolkit.unlink(), ".", "missing", id="the link"),
    pytest.param(_led_elsewhere("", "/opt"), ".", "not as installed: it leads to /opt", id="led elsewhere"),
    pytest.param(_version_moved, ".", "which is gone", id="the version"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("harm", "name", "word"), DAMAGES)
def test_status_deep_names_it_and_an_install_restores_it_and_touches_no_config(
    installed: Site, harm: Harm, name: str, word: str
) -> None:
    before = installed.tree(times=True)
    harm(installed.root / TOOLKIT)

    told = installed.status("--deep", "--json")
    done = installed.install()

    assert told.returncode == 1
    held = {row["what"]: row["state"] for row in json.loads(told.stdout)["held"] if not row["good"]}
    assert word in held[os.path.normpath(f"/{TOOLKIT}/{name}")]
    assert f"{name} ({word}" in done.stderr
    assert "reloaded" not in done.stderr
    after = installed.tree(times=True)
    assert [path for path, what in before.items() if path[:3] == "etc" and after[path] != what] == []
    assert installed.status("--deep").returncode == 0


QUICK = [*(each for each in DAMAGES if each.values[2] != "changed"), *WHOLE]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("harm", "name", "word"), QUICK)
def test_status_sees_it_without_reading(installed: Site, harm: Harm, name: str, word: str) -> None:
    harm(installed.root / TOOLKIT)

    done = installed.status()

    assert done.returncode == 1
    place = re.escape(os.path.normpath(f"/{TOOLKIT}/{name}"))
    assert re.search(rf"BAD {place} .*{word}.*install puts", done.stdout), done.stdout


def test_a_node_without_its_programs_is_not_ready(installed: Site) -> None:
    with installed.running() as child:
        installed.publish_ready(child.pid)
        while_whole = installed.status("--ready").returncode
        _all_real_ones_gone(installed.root / TOOLKIT)
        broken = installed.status("--ready").returncode
        child.send_signal(signal.SIGHUP)
        waits(child)
        installed.publish_ready(child.pid)
        mended = installed.status("--ready").returncode
    assert (while_whole, broken, mended) == (0, 1, 0)


def test_a_program_that_root_puts_into_the_toolkit_is_no_damage(installed: Site) -> None:
    installed.write(f"{TOOLKIT}/my-runc", "#!/bin/sh\n").chmod(0o755)
    (installed.root / TOOLKIT / "a-link").symlink_to("my-runc")

    told = installed.status("--deep")
    done = installed.install()

    assert told.returncode == 0, told.stdout
    assert "nothing changed" in done.stderr
    assert installed.read(f"{TOOLKIT}/my-runc") == "#!/bin/sh\n"


def test_an_administrators_edit_of_config_toml_is_no_damage(installed: Site) -> None:
    installed.write(CONFIG_TOML, installed.read(CONFIG_TOML).replace('"info"', '"debug"'))

    assert installed.status("--deep").returncode == 0
    assert "nothing changed" in installed.install().stderr


EXPOSED = [
    pytest.param("", 0o777, -1, "writable by others", id="our directory for all to write"),
    pytest.param("", 0o755, NOBODY, "owned by another user", id="our directory given away"),
    pytest.param("versions", 0o777, -1, "writable by others", id="versions"),
    pytest.param("backups", 0o755, -1, "readable by others", id="backups for all to read"),
    pytest.param("backups", 0o700, NOBODY, "owned by another user", id="backups given away"),
    pytest.param("ledger", 0o644, -1, "readable by others", id="the ledger for all to read"),
    pytest.param("lock", 0o666, -1, "writable by others", id="the lock for all to open"),
]


@pytest.mark.sampled(4)
@only_as_root
@pytest.mark.parametrize(("name", "mode", "owner", "word"), EXPOSED)
def test_what_is_ours_in_others_hands_is_told_and_given_back_to_root(
    installed: Site, name: str, mode: int, owner: int, word: str
) -> None:
    installed.install()
    times = name != "lock"  # that is made anew
    before = installed.tree(times=times)
    path = installed.root / HOME / name
    path.chmod(mode)
    os.chown(path, owner, -1)

    told = installed.status()
    done = installed.install()

    assert (told.returncode, word in told.stdout) == (1, True)
    assert "access restored" in done.stderr or not times
    assert "nothing changed" in done.stderr
    assert installed.status().returncode == 0
    assert path.stat().st_uid == os.geteuid()
    assert installed.tree(times=times) == before


@only_as_root
def test_a_neighbour_who_could_open_our_lock_keeps_nobody_out(installed: Site) -> None:
    lock = installed.root / HOME / "lock"
    lock.chmod(0o644)

    with locking(lock, NOBODY):
        installed.install()

    assert lock.stat().st_mode & 0o777 == 0o600


@pytest.mark.sampled(4)
@only_as_root
@pytest.mark.parametrize(
    ("verb", "harm"), [("install", "given away"), ("uninstall", "writable"), ("run", "all of it given away")]
)
def test_a_ledger_that_others_may_have_written_is_not_believed(installed: Site, verb: str, harm: str) -> None:
    home, ledger = installed.root / HOME, installed.root / LEDGER
    paths = [home, *home.rglob("*")] if harm == "all of it given away" else [ledger]
    if harm == "writable":
        ledger.chmod(0o606)
    for path in paths:
        os.chown(path, NOBODY if "away" in harm else -1, -1, follow_symlinks=False)
    before = installed.tree()

    told, done = installed.status(), installed.call(verb)
    for path in paths:
        os.chown(path, 0, -1, follow_symlinks=False)
    ledger.chmod(0o600)

    assert (told.returncode, done.returncode) == (1, 1)
    assert "chown" in told.stderr
    assert "chown" in sentence(done)
    assert installed.tree().keys() == before.keys()
    installed.uninstall()


@only_as_root
def test_a_config_toml_that_others_could_write_is_not_kept(installed: Site) -> None:
    rendered = installed.read(CONFIG_TOML)
    installed.write(CONFIG_TOML, rendered.replace('"runc"', '"/tmp/theirs", "runc"')).chmod(0o666)

    done = installed.install()

    assert "config.toml is written anew, without edits: it was writable by others" in done.stderr
    assert installed.read(CONFIG_TOML) == rendered
