"""What a node tells besides its settings, by files that are there or not, and by who answers."""

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.observe import find_moved
from installer.engines import ENGINES
from installer.engines.dependencies import (
    driver_root,
    is_suse,
    served_by_image,
    without_cri,
)
from installer.engines.observe import drop_unused, refuse_generated, refuse_unknown
from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.engine_spec import EffectiveConfig, Runtime
from installer.model.facts import EngineRow, EngineState, Record
from installer.model.files import File, Layout
from installer.model.options import Options
from tests.host.servers import FakeSystemd, FakeUnit, serving
from tests.support.live import ONE, PODS, containerd, live

UBUNTU, SLES = 'ID=ubuntu\nID_LIKE="debian"\n', 'ID="sles"\nID_LIKE="suse"\n'
TALOS, BOTTLEROCKET = "ID=talos\n", "ID=bottlerocket\n"


def node(root: Path, *files: str, **texts: str) -> Host:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    for name, text in texts.items():
        (root / "etc").mkdir(exist_ok=True)
        (root / "etc" / name.replace("_", "-")).write_text(text)
    return Host.under(PurePosixPath(root))


@pytest.mark.parametrize(
    ("said", "suse", "image"),
    [
        (None, False, ""),
        ("", False, ""),
        ("no equals sign\n", False, ""),
        (UBUNTU, False, ""),
        (SLES, True, ""),
        (TALOS, False, "install on this node (on Talos the toolkit is a system extension, and runtimes"),
        (BOTTLEROCKET, False, "install on this node (Bottlerocket's image for NVIDIA has the toolkit"),
    ],
)
def test_the_family_of_a_system(tmp_path: Path, said: str | None, image: str, *, suse: bool) -> None:
    host = node(tmp_path, **({} if said is None else {"os_release": said}))
    found = next(served_by_image(host), None)

    assert is_suse(host) == suse
    assert (found.problem if found else "").startswith(image)
    assert (found is None) == (image == "")
    off, _, why = without_cri(host, ["docker"]).partition(": ")
    assert (off, why) == (
        ("its CRI is switched off", found.problem[len("install on this node (") : -1])
        if found
        else ("its CRI is switched off, it serves Docker", "")
    )


def test_who_a_containerd_without_cri_serves_is_told(tmp_path: Path) -> None:
    host = node(tmp_path)

    assert without_cri(host, ["crio"]) == "its CRI is switched off"
    assert without_cri(host, ["crio", "docker"]) == "its CRI is switched off, it serves Docker"


HELD_BY_HOST = "usr/lib64/libnvidia-ml.so.580.1"


@pytest.mark.parametrize(
    ("files", "asked", "found", "note"),
    [
        ((), "auto", "/run/nvidia/driver", ""),
        ((), "/opt/driver", "/opt/driver", ""),
        ((HELD_BY_HOST,), "auto", "/", "holds the driver: the toolkit looks for it in /"),
        ((HELD_BY_HOST,), "/run/nvidia/driver", "/run/nvidia/driver", "consider --driver-root /"),
        ((HELD_BY_HOST,), "/opt/driver", "/opt/driver", ""),
        ((HELD_BY_HOST, "run/nvidia/driver/usr"), "auto", "/run/nvidia/driver", ""),
        (("usr/lib64/libnvidia-cfg.so.1",), "auto", "/run/nvidia/driver", ""),
    ],
)
def test_where_the_driver_is(
    tmp_path: Path, files: tuple[str, ...], asked: str, found: str, note: str
) -> None:
    root, notes = driver_root(node(tmp_path, *files), Options(driver_root=asked))

    assert root == found
    assert bool(notes) == bool(note)
    assert all(note in each for each in notes)


@pytest.mark.parametrize(
    ("named", "ledger", "told"),
    [
        ("/opt/nvidia", True, "an engine's config still names the toolkit in /opt/nvidia"),
        ("/opt/nvidia", False, ""),  # a toolkit of somebody else's
        ("/usr/local/nvidia", True, ""),
        (None, True, ""),
    ],
)
def test_an_install_dir_does_not_move_while_an_engine_names_the_other(
    tmp_path: Path, named: str | None, told: str, *, ledger: bool
) -> None:
    layout = Layout(PurePosixPath(named or "/opt/nvidia"))
    host = node(tmp_path, *([str(layout.ledger).lstrip("/")] if ledger else []))
    text = File(f'{{"path": "{named}/toolkit/nvidia-container-runtime"}}'.encode()) if named else None

    found = [error.problem for error in find_moved(host, Options(), [text, None])]

    assert [each.partition("(")[2].rstrip(")") for each in found] == ([told] if told else [])


OURS = EffectiveConfig({"nvidia": Runtime("/usr/local/nvidia/toolkit/nvidia-container-runtime")}, "runc")


@pytest.mark.parametrize(
    ("act", "left"),
    [
        pytest.param("nothing", True, id="nobody uses it"),
        pytest.param("kubelet", False, id="a kubelet"),
        pytest.param("pod", False, id="a pod"),
        pytest.param("silent", False, id="one that cannot be asked"),
        pytest.param("serving", False, id="a runtime of ours"),
        pytest.param("row", False, id="a row of the ledger"),
    ],
)
def test_a_containerd_that_only_serves_docker_is_left_alone(tmp_path: Path, act: str, *, left: bool) -> None:
    row = ENGINES["docker"]
    docker = EngineState("docker", row.config, None, None, (), row.socket, row.unit)
    with live(tmp_path) as there:
        beside = containerd()
        held = Record()
        if act == "kubelet":
            node(tmp_path, "var/lib/kubelet/config.yaml")
        elif act == "row":
            held = Record(engines=(EngineRow("containerd", beside.socket, beside.unit, {}),))
        there.answers[PODS] = ONE if act == "pod" else b""
        if act == "silent":
            del there.answers[PODS]
        beside = replace(beside, serving=OURS if act == "serving" else None)
        engines, notes = drop_unused(there.host, held, (docker, beside))
        stopped = replace(held, engines=(*held.engines, EngineRow("docker", row.socket, row.unit, {})))
        assert drop_unused(there.host, stopped, (beside,)) == (() if left else (beside,), notes)

    assert [each.name for each in engines] == (["docker"] if left else ["docker", "containerd"])
    assert notes == (
        ("left containerd alone: it serves Docker, and its CRI is not used (no kubelet, no pod)",)
        if left
        else ()
    )
    assert drop_unused(there.host, held, (beside,)) == ((beside,), ())


@pytest.mark.parametrize("runs", [True, False])
def test_a_socket_of_two_engines_needs_a_unit_that_tells_them_apart(tmp_path: Path, *, runs: bool) -> None:
    row = ENGINES["rke2"]
    facts = EngineState("rke2", row.config, None, None, (), row.socket, "")
    (tmp_path / "run/dbus").mkdir(parents=True)
    systemd = FakeSystemd({"k3s.service": FakeUnit()} if runs else {})

    with serving(tmp_path / "run/dbus/system_bus_socket", systemd):
        host = Host.under(PurePosixPath(tmp_path))
        if runs:
            refuse_unknown(host, facts)
        else:
            with pytest.raises(InstallerError, match=r"tell whose containerd answers on .*k3s-agent.*rke2"):
                refuse_unknown(host, facts)


@pytest.mark.parametrize("name", ["k3s", "rke2"])
def test_a_config_that_another_engine_makes_is_not_edited(name: str) -> None:
    row = ENGINES["containerd"]
    theirs = ENGINES[name]
    usual = EngineState("containerd", row.config, None, None, (), row.socket, row.unit)

    refuse_generated(usual)
    facts = EngineState("containerd", theirs.config, None, None, (), theirs.socket, row.unit)
    with pytest.raises(InstallerError, match=r"configure the containerd of .* \(it writes /") as caught:
        refuse_generated(facts)
    assert f"--runtime {name}" in str(caught.value.remedy)
