"""A program of ours that is missing, changed or planted is seen, and an install puts it right."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_verbs import LEDGER, PROJECT, Site, waits

TOOLKIT = "usr/local/nvidia/toolkit"


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


DAMAGES = [
    pytest.param(_tampered, "nvidia-container-runtime.real", "changed", id="same size, same time"),
    pytest.param(_a_wrapper_changed, "nvidia-ctk", "changed", id="a wrapper"),
    pytest.param(_all_real_ones_gone, "nvidia-container-cli.real", "missing", id="all real ones gone"),
    pytest.param(_a_library_led_elsewhere, "libnvidia-container.so.1", "replaced", id="a link led elsewhere"),
    pytest.param(_a_fifo, "nvidia-ctk.real", "changed", id="a FIFO"),
    pytest.param(_planted, "runc", "not ours", id="a planted program"),
    pytest.param(_open_to_all, "nvidia-ctk.real", "writable by others", id="a mode"),
]


@pytest.mark.parametrize(("harm", "name", "word"), DAMAGES)
def test_status_deep_names_what_is_not_as_it_was_installed(
    site: Site, harm: Callable[[Path], None], name: str, word: str
) -> None:
    good = site.status("--deep")
    harm(site.root / TOOLKIT)

    done = site.status("--deep", "--json")

    assert (good.returncode, done.returncode) == (0, 1)
    held = {row["what"]: row["state"] for row in json.loads(done.stdout)["held"] if not row["good"]}
    assert word in held[f"/{TOOLKIT}/{name}"]


@pytest.mark.parametrize(("harm", "name", "word"), DAMAGES)
def test_an_install_restores_it_and_touches_no_config(
    site: Site, harm: Callable[[Path], None], name: str, word: str
) -> None:
    before = site.tree(times=True)
    harm(site.root / TOOLKIT)

    planned = site.call("plan")
    done = site.call("install")

    assert (planned.returncode, done.returncode) == (10, 0), done.stderr
    assert f"{name} ({word}" in done.stderr
    assert "reloaded" not in done.stderr
    after = site.tree(times=True)
    assert {
        path: what for path, what in before.items() if path.startswith("etc") and after[path] != what
    } == {}
    assert site.status("--deep").returncode == 0
    again = site.call("install")
    assert "nothing changed" in again.stderr


@pytest.mark.parametrize(
    ("harm", "code"), [(_all_real_ones_gone, 1), (_tampered, 0)], ids=["gone", "changed"]
)
def test_status_sees_without_reading_what_is_missing(
    site: Site, harm: Callable[[Path], None], code: int
) -> None:
    harm(site.root / TOOLKIT)

    assert site.status().returncode == code


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


def test_a_payload_that_changes_while_it_is_copied_is_not_installed(site: Site) -> None:
    (site.root / TOOLKIT / "nvidia-ctk.real").unlink()
    code = (
        "import sys; from installer.host import trees; from installer.cli import main\n"
        "copy = trees._copy\n"
        "def late(source, *rest):\n"
        "    if source.name == 'nvidia-ctk': source.write_bytes(source.read_bytes()[:-1] + b'!')\n"
        "    copy(source, *rest)\n"
        "trees._copy = late; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *site.command("install")[3:]],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )

    assert done.returncode == 1
    assert "changed while it was copied" in done.stderr


def test_a_ledger_of_before_gets_its_digests_by_an_install(site: Site) -> None:
    rows = json.loads((site.root / LEDGER).read_text())
    del rows["toolkit"]["files"]
    (site.root / LEDGER).write_text(json.dumps(rows))

    assert site.status("--deep").returncode == 0
    assert site.call("install").returncode == 0
    _tampered(site.root / TOOLKIT)
    assert site.status("--deep").returncode == 1
