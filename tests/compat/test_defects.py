"""What NVIDIA's tool gets wrong, from the inputs on which it was seen (compatibility.md#d1 and on)."""

import json
import os
from pathlib import Path

import pytest

from tests.compat.nvidia import CONFIG, DROP_IN, MODES, TOOLKIT, V2, V3, Nvidia

EMPTY = {"docker": "{}\n", "containerd": "version = 2\n", "crio": "[crio]\n"}
OURS = {*MODES}
PASSWORD = "hunter2"  # noqa: S105 - nobody's
OWNERS = "/usr/bin/nvidia-container-runtime"
LEGACY = {"CONTAINERD_USE_LEGACY_CONFIG": "true"}
WITHOUT_DROP_IN = {"RUNTIME_DROP_IN_CONFIG": ""}
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
SCHEMA_1 = """\
[plugins.cri.containerd]
default_runtime_name = "crun"
[plugins.cri.containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
"""
# An engine, its config, variables, each by the defects that were seen on it.
CONFIGS: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "d3: v1": ("containerd", 'version = 1\n[plugins.cri]\nsandbox_image = "p"\n', {}),
    "d3: without a version": ("containerd", '[plugins.cri]\nsandbox_image = "p"\n', {}),
    "d8: settings": ("crio", "[crio.runtime]\npids_limit = 7\n", WITHOUT_DROP_IN),
    "d8: an empty config": ("crio", "", WITHOUT_DROP_IN),
    "d9: schema 2": ("containerd", "version = 2\nroot = '/x'\n", WITHOUT_DROP_IN),
    "d9: schema 3": ("containerd", "version = 3\nroot = '/x'\n", WITHOUT_DROP_IN),
    "d9: no config": ("containerd", None, WITHOUT_DROP_IN),
    "d14: order, CRLF": ("docker", '{\r\n\t"b": 1,  "a": 12345678901234567890}\r\n', {}),
    "d14: a comment, CRLF": ("containerd", "version = 2 # ours\n\n\nroot = '/x'\r\n", {}),
    "d19: a default": (
        "docker",
        '{"default-runtime": "crun", "runtimes": {"crun": {"path": "/b/crun"}}}',
        {},
    ),
    "d19: no default": ("docker", None, {}),
    "d20: docker": (
        "docker",
        f'{{"runtimes": {{"nvidia": {{"path": "{OWNERS}", "runtimeArgs": ["-v"]}}}}}}',
        {},
    ),
    "d20: containerd": (
        "containerd",
        f'version = 2\n[{V2}.runtimes.nvidia.options]\nBinaryName = "{OWNERS}"\n',
        {},
    ),
    "d20: CRI-O": ("crio", f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{OWNERS}"\n', {}),
    "d21: the default of schema 1": ("containerd", SCHEMA_1, LEGACY | WITHOUT_DROP_IN),
    "d31: an empty key": ("containerd", 'version = 3\n"" = 1\n[x.""]\ny = 1\n', {}),
    "d31: dates": ("containerd", "version = 3\nday = 1979-05-27\nt = 1979-05-27T07:32:00.123456789Z\n", {}),
    "d31: imports of others": ("containerd", 'version = 3\nimports = ["/etc/containerd/other.toml"]\n', {}),
    "d31: DEL": ("containerd", 'version = 3\nx = "\\u007f"\n', {}),
    "d31: numbers": ("containerd", "version = 3\nbig = 1e22\nhex = 0xff\n", {}),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("engine", CONFIG)
def test_d1_a_second_set_up_under_another_name_does_not_wrap_ourselves(tmp_path: Path, engine: str) -> None:
    node = Nvidia(tmp_path, engine, EMPTY[engine])
    for _ in range(2):
        assert node.install(CONTAINERD_RUNTIME_CLASS="gpu") == 0

    assert node.low_level()[-1] in {"runc", "crun"}
    assert not [word for word in node.low_level() if "nvidia" in word]


def test_d4_a_missing_artifact_leaves_the_toolkit_that_is_there(docker: Nvidia) -> None:
    assert docker.install() == 0
    (docker.source / "usr/local/sbin/nvidia-container-cli").unlink()

    assert docker.refused()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("engine", "text", "variables"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_of_an_administrator_gets_our_default_and_comes_back_byte_for_byte(
    tmp_path: Path, engine: str, text: str | None, variables: dict[str, str]
) -> None:
    node = Nvidia(tmp_path, engine, text)
    node.put({"etc/containerd/other.toml": "version = 3\n"})
    with node.installed(**variables):
        assert node.runtimes().keys() >= OURS
        assert f"{TOOLKIT}/nvidia-container-runtime" in json.dumps(node.runtimes()["nvidia"])
        assert node.default() == "nvidia"
        reads_no_drop_in = engine == "containerd" and (variables or "plugins.cri" in str(text))
        assert not (reads_no_drop_in and node.drop_in.exists())
        if text and text.startswith("version = 3"):
            kept = {line for line in text.splitlines() if not line.startswith("imports")}
            assert kept <= {*node.config.read_text().splitlines()}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("config", "path", "text"),
    [
        (f"version = 2\n{IMPORTS}", "etc/containerd/conf.d/10-user.toml", "version = 2\n# theirs\n"),
        (f"version = 3\n{IMPORTS}", DROP_IN["containerd"], "version = 3\n# theirs\n"),
        ("[crio]\n", DROP_IN["crio"], "# mine\n[crio.runtime]\nlog_to_journald = true\n"),
    ],
    ids=["d16: beside ours", "d16: in the place of ours", "d22: in the place of ours"],
)
@pytest.mark.parametrize("default", ["true", "false"])
def test_a_drop_in_of_an_administrator_stays(
    tmp_path: Path, config: str, path: str, text: str, default: str
) -> None:
    node = Nvidia(tmp_path, next(engine for engine in DROP_IN if engine in path))
    node.put({CONFIG[node.engine]: config, path: text})
    with node.installed(NVIDIA_RUNTIME_SET_AS_DEFAULT=default):
        assert node.runtimes().keys() >= OURS


def test_the_drop_in_has_our_runtimes_alone_and_goes_with_its_import_and_directory(
    containerd: Nvidia,
) -> None:
    """D10, D11, D15: no password comes into it, and nothing that would hide a later edit of the config."""
    containerd.config.write_text(
        f"version = 3\n['plugins'.'io.containerd.cri.v1.images'.registry.configs.x.auth]\npassword = '{PASSWORD}'\n"
        f"[{V3}.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
    )
    containerd.config.chmod(0o600)
    with containerd.installed():
        text = containerd.drop_in.read_text()
        assert containerd.told().keys() == {"runtimes", "default_runtime_name"}
        assert containerd.runtimes().keys() == OURS
        assert text.count("[") == 1 + 2 * len(OURS)
        assert 'imports = ["/etc/containerd/conf.d/99-nvidia*.toml"]' in containerd.config.read_text()
        files = [path for path in containerd.root.rglob("*") if path.is_file()]
        readable = [path for path in files if path.stat().st_mode & 0o077]
        assert containerd.drop_in in readable
        assert [path for path in readable if PASSWORD in path.read_text(errors="replace")] == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("edited", [False, True], ids=["as we wrote it", "edited by others"])
def test_d21_the_old_table_of_container_config_gives_way_and_comes_back(
    containerd: Nvidia, *, edited: bool
) -> None:
    containerd.config.write_text(
        f"""version = 1
[plugins.cri.containerd.default_runtime] # container-config, --use-legacy-config
  runtime_type = "io.containerd.runc.v2"
  runtime_root = ""
  runtime_engine = ""
  [plugins.cri.containerd.default_runtime.options]
    BinaryName = "{TOOLKIT}/nvidia-container-runtime"
    Runtime = "{TOOLKIT}/nvidia-container-runtime"
"""
    )
    before = containerd.tree()

    assert containerd.install(**LEGACY) == 0
    assert (containerd.default(), containerd.told()["default_runtime"]["runtime_type"]) == ("nvidia", "")
    assert containerd.low_level() == ["runc", "crun"]
    if edited:
        containerd.config.write_text(f"{containerd.config.read_text()}# theirs\n")
    assert containerd.uninstall() == 0

    if edited:
        text = containerd.config.read_text()
        assert text.endswith("# theirs\n")
        containerd.config.write_text(text.removesuffix("# theirs\n"))
    assert containerd.tree() == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("engine", "mode", "path"),
    [
        ("containerd", "", DROP_IN["containerd"]),
        ("crio", "config", DROP_IN["crio"]),
        ("crio", "hook", "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"),
    ],
)
def test_d23_a_drop_in_or_hook_that_somebody_deleted_does_not_stop_the_undo(
    tmp_path: Path, engine: str, mode: str, path: str
) -> None:
    node = Nvidia(tmp_path, engine, "version = 3\n" if engine == "containerd" else "[crio]\n")
    with node.installed(**({"CRIO_CONFIG_MODE": mode} if mode else {})):
        assert f"{TOOLKIT}/nvidia-container-runtime" in (node.root / path).read_text()
        (node.root / path).unlink()


def test_d26_a_config_that_cannot_be_written_leaves_no_live_drop_in(containerd: Nvidia) -> None:
    containerd.config.write_text("version = 3\n")
    os.link(containerd.config, containerd.config.with_name("link"))

    assert containerd.refused()


def test_d29_the_override_is_applied_and_wins_over_what_is_inherited(containerd: Nvidia) -> None:
    containerd.config.write_text(f"version = 2\n[{V2}.runtimes.runc.options]\nSystemdCgroup = true\n")
    override = {"SystemdCgroup": False, "NoNewKeyring": True}
    with containerd.installed(RUNTIME_CONFIG_OVERRIDE=json.dumps({"options": override})):
        for name, mode in MODES.items():
            program = f"{TOOLKIT}/nvidia-container-runtime{mode}"
            assert containerd.runtimes()[name]["options"] == {**override, "BinaryName": program}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"etc/os-release": 'ID=rocky\nID_LIKE="rhel centos fedora"\n'}, "rpm"),
        ({"usr/lib/os-release": "ID=sles\n"}, "rpm"),
        ({"etc/os-release": "ID=ubuntu\nID_LIKE=debian\n", "usr/bin/rpm": ""}, "deb"),
        ({"usr/bin/rpm": ""}, "rpm"),
        ({"usr/bin/rpm": "", "usr/bin/dpkg": ""}, "deb"),
        ({}, "deb"),
    ],
    ids=["Rocky", "SLES, in /usr/lib", "Ubuntu with rpm", "only rpm", "both tools", "nothing"],
)
def test_d36_the_packages_are_those_of_the_host(docker: Nvidia, files: dict[str, str], kind: str) -> None:
    docker.put(files)

    assert f"/artifacts/{kind}" in docker.refused(TOOLKIT_SOURCE_ROOT=""), "no image's packages are here"
