"""What ``status`` says of configs that others have edited: it is the effect that counts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.site import DAEMON_JSON, LEDGER, Site

CONTAINERD = "etc/containerd/config.toml"
CRIO = "etc/crio/crio.conf.d"
OLD, NEW = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
Act = Callable[[Path], None]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def in_docker(edit: Callable[[Any], object]) -> Act:
    def act(root: Path) -> None:
        said = json.loads((root / DAEMON_JSON).read_text())
        edit(said)
        (root / DAEMON_JSON).write_text(json.dumps(said))

    return act


def in_containerd(*changes: tuple[str, str]) -> Act:
    def act(root: Path) -> None:
        text = (root / CONTAINERD).read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (root / CONTAINERD).write_text(text)

    return act


def beside_crio(text: str) -> Act:
    def act(root: Path) -> None:
        (root / CRIO / "99-site.conf").write_text(text)

    return act


def in_crio(old: str, new: str) -> Act:
    def act(root: Path) -> None:
        path = root / CRIO / "99-nvidia.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return act


def imported_by_containerd(root: Path) -> None:
    (root / "etc/containerd/conf.d").mkdir()
    (root / "etc/containerd/conf.d/site.toml").write_text(
        f'version = 2\n[plugins."{OLD}".containerd]\ndefault_runtime_name = "runc"\n'
        f'[plugins."{OLD}".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    )
    path = root / CONTAINERD
    path.write_text('imports = ["/etc/containerd/conf.d/*.toml"]\n' + path.read_text())


DEFAULT = "the default runtime is runc, not nvidia"
GONE = "the runtime nvidia-cdi is not defined"
DRIFTED = {
    "docker, another default": (
        "docker",
        in_docker(lambda said: said.update({"default-runtime": "runc"})),
        DEFAULT,
    ),
    "docker, no default": ("docker", in_docker(lambda said: said.pop("default-runtime")), DEFAULT),
    "docker, a runtime less": ("docker", in_docker(lambda said: said["runtimes"].pop("nvidia-cdi")), GONE),
    "containerd, the default of before": (
        "containerd",
        in_containerd(('default_runtime_name = "nvidia"', 'default_runtime_name = "runc"')),
        DEFAULT,
    ),
    "containerd, no default": ("containerd", in_containerd(('default_runtime_name = "nvidia"', "")), DEFAULT),
    "containerd, a file that is imported": ("containerd", imported_by_containerd, DEFAULT),
    "CRI-O, the default of before": (
        "crio",
        in_crio('default_runtime = "nvidia"', 'default_runtime = "runc"'),
        DEFAULT,
    ),
    # No install writes over what is read later: the end of the sentence is what it would stop for.
    "CRI-O, a later file": (
        "crio",
        beside_crio('[crio.runtime]\ndefault_runtime = "runc"\n'),
        f"{DEFAULT} in its configs: ",
    ),
    "CRI-O, a later file with a runtime": (
        "crio",
        beside_crio('[crio.runtime.runtimes.nvidia-cdi]\nruntime_path = "/usr/bin/crun"\n'),
        "the runtime nvidia-cdi starts /usr/bin/crun in its configs: ",
    ),
}
REPAIRED = "in its configs: install puts it right"


@pytest.mark.parametrize(("engine", "act", "said"), DRIFTED.values(), ids=DRIFTED)
def test_a_config_that_does_not_come_to_what_was_asked_for_is_drifted(
    site: Site, engine: str, act: Act, said: str
) -> None:
    assert site.call("install", "--set-as-default").returncode == 0
    assert site.status().returncode == 0
    act(site.root)

    told = site.status()

    assert told.returncode == 1, told.stdout
    assert f"{engine} " in told.stdout
    assert f"drifted: {said if said.endswith(': ') else f'{said} {REPAIRED}'}" in told.stdout
    assert "our keys in force" not in told.stdout


def migrated(root: Path) -> None:
    in_containerd((OLD, NEW), ("version = 2", "version = 3"))(root)


HARMLESS = {
    "docker": in_docker(lambda said: said.update({"debug": True})),
    "containerd": in_containerd(("version = 2", "version = 2\noom_score = -1")),
    "containerd config migrate": migrated,
    "CRI-O": in_crio(
        "[crio.runtime.runtimes.nvidia]",
        "[crio.metrics]\nenable_metrics = true\n[crio.runtime.runtimes.nvidia]",
    ),
}


@pytest.mark.parametrize("act", HARMLESS.values(), ids=HARMLESS)
@pytest.mark.parametrize("default", [(), ("--set-as-default",)], ids=["a runtime", "the default"])
def test_an_edit_that_leaves_ours_in_force_is_no_drift(
    site: Site, act: Act, default: tuple[str, ...]
) -> None:
    assert site.call("install", *default).returncode == 0
    act(site.root)

    told = site.status()

    assert told.returncode == 0, told.stdout
    assert "edited after the install, our keys in force" in told.stdout


def test_a_single_key_of_ours_that_is_gone_is_drift(site: Site) -> None:
    assert site.call("install").returncode == 0
    in_docker(lambda said: said["runtimes"]["nvidia"].pop("args"))(site.root)

    told = site.status()

    assert "drifted: runtimes.nvidia.args changed after the install" in told.stdout


@pytest.mark.parametrize(
    "act", [in_docker(lambda said: said.clear()), HARMLESS["docker"]], ids=["all", "none"]
)
def test_nobody_is_blamed_for_keys_that_an_unfinished_undo_may_have_taken_out(site: Site, act: Act) -> None:
    assert site.call("install").returncode == 0
    ledger = json.loads((site.root / LEDGER).read_text())
    (site.root / LEDGER).write_text(json.dumps(ledger | {"finished": False}))
    act(site.root)

    told = site.status()

    assert told.returncode == 1
    assert "changed after the install" not in told.stdout
    assert "our keys in force" not in told.stdout
    assert "was cut short" in told.stdout


def test_nobody_is_blamed_for_a_file_that_an_unfinished_undo_has_removed(site: Site) -> None:
    assert site.call("install").returncode == 0
    ledger = json.loads((site.root / LEDGER).read_text())
    made = next(row["path"] for row in ledger["configs"] if row["original"] is None)
    (site.root / LEDGER).write_text(json.dumps(ledger | {"finished": False}))
    (site.root / made.lstrip("/")).unlink()

    told = site.status()

    line = next(line for line in told.stdout.splitlines() if made in line)
    assert (told.returncode, "somebody else" in line) == (1, False)
    assert "as it was before the install" in line


def test_a_file_that_was_found_as_wanted_and_is_edited_since_is_not_said_to_lack_our_keys(site: Site) -> None:
    assert site.call("install").returncode == 0
    ledger = json.loads((site.root / LEDGER).read_text())
    for row in ledger["configs"]:
        row["edits"] = [] if row["engine"] == "docker" else row["edits"]
    (site.root / LEDGER).write_text(json.dumps(ledger))
    HARMLESS["docker"](site.root)

    told = site.status()

    assert told.returncode == 0, told.stdout
    line = next(line for line in told.stdout.splitlines() if DAEMON_JSON in line)
    assert line.endswith("edited after the install")


def test_an_undo_that_could_not_end_is_told_until_there_is_an_install(site: Site) -> None:
    assert site.call("install").returncode == 0
    specification = site.root / "etc/cdi/plugin.json"
    specification.parent.mkdir()
    specification.write_text('{"hooks": [{"path": "/usr/local/nvidia/toolkit/nvidia-cdi-hook"}]}\n')
    assert site.call("uninstall").returncode == 4

    kept = site.status()

    told = "incomplete, cannot remove the toolkit (/etc/cdi/plugin.json names "
    assert kept.returncode == 1
    assert told in kept.stdout
    assert site.call("install").returncode == 0
    assert "did not give" not in site.status().stdout
    specification.unlink()
    assert site.call("uninstall").returncode == 0
    assert site.status().returncode == 3
