"""``uninstall --adopt`` takes back what NVIDIA's own installer left, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compat.nvidia import TOOLKIT, V2, Nvidia

RUNTIMES = {"nvidia": "", "nvidia-cdi": ".cdi", "nvidia-legacy": ".legacy"}
USERS_V2 = f"""\
version = 2
# mine
[{V2}]
snapshotter = "overlayfs"
[{V2}.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def _runtime_tables(prefix: str) -> str:
    return "".join(
        f'[{prefix}.runtimes.{name}]\nruntime_type = "io.containerd.runc.v2"\nprivileged_without_host_devices = false\n'
        f'runtime_engine = ""\n[{prefix}.runtimes.{name}.options]\nBinaryName = "{TOOLKIT}/nvidia-container-runtime{mode}"\n'
        f"SystemdCgroup = true\n"
        for name, mode in RUNTIMES.items()
    )


def _nvidias_toolkit(node: Nvidia) -> None:
    toolkit = node.root / TOOLKIT[1:]
    (toolkit / ".config/nvidia-container-runtime").mkdir(parents=True)
    (toolkit / ".config/nvidia-container-runtime/config.toml").write_text(
        '[nvidia-container-runtime]\nruntimes = ["runc"]\n'
    )
    for mode in RUNTIMES.values():
        (toolkit / f"nvidia-container-runtime{mode}").write_text("#! /bin/sh\n")
    (toolkit / "nvidia-container-runtime-hook").write_text("#! /bin/sh\n")
    (toolkit / "nvidia-container-toolkit").symlink_to("nvidia-container-runtime-hook")


def _adopt(
    node: Nvidia, capfd: pytest.CaptureFixture[str], event: str = "leftovers found", key: str = "found"
) -> list[str]:
    found = [line[key] for line in _uninstalled(node, capfd, adopts=True) if line["event"] == event]
    return found if event != "leftovers found" else next(iter(found), [])


def _uninstalled(node: Nvidia, capfd: pytest.CaptureFixture[str], *, adopts: bool) -> list[dict[str, Any]]:
    """Return what an uninstall has told."""
    assert node.uninstall("--runtime", node.engine, *(("--adopt",) if adopts else ())) == 0
    return [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("before", ['{"log-driver": "json-file"}', '{"runtimes": {"mine": {"path": "/m"}}}'])
def test_dockers_runtimes_and_default_go(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], before: str
) -> None:
    node = Nvidia(tmp_path, "docker")
    said = json.loads(before)
    said["default-runtime"] = "nvidia"
    said["runtimes"] = said.get("runtimes", {}) | {
        name: {"args": [], "path": f"{TOOLKIT}/nvidia-container-runtime{mode}"}
        for name, mode in RUNTIMES.items()
    }
    node.config.write_text(json.dumps(said, indent=4, sort_keys=True))
    _nvidias_toolkit(node)

    found = _adopt(node, capfd)

    assert json.loads(node.config.read_text()) == json.loads(before)
    assert not (node.root / TOOLKIT[1:]).exists()
    assert found == ["nvidia, nvidia-cdi, nvidia-legacy in /etc/docker/daemon.json", TOOLKIT]


def test_containerds_runtimes_in_its_own_file_go_and_the_rest_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    node = Nvidia(tmp_path, "containerd")
    node.config.write_text(
        USERS_V2.replace("snapshotter", 'default_runtime_name = "nvidia"\nsnapshotter') + _runtime_tables(V2)
    )
    _nvidias_toolkit(node)

    _adopt(node, capfd)

    assert node.config.read_text() == USERS_V2


def test_containerds_drop_in_and_its_import_go(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    node = Nvidia(tmp_path, "containerd")
    node.config.write_text('imports = ["/etc/containerd/conf.d/*.toml"]\n' + USERS_V2)
    node.drop_in.parent.mkdir()
    node.drop_in.write_text(USERS_V2 + _runtime_tables(V2))
    _nvidias_toolkit(node)

    found = _adopt(node, capfd)

    assert node.config.read_text() == USERS_V2
    assert not node.drop_in.exists()
    assert f"{'/' + str(node.drop_in.relative_to(node.root))} as a whole" in found
    assert "an import in /etc/containerd/config.toml" in found


@pytest.mark.parametrize("default", [True, False], ids=["as the default", "not as the default"])
@pytest.mark.parametrize("adopts", [True, False], ids=["adopted", "not asked for"])
def test_a_drop_in_goes_whose_toolkit_has_gone_before_it_and_only_where_that_was_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], *, adopts: bool, default: bool
) -> None:
    node = Nvidia(tmp_path, "containerd")
    node.config.write_text('imports = ["/etc/containerd/conf.d/*.toml"]\n' + USERS_V2)
    node.drop_in.parent.mkdir()
    named = USERS_V2.replace("snapshotter", 'default_runtime_name = "nvidia"\nsnapshotter')
    node.drop_in.write_text((named if default else USERS_V2) + _runtime_tables(V2))
    before = node.tree()

    if adopts:
        assert len(_adopt(node, capfd)) == 2
    else:
        assert _uninstalled(node, capfd, adopts=False)[0]["event"] == "nothing to undo"

    assert node.config.read_text() == USERS_V2 if adopts else node.tree() == before
    assert node.drop_in.exists() == (not adopts)


def test_a_drop_in_of_nvidias_name_is_left_where_its_toolkit_has_gone_although_it_holds_no_more_than_ours(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    node = Nvidia(tmp_path, "crio")
    node.config.write_text("")
    node.drop_in.parent.mkdir()
    node.drop_in.with_suffix(".conf").write_text(
        f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{TOOLKIT}/nvidia-container-runtime"\n'
    )
    before = node.tree()

    assert _uninstalled(node, capfd, adopts=False)[0]["event"] == "nothing to undo"
    assert node.tree() == before


@pytest.mark.parametrize("engine", ["containerd", "crio"])
def test_what_nvidia_ctk_set_up_for_the_hosts_packages_is_left_alone_and_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], engine: str
) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text(
        'imports = ["/etc/containerd/conf.d/*.toml"]\n' + USERS_V2 if engine == "containerd" else ""
    )
    node.drop_in.parent.mkdir()
    # As nvidia-ctk runtime configure writes it.
    node.drop_in.write_text(
        f'[{V2}.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
        if engine == "containerd"
        else '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
    )
    before = node.tree()

    left = _adopt(node, capfd, "runtime kept", "runtime")

    assert left == [
        f"nvidia in /{node.drop_in.relative_to(node.root)}: it starts /usr/bin/nvidia-container-runtime"
    ]
    assert node.tree() == before


def test_an_import_that_serves_others_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    node = Nvidia(tmp_path, "containerd")
    text = 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + USERS_V2
    node.config.write_text(text)
    node.drop_in.parent.mkdir()
    node.drop_in.write_text(USERS_V2 + _runtime_tables(V2))
    node.drop_in.with_name("10-theirs.toml").write_text("version = 2\n")

    _adopt(node, capfd)

    assert node.config.read_text() == text
    assert node.drop_in.with_name("10-theirs.toml").exists()
    assert not node.drop_in.exists()


def test_crios_drop_in_goes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    node = Nvidia(tmp_path, "crio")
    node.config.write_text("[crio]\n")
    node.drop_in.parent.mkdir()
    node.drop_in.write_text(
        '[crio.runtime]\ndefault_runtime = "nvidia"\n'
        + "".join(
            f'[crio.runtime.runtimes.{name}]\nruntime_path = "{TOOLKIT}/nvidia-container-runtime{mode}"\nruntime_type = "oci"\n'
            for name, mode in RUNTIMES.items()
        )
    )
    _nvidias_toolkit(node)

    _adopt(node, capfd)

    assert not node.drop_in.exists()
    assert node.config.read_text() == "[crio]\n"


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio"])
def test_where_nvidias_installer_never_was_nothing_is_adopted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], engine: str
) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text(
        {
            "docker": '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}',
            "containerd": USERS_V2,
            "crio": "[crio]\n",
        }[engine]
    )
    before = node.tree()

    assert _adopt(node, capfd) == []
    assert node.tree() == before


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio"])
def test_an_install_takes_over_and_gives_back_what_it_found(tmp_path: Path, engine: str) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text(
        {
            "docker": f'{{"default-runtime": "nvidia", "runtimes": {{"nvidia": {{"path": "{TOOLKIT}/nvidia-container-runtime"}}}}}}',
            "containerd": USERS_V2 + _runtime_tables(V2),
            "crio": f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{TOOLKIT}/nvidia-container-runtime"\n',
        }[engine]
    )
    _nvidias_toolkit(node)
    before = node.tree()

    assert node.install() == 0
    assert (node.root / TOOLKIT[1:]).is_symlink()
    assert node.runtimes().keys() == RUNTIMES.keys() | ({"runc"} if engine == "containerd" else set())
    words = node.toolkit_config()["nvidia-container-runtime"]["runtimes"]
    assert not [word for word in words if TOOLKIT in word]
    assert node.uninstall() == 0

    assert node.tree() == before


HOOK = "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"


@pytest.mark.parametrize("mode", ["config", "hook"])
def test_an_install_on_crio_takes_over_drop_in_and_hook_and_gives_them_back(
    tmp_path: Path, mode: str
) -> None:
    node = Nvidia(tmp_path, "crio")
    node.config.write_text("[crio]\n")
    node.drop_in.parent.mkdir()
    node.drop_in.write_text(
        '[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\n'
        f'runtime_path = "{TOOLKIT}/nvidia-container-runtime"\nruntime_type = "oci"\n'
    )
    hook = node.root / HOOK
    hook.parent.mkdir(parents=True)
    hook.write_text(f'{{"hook": {{"path": "{TOOLKIT}/nvidia-container-toolkit"}}, "version": "1.0.0"}}\n')
    _nvidias_toolkit(node)
    before = node.tree()

    assert node.install(CRIO_CONFIG_MODE=mode) == 0
    named = {
        "config": node.runtimes()["nvidia-cdi"]["runtime_path"] if mode == "config" else "",
        "hook": json.loads(hook.read_text())["hook"]["path"],
    }
    assert named[mode] == f"{TOOLKIT}/nvidia-container-runtime{'.cdi' if mode == 'config' else '-hook'}"
    for path in ("nvidia-container-toolkit", "nvidia-container-runtime"):
        assert (node.root / TOOLKIT[1:] / path).exists(), "what the other file of theirs names is there"
    assert node.uninstall() == 0

    assert node.tree() == before


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio"])
def test_a_directory_that_is_not_nvidias_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], engine: str
) -> None:
    node = Nvidia(tmp_path, engine)
    (node.root / TOOLKIT[1:]).mkdir(parents=True)
    (node.root / TOOLKIT[1:] / "theirs").write_text("1\n")
    before = node.tree()

    assert _adopt(node, capfd) == []
    assert node.tree() == before
