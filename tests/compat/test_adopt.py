"""What NVIDIA's own installer left: ``uninstall --adopt`` removes it, an install takes it over and gives it back."""

import json
from pathlib import Path

import pytest

from tests.compat.nvidia import CONFIG, DROP_IN, MODES, TOOLKIT, V2, Nvidia

OWNERS = "/usr/bin/nvidia-container-runtime"
LOW_LEVEL = "/opt/site/bin/runc-of-the-site"
HOOK = "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
NRI = {"ENABLE_NRI_PLUGIN": "true", "NRI_NAMESPACE": "gpu-operator"}
PROGRAMS = {name: f"{TOOLKIT}/nvidia-container-runtime{mode}" for name, mode in MODES.items()}
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
USERS_V2 = f"""\
version = 2
# mine
[{V2}]
snapshotter = "overlayfs"
[{V2}.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
DEFAULT_V2 = USERS_V2.replace("snapshotter", 'default_runtime_name = "nvidia"\nsnapshotter')
# As NVIDIA's tool writes them (engine-facts.md#nvidia-runtimes).
TABLES_V2 = "".join(
    f'[{V2}.runtimes.{name}]\nruntime_type = "io.containerd.runc.v2"\nprivileged_without_host_devices = false\n'
    f'runtime_engine = ""\n[{V2}.runtimes.{name}.options]\nBinaryName = "{program}"\nSystemdCgroup = true\n'
    for name, program in PROGRAMS.items()
)
CTKS_V2 = f'[{V2}.runtimes.nvidia.options]\nBinaryName = "{OWNERS}"\n'
CRIOS = '[crio.runtime]\ndefault_runtime = "nvidia"\n' + "".join(
    f'[crio.runtime.runtimes.{name}]\nruntime_path = "{program}"\nruntime_type = "oci"\n'
    for name, program in PROGRAMS.items()
)
DOCKERS = {
    "default-runtime": "nvidia",
    "runtimes": {name: {"args": [], "path": program} for name, program in PROGRAMS.items()},
}


def leave_toolkit(node: Nvidia, *names: str, runtime: str = "runc") -> None:
    """Leave the directory of NVIDIA's toolkit."""
    names = names or (
        "nvidia-container-runtime-hook",
        *(path.rpartition("/")[2] for path in PROGRAMS.values()),
    )
    config = f'[nvidia-container-runtime]\nruntimes = ["{runtime}"]\n'
    node.put({f"{TOOLKIT[1:]}/.config/nvidia-container-runtime/config.toml": config})
    node.put({f"{TOOLKIT[1:]}/{name}": "#! /bin/sh\n" for name in names})
    (node.root / TOOLKIT[1:] / "nvidia-container-toolkit").symlink_to("nvidia-container-runtime-hook")


def adopt(node: Nvidia, event: str = "leftovers found") -> list[dict[str, object]]:
    """Uninstall what NVIDIA's installer left; return each such event."""
    assert node.uninstall("--runtime", node.engine, "--adopt") == 0
    return [each for each in node.events if each["event"] == event]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("before", [{"log-driver": "json-file"}, {"runtimes": {"mine": {"path": "/m"}}}])
def test_dockers_runtimes_and_default_go(docker: Nvidia, before: dict[str, dict[str, object]]) -> None:
    said = {**before, **DOCKERS, "runtimes": before.get("runtimes", {}) | DOCKERS["runtimes"]}  # type: ignore[operator]
    docker.config.write_text(json.dumps(said, indent=4, sort_keys=True))
    leave_toolkit(docker)

    (event,) = adopt(docker)

    assert docker.told() == before
    assert not (docker.root / TOOLKIT[1:]).exists()
    assert event["found"] == ["nvidia, nvidia-cdi, nvidia-legacy in /etc/docker/daemon.json", TOOLKIT]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("engine", "config", "drop_in", "after"),
    [
        ("containerd", DEFAULT_V2 + TABLES_V2, None, USERS_V2),
        ("containerd", IMPORTS + USERS_V2, USERS_V2 + TABLES_V2, USERS_V2),
        ("crio", "[crio]\n", CRIOS, "[crio]\n"),
    ],
    ids=["containerd's own file", "containerd's drop-in", "CRI-O's drop-in"],
)
def test_what_is_in_a_config_or_drop_in_goes_and_the_rest_stays(
    tmp_path: Path, engine: str, config: str, drop_in: str | None, after: str
) -> None:
    node = Nvidia(tmp_path, engine)
    node.put({CONFIG[engine]: config} | ({DROP_IN[engine]: drop_in} if drop_in else {}))
    leave_toolkit(node)

    (event,) = adopt(node)

    assert node.config.read_text() == after
    assert not node.drop_in.exists()
    assert not (node.root / TOOLKIT[1:]).exists()
    assert (f"/{DROP_IN[engine]} as a whole" in str(event["found"])) is bool(drop_in)
    assert ("an import in /etc/containerd/config.toml" in str(event["found"])) is config.startswith("imports")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", [DEFAULT_V2, USERS_V2], ids=["as the default", "not as the default"])
def test_a_drop_in_goes_whose_toolkit_has_gone_before_it_and_only_where_that_was_asked_for(
    containerd: Nvidia, text: str
) -> None:
    containerd.put({CONFIG["containerd"]: IMPORTS + USERS_V2, DROP_IN["containerd"]: text + TABLES_V2})
    before = containerd.tree()

    assert containerd.uninstall("--runtime", "containerd") == 0
    assert [event["event"] for event in containerd.events] == ["missing toolkit named", "nothing to undo"]
    assert "run uninstall --adopt" in str(containerd.events[0]["remedy"])
    assert containerd.tree() == before

    assert len(adopt(containerd)[0]["found"]) == 2  # type: ignore[arg-type]
    assert containerd.config.read_text() == USERS_V2
    assert not containerd.drop_in.exists()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("engine", "files", "kept"),
    [
        (
            "docker",
            {CONFIG["docker"]: f'{{"runtimes": {{"n": {{"path": "{OWNERS}"}}}}}}'},
            [f"n in /{CONFIG['docker']}: it starts {OWNERS}"],
        ),
        ("crio", {f"{TOOLKIT[1:]}/theirs": "1\n"}, []),
        (
            "containerd",
            {CONFIG["containerd"]: IMPORTS + USERS_V2, DROP_IN["containerd"]: CTKS_V2},
            [f"nvidia in /{DROP_IN['containerd']}: it starts {OWNERS}"],
        ),
    ],
    ids=["docker", "a directory", "what nvidia-ctk set up for the host's packages"],
)
def test_where_nvidias_installer_never_was_nothing_is_adopted_and_what_looks_like_it_is_named(
    tmp_path: Path, engine: str, files: dict[str, str], kept: list[str]
) -> None:
    node = Nvidia(tmp_path, engine)
    node.put(files)
    before = node.tree()

    assert [event["runtime"] for event in adopt(node, "runtime kept")] == kept
    assert "leftovers found" not in {event["event"] for event in node.events}
    assert node.tree() == before


def test_an_import_that_serves_others_stays(containerd: Nvidia) -> None:
    others = containerd.drop_in.with_name("10-theirs.toml")
    containerd.put({CONFIG["containerd"]: IMPORTS + USERS_V2, DROP_IN["containerd"]: USERS_V2 + TABLES_V2})
    others.write_text("version = 2\n")

    adopt(containerd)

    assert containerd.config.read_text() == IMPORTS + USERS_V2
    assert others.exists()
    assert not containerd.drop_in.exists()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("docker", json.dumps(DOCKERS)),
        ("containerd", USERS_V2 + TABLES_V2),
        ("crio", f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{PROGRAMS["nvidia"]}"\n'),
    ],
    ids=CONFIG,
)
def test_an_install_takes_over_and_gives_back_what_it_found(tmp_path: Path, engine: str, text: str) -> None:
    node = Nvidia(tmp_path, engine, text)
    leave_toolkit(node)
    with node.installed():
        assert (node.root / TOOLKIT[1:]).is_symlink()
        assert node.runtimes().keys() - {"runc"} == MODES.keys()
        assert not [word for word in node.low_level() if TOOLKIT in word]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", ["config", "hook"])
def test_an_install_on_crio_takes_over_drop_in_and_hook_and_gives_them_back(crio: Nvidia, mode: str) -> None:
    theirs = f'{{"hook": {{"path": "{TOOLKIT}/nvidia-container-toolkit"}}, "version": "1.0.0"}}\n'
    crio.put({CONFIG["crio"]: "[crio]\n", DROP_IN["crio"]: CRIOS, HOOK: theirs})
    leave_toolkit(crio)
    with crio.installed(CRIO_CONFIG_MODE=mode):
        if mode == "config":
            assert crio.runtimes()["nvidia-cdi"]["runtime_path"] == PROGRAMS["nvidia-cdi"]
        else:
            path = json.loads((crio.root / HOOK).read_text())["hook"]["path"]
            assert path == f"{TOOLKIT}/nvidia-container-runtime-hook"
        for name in ("nvidia-container-toolkit", "nvidia-container-runtime"):
            assert (crio.root / TOOLKIT[1:] / name).exists(), "what the other file of theirs names is there"


# The GPU Operator switches NRI on where a pod without it was killed: its handlers are in the engine's config.
def left_for_nri(node: Nvidia, program: str = PROGRAMS["nvidia"]) -> None:
    leave_toolkit(node, "nvidia-container-runtime", "nvidia-ctk", runtime=LOW_LEVEL)
    table = f'[{V2}.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
    node.config.write_text(f'version = 2\n{table}[{V2}.runtimes.nvidia.options]\nBinaryName = "{program}"\n')


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("pod", "expected"),
    [("ours", [LOW_LEVEL, "runc", "crun"]), ("NVIDIA's", [LOW_LEVEL]), ("none", ["runc", "crun"])],
)
def test_with_nri_the_low_level_runtimes_of_a_killed_pod_stay(
    containerd: Nvidia, pod: str, expected: list[str]
) -> None:
    if pod == "NVIDIA's":
        left_for_nri(containerd)
    elif pod == "ours":
        containerd.config.write_text(f'{USERS_V2}[{V2}.runtimes.runc.options]\nBinaryName = "{LOW_LEVEL}"\n')
        assert containerd.install() == 0

    assert [containerd.install(**NRI), containerd.install(**NRI)] == [0, 0]

    assert containerd.low_level() == expected


def test_with_nri_nvidias_directory_comes_back_for_the_handlers_that_it_has_left(containerd: Nvidia) -> None:
    left_for_nri(containerd)
    with containerd.installed(**NRI):
        assert (containerd.root / TOOLKIT[1:]).is_symlink()


def test_with_nri_a_program_that_nvidias_directory_does_not_have_keeps_ours(containerd: Nvidia) -> None:
    left_for_nri(containerd, PROGRAMS["nvidia-cdi"])
    assert containerd.install(**NRI) == 0

    assert containerd.uninstall() == 4

    assert "nvidia-container-runtime.cdi" in str(containerd.events)
    assert (containerd.root / TOOLKIT[1:] / "nvidia-container-runtime.cdi").exists()
