"""NVIDIA's installer puts its toolkit in the place of ours, with the same keys and values: from then on they are its."""

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.support.looks import asked, look
from tests.support.site import DAEMON_JSON, LEDGER, Site
from tests.support.stand_in import CONFIGS
from tests.support.waiting import until, until_it_sleeps

CONTAINERD = "etc/containerd/config.toml"
CRIO = "etc/crio/crio.conf.d/99-nvidia.toml"
TOOLKIT = "usr/local/nvidia/toolkit"
NAMES = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
HOME = "usr/local/nvidia/.toolkit-installer"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def nvidias_toolkit(site: Site, words: str = "theirs") -> None:
    """Make the toolkit's name a directory of NVIDIA's: it removes what has that name, and copies its files.

    Its layout is that of v1.20.0 (engine-facts.md#nvidia-directory). The keys that it then writes are in the
    configs already, with the same values (engine-facts.md#nvidia-runtimes).
    """
    place = site.root / TOOLKIT
    if not place.is_symlink() and place.exists():
        shutil.rmtree(place)
    toolkit = place.with_name("toolkit.made")  # so that no run, however slow we are, finds half of it
    (toolkit / ".config/nvidia-container-runtime").mkdir(parents=True)
    (toolkit / ".config/nvidia-container-runtime/config.toml").write_text('[nvidia-ctk]\npath = "x"\n')
    for mode in ("", ".cdi", ".legacy"):
        for real in ("", ".real"):
            program = toolkit / f"nvidia-container-runtime{mode}{real}"
            program.write_text(f"#! /bin/sh\n# {words}\n")
            program.chmod(0o755)
    while not _has_the_name(place, toolkit):
        pass


def _has_the_name(place: Path, toolkit: Path) -> bool:
    place.unlink(missing_ok=True)
    try:
        toolkit.rename(place)
    except NotADirectoryError:  # a run that waits has put its link there again meanwhile
        return False
    return True


def _configs(site: Site) -> dict[str, bytes]:
    return {path: (site.root / path).read_bytes() for path in (DAEMON_JSON, CONTAINERD, CRIO)}


def _theirs(site: Site) -> dict[str, bytes]:
    toolkit = site.root / TOOLKIT
    assert not toolkit.is_symlink()
    return {
        str(path.relative_to(toolkit)): path.read_bytes() for path in toolkit.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("more", [(), ("--set-as-default",)], ids=["not the default", "the default"])
def test_an_uninstall_leaves_runtimes_that_start_nvidias_toolkit_by_now(
    site: Site, more: tuple[str, ...]
) -> None:
    assert site.call("install", *more).returncode == 0
    nvidias_toolkit(site)
    configs, theirs = _configs(site), _theirs(site)

    told = site.status()
    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert _configs(site) == configs
    assert _theirs(site) == theirs
    assert not (site.root / HOME).exists()
    notes = [line["note"] for line in map(json.loads, done.stderr.splitlines()) if "note" in line]
    assert notes == [
        f"left nvidia, nvidia-cdi, nvidia-legacy in /{path}: another installer has put its toolkit in the place of "
        "ours, and they start that; toolkit-installer uninstall --adopt removes both"
        for path in sorted((DAEMON_JSON, CONTAINERD, CRIO))
    ] + [
        f"the default runtime in /{path} was runc before the install; it is not set back: set it, if wanted"
        for path in ((CONTAINERD,) if more else ())
    ]
    assert told.returncode == 1
    assert f"BAD /{TOOLKIT}  not ours: another installer has put its toolkit there" in told.stdout
    assert "as we wrote it" not in told.stdout


def test_an_uninstall_that_is_to_adopt_takes_both_away(site: Site) -> None:
    assert site.call("install").returncode == 0
    nvidias_toolkit(site)

    done = site.call("uninstall", "--adopt")

    assert done.returncode == 0, done.stderr
    assert not (site.root / TOOLKIT).exists()
    assert (site.root / CONTAINERD).read_text() == CONFIGS[CONTAINERD]
    assert "runtimes" not in json.loads((site.root / DAEMON_JSON).read_text())
    assert "nvidia" not in (site.root / CRIO).read_text() if (site.root / CRIO).exists() else True


def test_the_default_of_before_us_is_named_where_it_cannot_be_given_back(site: Site) -> None:
    (site.root / DAEMON_JSON).write_text('{"runtimes": {"v2": {"path": "/x"}}, "default-runtime": "v2"}\n')
    assert site.call("install", "--set-as-default").returncode == 0
    nvidias_toolkit(site)

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert f"the default runtime in /{DAEMON_JSON} was v2 before the install" in done.stderr
    assert json.loads((site.root / DAEMON_JSON).read_text())["default-runtime"] == "nvidia"


def test_a_directory_without_programs_takes_nothing_over(site: Site) -> None:
    before = site.tree()
    assert site.call("install").returncode == 0
    (site.root / TOOLKIT).unlink()
    (site.root / TOOLKIT).mkdir()

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    left = site.tree()
    assert {name for name in {*before, *left} if before.get(name) != left.get(name)} <= {
        "usr/local/nvidia",
        TOOLKIT,
        "usr/local",
        "usr",
    }


def test_nvidias_next_toolkit_takes_the_place_of_the_one_that_stood_aside(site: Site) -> None:
    nvidias_toolkit(site, "the first")
    assert site.call("install").returncode == 0
    assert (site.root / HOME / "replaced").is_dir()
    nvidias_toolkit(site, "the second")
    configs, theirs = _configs(site), _theirs(site)

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert (_configs(site), _theirs(site)) == (configs, theirs)
    assert not (site.root / HOME).exists()


@pytest.mark.parametrize("before_us", [True, False], ids=["NVIDIA's before us", "nothing before us"])
def test_an_install_takes_the_node_over_again_and_gives_back_what_it_found(
    site: Site, *, before_us: bool
) -> None:
    if before_us:
        nvidias_toolkit(site, "the first")
    assert site.call("install").returncode == 0
    nvidias_toolkit(site, "the second")
    left, theirs = _configs(site), _theirs(site)

    again = site.call("install")

    assert again.returncode == 0, again.stderr
    assert (site.root / TOOLKIT).is_symlink()
    assert site.status().returncode == 0
    done = site.call("uninstall")
    assert done.returncode == 0, done.stderr
    assert (_configs(site), _theirs(site)) == (left, theirs)
    assert not (site.root / HOME).exists()


def test_an_uninstall_after_the_ledger_is_lost_leaves_them_too(site: Site) -> None:
    assert site.call("install").returncode == 0
    (site.root / LEDGER).unlink()
    nvidias_toolkit(site)
    configs, theirs = _configs(site), _theirs(site)

    site.call("uninstall")

    assert (_configs(site), _theirs(site)) == (configs, theirs)
    assert not (site.root / HOME / "versions").exists()


def test_what_reads_as_ours_elsewhere_keeps_none_of_it(site: Site) -> None:
    """NVIDIA's specification, and what else names its toolkit, are no reason to stay."""
    assert site.call("install").returncode == 0
    nvidias_toolkit(site)
    specification = site.root / "etc/cdi/management.nvidia.com-gpu.yaml"
    specification.parent.mkdir()
    specification.write_text(
        f"cdiVersion: 0.5.0\nkind: management.nvidia.com/gpu\n# hook\nx: /{TOOLKIT}/nvidia-cdi-hook\n"
    )
    packaged = site.root / "usr/bin/nvidia-container-runtime"
    packaged.parent.mkdir(parents=True, exist_ok=True)
    packaged.symlink_to(f"/{TOOLKIT}/nvidia-container-runtime")

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert specification.exists()
    assert packaged.is_symlink()


def test_a_waiting_run_does_not_fight_for_the_place_and_goes_without_a_trace(site: Site) -> None:
    with site.running("--drift", "repair") as child:
        until_it_sleeps(child.pid)
        nvidias_toolkit(site)
        until(lambda: look(site)["code"] == "drifted", lambda: look(site))
        configs, theirs = _configs(site), _theirs(site)
        probe = site.status("--ready")
        until_it_sleeps(child.pid)
        number = look(site)["number"]
        os.utime(site.root / TOOLKIT)
        until(lambda: look(site)["number"] > number, lambda: look(site))
        until_it_sleeps(child.pid)

        child.terminate()
        code = child.wait(60)

    assert code == 0
    assert probe.returncode == 1
    assert "another installer's toolkit is there" in probe.stdout
    assert (_configs(site), _theirs(site)) == (configs, theirs)
    assert not (site.root / HOME).exists()


def test_a_waiting_run_leaves_an_installer_alone_that_has_only_begun(site: Site) -> None:
    with site.running("--drift", "repair") as child:
        until_it_sleeps(child.pid)
        (site.root / f"{TOOLKIT}.made").mkdir()
        while not _has_the_name(site.root / TOOLKIT, site.root / f"{TOOLKIT}.made"):
            pass

        until(lambda: look(site)["code"] == "drifted", lambda: look(site))

        child.kill()
    assert not (site.root / TOOLKIT).is_symlink()


def test_somebody_who_asks_a_waiting_run_gets_the_node_back(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        nvidias_toolkit(site)
        until(lambda: look(site)["code"] == "drifted", lambda: look(site))
        until_it_sleeps(child.pid)

        done = asked(site)

        assert done.returncode == 0, done.stdout
        assert (site.root / TOOLKIT).is_symlink()
        child.kill()
    assert (
        tomllib.loads((site.root / CONTAINERD).read_text())["plugins"]["io.containerd.grpc.v1.cri"][
            "containerd"
        ]["runtimes"].keys()
        >= NAMES
    )
