"""Where an installation is, and what is ours, as far as files tell: no ledger says so."""

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.cdi.plan import SPECIFICATION
from installer.change.unrecorded import find_install_dir, find_lost_specification, find_toolkits
from installer.host.files import Host
from installer.model.files import Layout
from installer.model.options import Options, Places
from tests.support.site import Site

USUAL, OTHER, THIRD = "/usr/local/nvidia", "/opt/nvidia", "/srv/nvidia"
DAEMON, TOML = "etc/docker/daemon.json", "etc/containerd/config.toml"


def names(place: str) -> str:
    return f'{{"path": "{place}/toolkit/nvidia-container-runtime"}}'


def node(root: Path, homes: tuple[str, ...], **files: str) -> Host:
    for home in homes:
        (root / str(Layout(PurePosixPath(home)).home)[1:]).mkdir(parents=True)
    for name, text in files.items():
        path = root / {"docker": DAEMON, "containerd": TOML}.get(name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host.under(PurePosixPath(root))


@pytest.mark.parametrize(
    ("homes", "files", "asked", "found"),
    [
        pytest.param((OTHER,), {}, USUAL, USUAL, id="there, and not named"),
        pytest.param((USUAL, OTHER), {"docker": names(OTHER)}, USUAL, USUAL, id="the usual one is there"),
        pytest.param(
            (OTHER,),
            {"docker": names(OTHER), "containerd": names(THIRD)},
            THIRD,
            THIRD,
            id="its ledger is lost",
        ),
        pytest.param(
            (), {"docker": names(OTHER)}, THIRD, THIRD, id="nothing where it was said, nor elsewhere"
        ),
    ],
)
def test_which_installation_is_meant(
    tmp_path: Path, homes: tuple[str, ...], files: dict[str, str], asked: str, found: str
) -> None:
    host = node(tmp_path, homes, **files)
    options = replace(Options(), install_dir=PurePosixPath(asked))

    assert str(find_install_dir(host, options).install_dir) == found
    adopting = replace(options, adopt=True)
    assert find_install_dir(host, adopting) is adopting


def test_configs_name_a_toolkit_where_engines_read_them(tmp_path: Path) -> None:
    host = node(
        tmp_path,
        (),
        docker=names(OTHER),
        **{
            "etc/containerd/conf.d/x.toml": names(OTHER),
            "etc/containerd/conf.d/x.toml.bak": names(THIRD),
            "etc/crio/crio.conf.d/x.conf": names(USUAL),
            "srv/daemon.json": names(THIRD),
        },
    )
    (tmp_path / "etc/containerd/config.toml").mkdir()

    found = find_toolkits(host, {})
    told = find_toolkits(host, {"docker": Places(config=PurePosixPath("/srv/daemon.json"))})

    assert {
        str(place): {str(path): name for path, name in each.items()} for place, each in found.items()
    } == {
        OTHER: {"/etc/docker/daemon.json": "docker", "/etc/containerd/conf.d/x.toml": "containerd"},
        USUAL: {"/etc/crio/crio.conf.d/x.conf": "crio"},
    }
    assert {str(path): name for path, name in told[PurePosixPath(THIRD)].items()} == {
        "/srv/daemon.json": "docker"
    }


@pytest.mark.parametrize(
    ("text", "directory", "ours"),
    [
        (f'{{"path": "{Layout().cdi_hook}"}}', False, True),
        (f'{{"path": "{Layout().cdi_hook}"}}', True, False),  # NVIDIA's toolkit has that name
        (f'{{"path": "{Layout().cdi_hook}.old"}}', False, False),
    ],
)
def test_a_specification_is_ours_that_names_our_hook(
    tmp_path: Path, text: str, *, directory: bool, ours: bool
) -> None:
    host = node(tmp_path, (), **{str(SPECIFICATION)[1:]: text})
    if directory:
        (tmp_path / str(Layout().toolkit)[1:]).mkdir(parents=True)

    found = find_lost_specification(host, Layout())

    assert (found is not None) == ours
    assert found is None or found.path == SPECIFICATION


def test_a_drop_in_that_its_owner_has_commented_out_is_nothing_of_ours(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.call("install").returncode == 0
    drop_in = site.root / "etc/crio/crio.conf.d/99-nvidia.toml"
    drop_in.write_text("".join(f"#{line}\n" for line in drop_in.read_text().splitlines()))

    done, told = site.call("uninstall"), site.status()

    assert (done.returncode, told.returncode) == (0, 3), told.stdout
