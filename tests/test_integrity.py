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
from tests.support.site import LEDGER, Site, sentence, waits

TOOLKIT = "usr/local/nvidia/toolkit"
HOME = "usr/local/nvidia/.toolkit-installer"
CONFIG = ".config/nvidia-container-runtime/config.toml"
LIBRARY = "libnvidia-container.so.1.99.0"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    assert made.call("install").returncode == 0
    return made


def _tampered(toolkit: Path) -> None:
    program = toolkit / "nvidia-container-runtime.real"
    status = program.stat()
    program.write_bytes(program.read_bytes()[:-1] + b"!")
    os.utime(program, ns=(status.st_atime_ns, status.st_mtime_ns))


def _truncated(toolkit: Path) -> None:
    os.truncate(toolkit / "nvidia-container-runtime.real", 100)


def _all_real_ones_gone(toolkit: Path) -> None:
    for program in toolkit.glob("*.real"):
        program.unlink()


def _a_wrapper_changed(toolkit: Path) -> None:
    wrapper = toolkit / "nvidia-ctk"
    wrapper.write_text(wrapper.read_text().replace("sh", "SH", 1))


def _a_library_led_elsewhere(toolkit: Path) -> None:
    library = toolkit / "libnvidia-container.so.1"
    library.unlink()
    library.symlink_to("/tmp/theirs")  # noqa: S108 - nothing is written there


def _a_fifo(toolkit: Path) -> None:
    (toolkit / "nvidia-ctk.real").unlink()
    os.mkfifo(toolkit / "nvidia-ctk.real", 0o755)


def _planted(toolkit: Path) -> None:
    (toolkit / "runc").write_text("#!/bin/sh\n")


def _open_to_all(toolkit: Path) -> None:
    (toolkit / "nvidia-ctk.real").chmod(0o777)


def _not_executable(toolkit: Path) -> None:
    (toolkit / "nvidia-container-runtime").chmod(0o644)


def _setuid(toolkit: Path) -> None:
    (toolkit / "nvidia-ctk.real").chmod(0o4755)


def _setgid(toolkit: Path) -> None:
    (toolkit / "nvidia-container-runtime").chmod(0o2755)


def _sticky(toolkit: Path) -> None:
    (toolkit / "libnvidia-container.so.1").resolve().chmod(0o1755)


def _with_capabilities(toolkit: Path) -> None:
    revision_2_effective, net_raw = 0x02000001, 1 << 13  # linux/capability.h
    value = struct.pack("<5I", revision_2_effective, net_raw, 0, 0, 0)
    os.setxattr(toolkit / "nvidia-container-cli.real", "security.capability", value)


def _given_away(toolkit: Path) -> None:
    os.chown(toolkit / "nvidia-container-runtime.real", NOBODY, -1)


def _library_of_another(toolkit: Path) -> None:
    os.chown((toolkit / "libnvidia-container.so.1").resolve(), NOBODY, -1)


def _library_unreadable(toolkit: Path) -> None:
    (toolkit / "libnvidia-container.so.1").resolve().chmod(0o600)


def _config_for_a_group(toolkit: Path) -> None:
    (toolkit / CONFIG).chmod(0o664)


def _config_of_another(toolkit: Path) -> None:
    os.chown(toolkit / CONFIG, NOBODY, -1)


def _directory_of_another(toolkit: Path) -> None:
    os.chown(toolkit / ".config", NOBODY, -1)


def _directory_open_to_all(toolkit: Path) -> None:
    toolkit.resolve().chmod(0o777)


DAMAGES = [
    pytest.param(_tampered, "nvidia-container-runtime.real", "changed", id="same size, same time"),
    pytest.param(_a_wrapper_changed, "nvidia-ctk", "changed", id="a wrapper"),
    pytest.param(_all_real_ones_gone, "nvidia-container-cli.real", "missing", id="all real ones gone"),
    pytest.param(_a_library_led_elsewhere, "libnvidia-container.so.1", "replaced", id="a link led elsewhere"),
    pytest.param(_a_fifo, "nvidia-ctk.real", "changed", id="a FIFO"),
    pytest.param(_planted, "runc", "not ours", id="a planted program"),
    pytest.param(_open_to_all, "nvidia-ctk.real", "writable by others", id="a mode"),
    *(
        pytest.param(harm, name, word, id=harm.__name__.strip("_").replace("_", " "), marks=only_as_root)
        for harm, name, word in (
            (_not_executable, "nvidia-container-runtime", "not executable"),
            (_setuid, "nvidia-ctk.real", "setuid, setgid or sticky"),
            (_setgid, "nvidia-container-runtime", "setuid, setgid or sticky"),
            (_sticky, LIBRARY, "setuid, setgid or sticky"),
            (_with_capabilities, "nvidia-container-cli.real", "given capabilities"),
            (_given_away, "nvidia-container-runtime.real", "owned by another user"),
            (_library_of_another, LIBRARY, "owned by another user"),
            (_library_unreadable, LIBRARY, "not readable"),
            (_config_for_a_group, CONFIG, "writable by others"),
            (_config_of_another, CONFIG, "owned by another user"),
            (_directory_of_another, ".config", "owned by another user"),
            (_directory_open_to_all, ".", "writable by others"),
        )
    ),
]


@pytest.mark.parametrize(("harm", "name", "word"), DAMAGES)
def test_status_deep_names_it_and_an_install_restores_it_and_touches_no_config(
    site: Site, harm: Callable[[Path], None], name: str, word: str
) -> None:
    before = site.tree(times=True)
    harm(site.root / TOOLKIT)

    told = site.status("--deep", "--json")
    planned = site.call("plan")
    done = site.call("install")

    assert (told.returncode, planned.returncode, done.returncode) == (1, 10, 0), done.stderr
    held = {row["what"]: row["state"] for row in json.loads(told.stdout)["held"] if not row["good"]}
    assert word in held[os.path.normpath(f"/{TOOLKIT}/{name}")]
    assert f"{name} ({word}" in done.stderr
    assert "reloaded" not in done.stderr
    after = site.tree(times=True)
    assert {
        path: what for path, what in before.items() if path.startswith("etc") and after[path] != what
    } == {}
    assert site.status("--deep").returncode == 0
    again = site.call("install")
    assert "nothing changed" in again.stderr


@pytest.mark.parametrize("harm", [_all_real_ones_gone, _truncated, _a_wrapper_changed, _tampered])
def test_status_sees_what_is_missing_or_changed(site: Site, harm: Callable[[Path], None]) -> None:
    harm(site.root / TOOLKIT)

    assert site.status().returncode == 1


def test_a_node_without_its_programs_is_not_ready(site: Site) -> None:
    with site.running() as child:
        ready = site.root / "run/nvidia/toolkit/ready"
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        said = {"boot_id": boot_id, "plan": "", "engines": [], "time": ""}
        ready.write_text(json.dumps(said | {"pid": child.pid}))
        while_whole = site.status("--ready").returncode
        _all_real_ones_gone(site.root / TOOLKIT)

        broken = site.status("--ready").returncode
        child.send_signal(signal.SIGHUP)
        waits(child)
        ready.write_text(json.dumps(said | {"pid": child.pid}))
        mended = site.status("--ready").returncode
    assert (while_whole, broken, mended) == (0, 1, 0)


def test_an_administrators_edit_of_config_toml_is_no_damage(site: Site) -> None:
    config = site.root / TOOLKIT / ".config/nvidia-container-runtime/config.toml"
    config.write_text(config.read_text().replace('"info"', '"debug"'))

    assert site.status("--deep").returncode == 0
    assert "nothing changed" in site.call("install").stderr


def test_a_ledger_of_before_gets_its_digests_by_an_install(site: Site) -> None:
    rows = json.loads((site.root / LEDGER).read_text())
    del rows["toolkit"]["files"]
    (site.root / LEDGER).write_text(json.dumps(rows))

    assert site.status("--deep").returncode == 0
    assert site.call("install").returncode == 0
    _tampered(site.root / TOOLKIT)
    assert site.status("--deep").returncode == 1


@pytest.mark.parametrize(("harm", "name", "word"), [each for each in DAMAGES if each.values[2] != "changed"])
def test_status_sees_it_without_reading(
    site: Site, harm: Callable[[Path], None], name: str, word: str
) -> None:
    harm(site.root / TOOLKIT)

    done = site.status()

    assert done.returncode == 1
    assert re.search(
        rf"BAD {re.escape(os.path.normpath(f'/{TOOLKIT}/{name}'))} .*{word}.*install puts", done.stdout
    )


EXPOSED = [
    pytest.param("", 0o777, None, "writable by others", id="our directory for all to write"),
    pytest.param("", 0o755, NOBODY, "owned by another user", id="our directory given away"),
    pytest.param("versions", 0o777, None, "writable by others", id="versions"),
    pytest.param("backups", 0o755, None, "readable by others", id="backups for all to read"),
    pytest.param("backups", 0o700, NOBODY, "owned by another user", id="backups given away"),
    pytest.param("ledger", 0o644, None, "readable by others", id="the ledger for all to read"),
    pytest.param("lock", 0o666, None, "writable by others", id="the lock for all to open"),
]


@only_as_root
@pytest.mark.parametrize(("name", "mode", "owner", "word"), EXPOSED)
def test_what_is_ours_in_others_hands_is_told_and_given_back_to_root(
    site: Site, name: str, mode: int, owner: int | None, word: str
) -> None:
    before, as_text = site.tree(times=True), site.tree()
    path = site.root / HOME / name
    path.chmod(mode)
    os.chown(path, -1 if owner is None else owner, -1)

    told = site.status()
    done = site.call("install")

    assert (told.returncode, done.returncode) == (1, 0), done.stderr
    assert word in told.stdout
    assert "access restored" in done.stderr or name == "lock"  # that is made anew
    assert "nothing changed" in done.stderr
    assert site.status().returncode == 0
    assert path.stat().st_uid == os.geteuid()
    assert site.tree(times=name != "lock") == (before if name != "lock" else as_text)


@only_as_root
def test_a_neighbour_who_could_open_our_lock_keeps_nobody_out(site: Site) -> None:
    (site.root / HOME / "lock").chmod(0o644)

    with locking(site.root / HOME / "lock", NOBODY):
        done = site.call("install")

    assert done.returncode == 0, done.stderr
    assert (site.root / HOME / "lock").stat().st_mode & 0o777 == 0o600


@only_as_root
@pytest.mark.parametrize("verb", ["install", "uninstall", "run"])
@pytest.mark.parametrize("harm", ["given away", "writable", "all of it given away"])
def test_a_ledger_that_others_may_have_written_is_not_believed(site: Site, verb: str, harm: str) -> None:
    paths = [site.root / HOME / "ledger"]
    if harm == "writable":
        paths[0].chmod(0o606)
    if harm == "all of it given away":
        paths = [site.root / HOME, *(site.root / HOME).rglob("*")]
    for path in paths:
        os.chown(path, NOBODY if "away" in harm else -1, -1, follow_symlinks=False)
    before = site.tree()

    told, done = site.status(), site.call(verb)
    for path in paths:
        os.chown(path, 0, -1, follow_symlinks=False)
    paths[0].chmod(0o755 if paths[0].is_dir() else 0o600)

    assert (told.returncode, done.returncode) == (1, 1)
    assert "chown" in told.stderr
    assert "chown" in sentence(done)
    assert site.tree().keys() == before.keys()
    assert site.call("uninstall").returncode == 0


@only_as_root
def test_a_config_toml_that_others_could_write_is_not_kept(site: Site) -> None:
    config = site.root / TOOLKIT / CONFIG
    rendered = config.read_text()
    config.write_text(rendered.replace('"runc"', '"/tmp/theirs", "runc"'))
    config.chmod(0o666)

    done = site.call("install")

    assert done.returncode == 0, done.stderr
    assert "config.toml is written anew, without edits: it was writable by others" in done.stderr
    assert config.read_text() == rendered


@pytest.mark.parametrize(
    ("act", "lines"),
    [
        pytest.param(
            lambda toolkit: (toolkit / "nvidia-container-runtime").unlink(),
            {f"ok  /{TOOLKIT} ": "toolkit ", f"BAD /{TOOLKIT}/nvidia-container-runtime ": "missing: install"},
            id="one program",
        ),
        pytest.param(
            lambda toolkit: [
                (toolkit / name).unlink() for name in ("nvidia-container-runtime", "nvidia-ctk")
            ],
            {
                f"BAD /{TOOLKIT}/nvidia-container-runtime ": "missing: install puts it right",
                f"BAD /{TOOLKIT}/nvidia-ctk ": "missing: install puts it right",
            },
            id="two programs",
        ),
        pytest.param(
            lambda toolkit: toolkit.unlink(),
            {f"BAD /{TOOLKIT} ": "missing: install puts it right"},
            id="link",
        ),
        pytest.param(
            lambda toolkit: (toolkit.unlink(), toolkit.symlink_to("/opt")),
            {f"BAD /{TOOLKIT} ": "not as installed: it leads to /opt: install puts it right"},
            id="led elsewhere",
        ),
        pytest.param(
            lambda toolkit: toolkit.resolve().rename(toolkit.resolve().with_name("moved")),
            {f"BAD /{TOOLKIT} ": "which is gone: install puts it right"},
            id="the version",
        ),
    ],
)
def test_each_thing_that_is_wrong_with_the_toolkit_has_a_line_of_its_own(
    site: Site, act: Callable[[Path], object], lines: dict[str, str]
) -> None:
    act(site.root / TOOLKIT)

    said = site.status()

    assert said.returncode == 1
    for begin, words in lines.items():
        assert any(line.startswith(begin) and words in line for line in said.stdout.splitlines()), said.stdout
