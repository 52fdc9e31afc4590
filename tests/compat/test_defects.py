"""What NVIDIA's tool gets wrong, from the inputs on which it was seen (compatibility.md#d1 and on)."""

import json
import os
from pathlib import Path

import pytest

from tests.compat.nvidia import TOOLKIT, V2, V3, Nvidia

ENGINES = ("docker", "containerd", "crio")
RUNC = '{"path": "/usr/bin/runc"}'
EMPTY = {"docker": "{}\n", "containerd": "version = 2\n", "crio": "[crio]\n"}
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
PASSWORD = "hunter2"  # noqa: S105 - nobody's


def _goes_back(node: Nvidia, before: dict[str, str]) -> None:
    assert node.uninstall() == 0
    assert node.tree() == before


@pytest.mark.parametrize("engine", ENGINES)
def test_d1_a_second_set_up_under_another_name_does_not_wrap_ourselves(tmp_path: Path, engine: str) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text(EMPTY[engine])
    for _ in range(2):
        assert node.install(CONTAINERD_RUNTIME_CLASS="gpu") == 0

    words = node.toolkit_config()["nvidia-container-runtime"]["runtimes"]
    assert words[-1] in {"runc", "crun"}
    assert not [word for word in words if "nvidia" in word]


def test_d2_all_three_runtimes_inherit_the_same_from_a_default_crun(containerd: Nvidia) -> None:
    containerd.config.write_text(
        f'version = 2\n[{V2}]\ndefault_runtime_name = "crun"\n[{V2}.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[{V2}.runtimes.crun]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[{V2}.runtimes.crun.options]\nBinaryName = "/usr/bin/crun"\nSystemdCgroup = true\n'
    )
    before, texts = containerd.tree(), set()
    for _ in range(3):
        assert containerd.install() == 0
        texts.add(containerd.config.read_text())
        assert {
            name: containerd.runtimes()[name]["options"]["SystemdCgroup"] for name in OURS
        } == dict.fromkeys(OURS, True)
        _goes_back(containerd, before)
    assert len(texts) == 1


@pytest.mark.parametrize("head", ["version = 1\n", ""], ids=["v1", "without a version"])
def test_d3_a_schema_1_file_is_edited_where_containerd_reads_it(containerd: Nvidia, head: str) -> None:
    containerd.config.write_text(f'{head}[plugins.cri]\nsandbox_image = "pause"\n')
    before = containerd.tree()

    assert containerd.install() == 0

    assert containerd.runtimes().keys() >= OURS
    assert containerd.table(containerd.config)["default_runtime_name"] == "nvidia"
    assert not containerd.drop_in.exists()
    _goes_back(containerd, before)


def test_d4_a_missing_artifact_leaves_the_toolkit_that_is_there(docker: Nvidia) -> None:
    docker.config.write_text("{}\n")
    assert docker.install() == 0
    before = docker.tree()
    (docker.source / "usr/local/sbin/nvidia-container-cli").unlink()

    assert docker.install() == 1

    assert docker.tree() == before


@pytest.mark.parametrize(
    "text", ["[crio.runtime]\npids_limit = 7\n# theirs\n", ""], ids=["settings", "empty"]
)
def test_d8_crio_without_a_drop_in_keeps_all_of_its_settings(crio: Nvidia, text: str) -> None:
    crio.config.write_text(text)
    before = crio.tree()

    assert crio.install("--drop-in-config=") == 0

    assert text.strip() in crio.config.read_text()
    assert crio.runtimes().keys() == OURS
    _goes_back(crio, before)


@pytest.mark.parametrize("schema", [2, 3])
@pytest.mark.parametrize("there", [True, False], ids=["a config", "no config"])
def test_d9_containerd_without_a_drop_in_serves_the_runtimes_from_its_config(
    containerd: Nvidia, schema: int, *, there: bool
) -> None:
    if there:
        containerd.config.write_text(f"version = {schema}\nroot = '/fast'\n")
    before = containerd.tree()

    assert containerd.install(RUNTIME_DROP_IN_CONFIG="") == 0

    assert containerd.runtimes().keys() >= OURS
    assert "imports" not in containerd.config.read_text()
    _goes_back(containerd, before)


def _with_secrets(node: Nvidia) -> None:
    node.config.write_text(
        f"version = 3\n['plugins'.'io.containerd.cri.v1.images'.registry.configs.x.auth]\npassword = '{PASSWORD}'\n"
        f"[{V3}.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
    )
    node.config.chmod(0o600)


def test_d10_no_password_comes_into_the_drop_in(containerd: Nvidia) -> None:
    _with_secrets(containerd)

    assert containerd.install() == 0

    assert containerd.runtimes().keys() == OURS
    assert PASSWORD not in containerd.drop_in.read_text()
    readable = [path for path in containerd.root.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert [path for path in readable if PASSWORD in path.read_text(errors="replace")] == []


def test_d11_the_drop_in_freezes_nothing_of_the_config(containerd: Nvidia) -> None:
    _with_secrets(containerd)

    assert containerd.install() == 0

    tree = containerd.table(containerd.drop_in)
    assert tree.keys() == {"runtimes", "default_runtime_name"}
    assert containerd.drop_in.read_text().count("[") == 1 + 2 * len(OURS)


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        pytest.param(
            "docker", '{\r\n\t"b": 1,  "a": 12345678901234567890}\r\n', id="docker: order, CRLF, a big number"
        ),
        pytest.param("docker", '\ufeff{"a": "<&>"}', id="docker: BOM"),
        pytest.param(
            "containerd", "version = 2 # ours\n\n\nroot = '/x'\r\n", id="containerd: comments and CRLF"
        ),
        pytest.param("containerd", "# only a comment\n", id="containerd: comments only"),
        pytest.param("containerd", "version = 3\n# tail", id="containerd: no final newline"),
        pytest.param("crio", "[crio]\n  # indented\n", id="crio"),
    ],
)
def test_d14_a_config_comes_back_byte_for_byte(tmp_path: Path, engine: str, text: str) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text(text, newline="")
    before = node.tree()
    code = node.install()
    assert code in {0, 1}
    assert code == 0 or node.tree() == before
    _goes_back(node, before)


def test_d15_the_import_and_every_directory_of_ours_go(containerd: Nvidia) -> None:
    _with_secrets(containerd)
    before = containerd.tree()

    assert containerd.install() == 0
    assert "imports" in containerd.config.read_text()

    _goes_back(containerd, before)


@pytest.mark.parametrize(
    "theirs", ["10-user.toml", "99-nvidia.toml"], ids=["beside ours", "in the place of ours"]
)
@pytest.mark.parametrize("schema", [2, 3])
def test_d16_a_config_of_imports_only_and_a_drop_in_of_the_users_stay(
    containerd: Nvidia, schema: int, theirs: str
) -> None:
    containerd.config.write_text(f'version = {schema}\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    containerd.drop_in.parent.mkdir()
    containerd.drop_in.with_name(theirs).write_text(f"version = {schema}\n# theirs\n")
    before = containerd.tree()

    assert containerd.install() == 0

    _goes_back(containerd, before)


@pytest.mark.parametrize("engine", ENGINES)
def test_d17_an_unknown_restart_mode_is_refused_before_anything(tmp_path: Path, engine: str) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text(EMPTY[engine])
    before = node.tree()

    assert node.install(RUNTIME_RESTART_MODE="reload") == 1

    assert node.tree() == before


@pytest.mark.parametrize("default", ["crun", "kata", None])
def test_d19_dockers_own_default_comes_back_and_none_is_left_where_there_was_none(
    docker: Nvidia, default: str | None
) -> None:
    if default:
        docker.config.write_text(
            f'{{"default-runtime": "{default}", "runtimes": {{"{default}": {{"path": "/b/{default}"}}}}}}'
        )
    before = docker.tree()

    assert docker.install() == 0
    assert json.loads(docker.config.read_text())["default-runtime"] == "nvidia"

    _goes_back(docker, before)


@pytest.mark.parametrize("engine", ENGINES)
def test_d20_runtimes_of_our_name_that_an_administrator_had_come_back(tmp_path: Path, engine: str) -> None:
    node = Nvidia(tmp_path, engine)
    binary = "/usr/bin/nvidia-container-runtime"
    node.config.write_text(
        {
            "docker": f'{{"runtimes": {{"nvidia": {{"path": "{binary}", "runtimeArgs": ["-v"]}}}}}}',
            "containerd": f'version = 2\n[{V2}.runtimes.nvidia.options]\nBinaryName = "{binary}"\n',
            "crio": f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{binary}"\n',
        }[engine]
    )
    before = node.tree()

    assert node.install() == 0
    assert f"{TOOLKIT}/nvidia-container-runtime" in json.dumps(node.runtimes()["nvidia"])

    _goes_back(node, before)


def test_d21_the_default_of_a_schema_1_file_comes_back(containerd: Nvidia) -> None:
    containerd.config.write_text(
        '[plugins.cri.containerd]\ndefault_runtime_name = "crun"\n[plugins.cri.containerd.runtimes.crun]\n'
        'runtime_type = "io.containerd.runc.v2"\n'
    )
    before = containerd.tree()

    assert containerd.install(CONTAINERD_USE_LEGACY_CONFIG="true", RUNTIME_DROP_IN_CONFIG="") == 0
    assert containerd.table(containerd.config)["default_runtime_name"] == "nvidia"

    _goes_back(containerd, before)


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

    assert containerd.install(CONTAINERD_USE_LEGACY_CONFIG="true") == 0
    table = containerd.table(containerd.config)
    assert (table["default_runtime_name"], table["default_runtime"]["runtime_type"]) == ("nvidia", "")
    assert containerd.toolkit_config()["nvidia-container-runtime"]["runtimes"] == ["runc", "crun"]
    if edited:
        with containerd.config.open("a") as file:
            file.write("# theirs\n")
        assert containerd.uninstall() == 0
        text = containerd.config.read_text()
        assert text.endswith("# theirs\n")
        containerd.config.write_text(text.removesuffix("# theirs\n"))
        assert containerd.tree() == before
    else:
        _goes_back(containerd, before)


@pytest.mark.parametrize("default", ["true", "false"])
@pytest.mark.parametrize(
    "theirs", ["", "# mine\n[crio.runtime]\nlog_to_journald = true\n"], ids=["none", "theirs"]
)
def test_d22_crios_drop_in_goes_or_is_again_what_it_was(crio: Nvidia, default: str, theirs: str) -> None:
    crio.config.write_text("[crio]\n")
    if theirs:
        crio.drop_in.parent.mkdir()
        crio.drop_in.write_text(theirs)
    before = crio.tree()

    assert crio.install(NVIDIA_RUNTIME_SET_AS_DEFAULT=default) == 0
    assert crio.runtimes().keys() == OURS

    _goes_back(crio, before)


@pytest.mark.parametrize("engine", ["containerd", "crio"])
def test_d23_a_drop_in_that_somebody_deleted_does_not_stop_the_undo(tmp_path: Path, engine: str) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text("version = 3\n" if engine == "containerd" else "[crio]\n")
    before = node.tree()
    assert node.install() == 0
    node.drop_in.unlink()

    _goes_back(node, before)


def test_d23_a_hook_that_somebody_deleted_does_not_stop_the_undo(crio: Nvidia) -> None:
    crio.config.write_text("[crio]\n")
    before = crio.tree()
    assert crio.install(CRIO_CONFIG_MODE="hook") == 0
    hook = crio.root / "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
    assert json.loads(hook.read_text())["hook"]["path"] == f"{TOOLKIT}/nvidia-container-runtime-hook"
    hook.unlink()

    _goes_back(crio, before)


@pytest.mark.parametrize("text", ["version = 3\n", ""], ids=["a config", "an empty one"])
def test_d25_a_link_stays_a_link_and_its_target_comes_back(containerd: Nvidia, text: str) -> None:
    target = containerd.root / "srv/config.toml"
    target.parent.mkdir()
    target.write_text(text)
    containerd.config.symlink_to("/srv/config.toml")
    before = containerd.tree()

    assert containerd.install() == 0
    assert containerd.config.is_symlink()

    _goes_back(containerd, before)


def test_d26_a_config_that_cannot_be_written_leaves_no_live_drop_in(containerd: Nvidia) -> None:
    containerd.config.write_text("version = 3\n")
    os.link(containerd.config, containerd.config.with_name("link"))
    before = containerd.tree()

    assert containerd.install() == 1

    assert containerd.tree() == before


def test_d27_dockers_other_features_numbers_and_spellings_stay(docker: Nvidia) -> None:
    text = (
        '{"features": {"buildkit": true, "containerd-snapshotter": true}, "n": 9007199254740993, "h": "<&>"}'
    )
    docker.config.write_text(text)
    before = docker.tree()

    assert docker.install(RUNTIME_ENABLE_CDI="true") == 0

    said = json.loads(docker.config.read_text())
    assert said["features"] == {"buildkit": True, "containerd-snapshotter": True, "cdi": True}
    assert '"n": 9007199254740993, "h": "<&>"' in docker.config.read_text()
    _goes_back(docker, before)


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        *(
            pytest.param("docker", text, id=f"docker: {name}")
            for name, text in {
                "null": "null",
                "runtimes null": '{"runtimes": null}',
                "runtimes a list": '{"runtimes": []}',
                "runtimes a text": '{"runtimes": "x"}',
                "runc null": '{"runtimes": {"runc": null}}',
                "an entry a text": '{"default-runtime": "x", "runtimes": {"x": "y"}}',
                "default null": '{"default-runtime": null}',
                "values null": '{"runtimes": {"x": null}}',
                "a second value": "{} {}",
                "a NUL": "{}\0",
                "empty": "",
                "too deep": "[" * 10001,
            }.items()
        ),
        pytest.param(
            "containerd", f'version = 2\n[{V2}.runtimes]\nrunc = "x"\n', id="containerd: runc a text"
        ),
        pytest.param("containerd", "version = 2.0\n", id="containerd: version a float"),
        pytest.param("containerd", "version = 2\nplugins = 1\n", id="containerd: plugins a number"),
        pytest.param("crio", '[crio.runtime.runtimes]\nrunc = "x"\n', id="crio: runc a text"),
    ],
)
@pytest.mark.parametrize("default", ["true", "false"])
def test_d28_no_input_is_a_crash(
    tmp_path: Path, engine: str, text: str, default: str, capfd: pytest.CaptureFixture[str]
) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text(text)
    before = node.tree()

    code = node.install(NVIDIA_RUNTIME_SET_AS_DEFAULT=default)

    assert code in {0, 1}
    if code:
        said = json.loads(capfd.readouterr().err.splitlines()[-1])
        assert said["event"] == "failed"
        assert str(node.config.name) in said["problem"]
        assert node.tree() == before
    _goes_back(node, before)


def test_d29_the_override_is_applied_and_wins_over_what_is_inherited(containerd: Nvidia) -> None:
    containerd.config.write_text(f"version = 2\n[{V2}.runtimes.runc.options]\nSystemdCgroup = true\n")
    before = containerd.tree()

    code = containerd.install(
        RUNTIME_CONFIG_OVERRIDE='{"options": {"SystemdCgroup": false, "NoNewKeyring": true}}'
    )

    assert code == 0
    for name in OURS:
        assert containerd.runtimes()[name]["options"] == {
            "SystemdCgroup": False,
            "NoNewKeyring": True,
            "BinaryName": f"{TOOLKIT}/nvidia-container-runtime{name.removeprefix('nvidia').replace('-', '.')}",
        }
    _goes_back(containerd, before)


@pytest.mark.parametrize("text", ["{", "[]", '"x"', '{"a": null}'])
def test_d29_an_override_that_is_none_is_refused(containerd: Nvidia, text: str) -> None:
    before = containerd.tree()

    assert containerd.install(RUNTIME_CONFIG_OVERRIDE=text) == 1
    assert containerd.tree() == before


@pytest.mark.parametrize("path", ["opt/nvidia", "./nvidia", ""])
def test_d30_an_install_dir_that_is_not_absolute_is_refused(docker: Nvidia, path: str) -> None:
    before = docker.tree()

    assert docker.install(ROOT=path) == 1
    assert docker.tree() == before


def test_d30_an_install_dir_with_a_blank_and_a_dollar_is_only_a_name(docker: Nvidia) -> None:
    docker.config.write_text("{}")
    before = docker.tree()

    assert docker.install(ROOT="/opt/a b$(id)") == 0

    wrapper = docker.root / "opt/a b$(id)/toolkit/nvidia-ctk"
    assert "'/opt/a b$(id)/toolkit" in wrapper.read_text()
    assert docker.runtimes()["nvidia"]["path"] == "/opt/a b$(id)/toolkit/nvidia-container-runtime"
    assert docker.uninstall("--install-dir", "/opt/a b$(id)") == 0
    assert docker.tree() == before


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('version = 3\n"" = 1\n[x.""]\ny = 1\n', id="an empty key"),
        pytest.param(
            "version = 3\nday = 1979-05-27\nt = 1979-05-27T07:32:00.123456789Z\n", id="dates and fractions"
        ),
        pytest.param('version = 3\nimports = ["/etc/containerd/other.toml"]\n', id="imports of others"),
        pytest.param('version = 3\nx = "\\u007f"\n', id="DEL"),
        pytest.param("version = 3\nbig = 1e22\nhex = 0xff\n", id="numbers"),
    ],
)
def test_d31_what_toml_allows_stays_as_it_is(containerd: Nvidia, text: str) -> None:
    containerd.config.write_text(text)
    (containerd.config.with_name("other.toml")).write_text("version = 3\n")
    before = containerd.tree()

    assert containerd.install() == 0

    kept = [line for line in text.splitlines() if not line.startswith(("imports", "version"))]
    assert all(line in containerd.config.read_text().splitlines() for line in kept)
    _goes_back(containerd, before)


@pytest.mark.parametrize("engine", ENGINES)
def test_d32_a_second_run_changes_nothing(tmp_path: Path, engine: str) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text(EMPTY[engine])
    assert node.install() == 0
    before = {path: path.stat().st_mtime_ns for path in node.root.rglob("*") if path.is_file()}

    assert node.install() == 0

    assert {path: path.stat().st_mtime_ns for path in node.root.rglob("*") if path.is_file()} == before


def test_d33_a_vm_is_no_low_level_runtime_and_lends_no_options(crio: Nvidia) -> None:
    crio.config.write_text(
        '[crio.runtime]\ndefault_runtime = "kata"\n[crio.runtime.runtimes.kata]\nruntime_path = "/opt/kata"\n'
        'runtime_type = "vm"\nruntime_root = "/run/vc"\nprivileged_without_host_devices = true\n'
    )

    assert crio.install() == 0

    words = crio.toolkit_config()["nvidia-container-runtime"]["runtimes"]
    assert "/opt/kata" not in words
    assert "/run/vc" not in crio.drop_in.read_text()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["runc", "crun"])
def test_d34_the_name_of_a_low_level_runtime_is_refused(tmp_path: Path, engine: str, name: str) -> None:
    node = Nvidia(tmp_path, engine)
    node.config.write_text(EMPTY[engine])
    before = node.tree()

    assert node.install(NVIDIA_RUNTIME_NAME=name) == 1
    assert node.tree() == before


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        pytest.param({"etc/os-release": 'ID=rocky\nID_LIKE="rhel centos fedora"\n'}, "rpm", id="Rocky"),
        pytest.param({"usr/lib/os-release": "ID=sles\n"}, "rpm", id="SLES, in /usr/lib"),
        pytest.param(
            {"etc/os-release": "ID=ubuntu\nID_LIKE=debian\n", "usr/bin/rpm": ""}, "deb", id="Ubuntu with rpm"
        ),
        pytest.param({"usr/bin/rpm": ""}, "rpm", id="only rpm"),
        pytest.param({"usr/bin/rpm": "", "usr/bin/dpkg": ""}, "deb", id="both tools"),
        pytest.param({}, "deb", id="nothing"),
    ],
)
def test_d36_the_packages_are_those_of_the_host(
    docker: Nvidia, files: dict[str, str], kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for path, text in files.items():
        (docker.root / path).parent.mkdir(parents=True, exist_ok=True)
        (docker.root / path).write_text(text)
    before = docker.tree()

    assert docker.install(TOOLKIT_SOURCE_ROOT="") == 1, "no image's packages are here"

    said = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert f"/artifacts/{kind}" in said["problem"], said
    assert docker.tree() == before


def test_d38_a_variable_of_another_engine_does_not_count_and_a_destination_does(
    containerd: Nvidia, capfd: pytest.CaptureFixture[str]
) -> None:
    containerd.config.write_text("version = 3\n")
    sockets = {"RUNTIME_SOCKET": "", "CONTAINERD_SOCKET": "/s"}

    assert containerd.install("/opt/nvidia", DOCKER_CONFIG="/d", **sockets) == 0

    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert "imports" in containerd.config.read_text()
    assert (containerd.root / "opt/nvidia/toolkit").is_symlink()
    assert "CONTAINERD_SOCKET is ignored: RUNTIME_SOCKET is set, although empty, and comes first" in [
        line.get("note") for line in lines
    ]
