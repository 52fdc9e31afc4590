"""A runtime of ours that somebody has taken over stays whole at an undo: what we wrote there is his by then."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from installer.config_text import ABSENT, Key, Syntax, Tree, Value, Want, value_at
from installer.config_text.change import apply, parse
from tests.support.site import DAEMON_JSON, Site

OURS = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
CONTAINERD = "etc/containerd/config.toml"
CONTAINERD_RUNTIMES = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes")
CRIO = "etc/crio/crio.conf.d/99-nvidia.toml"
CRIO_RUNTIMES = ("crio", "runtime", "runtimes")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _tree(site: Site, path: str) -> Tree:
    return parse((site.root / path).read_text(), _syntax(path), name=path)


def _syntax(path: str) -> Syntax:
    return Syntax.JSON if path.endswith(".json") else Syntax.TOML


def _edit(site: Site, path: str, *wants: Want) -> None:
    text, _ = apply((site.root / path).read_text(), wants, _syntax(path), name=path)
    (site.root / path).write_text(text)


TAKEN = [
    pytest.param(CONTAINERD, CONTAINERD_RUNTIMES, ("options", "BinaryName"), id="containerd"),
    pytest.param(CRIO, CRIO_RUNTIMES, ("runtime_path",), id="CRI-O"),
    pytest.param(DAEMON_JSON, ("runtimes",), ("path",), id="Docker"),
]


@pytest.mark.parametrize(("path", "runtimes", "program"), TAKEN)
def test_all_of_a_runtime_that_leads_elsewhere_stays_and_the_others_go(
    site: Site, path: str, runtimes: Key, program: Key
) -> None:
    assert site.call("install", "--set-as-default").returncode == 0
    _edit(site, path, Want((*runtimes, "nvidia", *program), "/usr/sbin/runc"))
    taken = value_at(_tree(site, path), (*runtimes, "nvidia"))

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    left = value_at(_tree(site, path), runtimes)
    assert isinstance(left, dict)
    assert left["nvidia"] == taken
    assert "nvidia-cdi" not in left
    note = f"left the runtime nvidia in /{path} as it is: it was edited to start /usr/sbin/runc"
    assert [line["note"] for line in map(json.loads, done.stderr.splitlines()) if "note" in line] == [note]
    assert not (site.root / "usr/local/nvidia").exists()


def test_a_runtime_that_has_another_shim_stays_and_so_does_the_program_that_it_names(site: Site) -> None:
    assert site.call("install").returncode == 0
    key = (*CONTAINERD_RUNTIMES, "nvidia", "runtime_type")
    _edit(site, CONTAINERD, Want(key, "io.containerd.runsc.v1"))
    taken = value_at(_tree(site, CONTAINERD), key[:-1])

    done = site.call("uninstall")

    assert done.returncode == 4, done.stderr
    assert f"remove the toolkit (/{CONTAINERD} names {OURS}" in done.stderr
    assert value_at(_tree(site, CONTAINERD), key[:-1]) == taken
    _edit(site, CONTAINERD, Want((*key[:-1], "options", "BinaryName"), "/usr/bin/runsc"))
    assert site.call("uninstall").returncode == 0
    assert not (site.root / "usr/local/nvidia").exists()


def test_another_entry_in_the_place_of_ours_stays(site: Site) -> None:
    assert site.call("install").returncode == 0
    key, entry = ("runtimes", "nvidia"), {"runtimeType": "io.containerd.kata.v2", "args": []}
    _edit(site, DAEMON_JSON, Want(key, entry))

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert value_at(_tree(site, DAEMON_JSON), key) == entry
    assert f"left the runtime nvidia in /{DAEMON_JSON} as it is: it was edited to start" in done.stderr


def test_what_docker_may_not_have_beside_a_path_does_not_come_back_beside_somebody_elses(site: Site) -> None:
    (site.root / DAEMON_JSON).write_text(
        '{"runtimes": {"nvidia": {"runtimeType": "io.containerd.runc.v2",'
        ' "options": {"BinaryName": "/usr/bin/nvidia-container-runtime"}}}}'
    )
    assert site.call("install").returncode == 0
    _edit(site, DAEMON_JSON, Want(("runtimes", "nvidia", "path"), "/usr/sbin/runc"))

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    left = _tree(site, DAEMON_JSON)["runtimes"]
    assert left == {"nvidia": {"runtimeType": "", "options": {}, "path": "/usr/sbin/runc"}}


@pytest.mark.parametrize(("path", "runtimes", "program"), TAKEN)
def test_a_runtime_that_was_taken_over_stays_when_ours_gets_another_name(
    site: Site, path: str, runtimes: Key, program: Key
) -> None:
    assert site.call("install").returncode == 0
    _edit(site, path, Want((*runtimes, "nvidia", *program), "/usr/sbin/runc"))
    taken = value_at(_tree(site, path), (*runtimes, "nvidia"))

    done = site.call("install", "--runtime-name", "gpu")

    assert done.returncode == 0, done.stderr
    assert value_at(_tree(site, path), (*runtimes, "nvidia")) == taken
    undone = site.call("uninstall")
    assert undone.returncode == 0, undone.stderr
    left = value_at(_tree(site, path), runtimes)
    assert isinstance(left, dict)
    assert left["nvidia"] == taken
    assert "gpu" not in left


@pytest.mark.parametrize(("path", "runtimes", "program"), TAKEN)
def test_a_runtime_that_was_ours_again_in_between_comes_back_as_it_was_taken_over(
    site: Site, path: str, runtimes: Key, program: Key
) -> None:
    assert site.call("install").returncode == 0
    _edit(site, path, Want((*runtimes, "nvidia", *program), "/usr/sbin/runc"))
    taken = value_at(_tree(site, path), (*runtimes, "nvidia"))
    assert site.call("install").returncode == 0
    assert value_at(_tree(site, path), (*runtimes, "nvidia", *program)) == OURS

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert value_at(_tree(site, path), (*runtimes, "nvidia")) == taken


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        pytest.param(
            CONTAINERD, (*CONTAINERD_RUNTIMES, "nvidia", "options", "SystemdCgroup"), False, id="containerd"
        ),
        pytest.param(DAEMON_JSON, ("runtimes", "nvidia", "args"), ["--debug"], id="Docker"),
    ],
)
def test_a_setting_that_was_changed_goes_with_our_runtime_and_is_told_of_once(
    site: Site, path: str, key: Key, value: Value
) -> None:
    before = _tree(site, path)
    assert site.call("install").returncode == 0
    _edit(site, path, Want(key, value))

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    notes = [line["note"] for line in map(json.loads, done.stderr.splitlines()) if "note" in line]
    assert notes == [f"removed {'.'.join(key)} from /{path}: it was a setting of our runtime"]
    assert _tree(site, path) == before


def test_a_default_that_was_taken_over_stays_where_nobody_defines_the_one_before_it(site: Site) -> None:
    v2 = Want(("runtimes", "v2", "path"), "/usr/sbin/runc")
    _edit(site, DAEMON_JSON, v2, Want(("default-runtime",), "v2"))
    assert site.call("install", "--set-as-default").returncode == 0
    _edit(site, DAEMON_JSON, replace(v2, key=v2.key[:2], value=ABSENT))
    _edit(site, DAEMON_JSON, Want(("runtimes", "nvidia", "path"), "/usr/sbin/runc"))

    kept = _tree(site, DAEMON_JSON)

    done = site.call("uninstall")

    assert done.returncode == 4, done.stderr
    assert _tree(site, DAEMON_JSON) == kept
    assert "is not defined)" in done.stderr
