"""Directories that the unit of a stopped engine mounts at its next start, compared with those of this process."""

import os
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.host import systemd
from installer.lifecycle.mounts import refuse_unread_configs
from installer.model.engine import EngineState
from installer.model.facts import Record
from installer.model.options import Options
from tests.host.servers import FakeSystemd, FakeUnit
from tests.support.files import put
from tests.support.live import on_bus

UNIT = "docker.service"
CONFIG = "/etc/docker/daemon.json"
OTHER = "/srv/other"
MISSING = "/srv/missing"


def explain(root: Path, mounts: tuple[tuple[str, str], ...], given: str = "") -> str:
    """Return the reason for which Docker, stopped, does not read the config at its usual path; or ""."""
    texts = {
        CONFIG: "{}",
        f"{OTHER}/daemon.json": "{}",
        "/srv/etc/docker/daemon.json": "{}",
        "/srv/opt/file": "",
    }
    host = put(root, texts)
    (root / "srv/linked").mkdir()
    os.link(root / "etc/docker/daemon.json", root / "srv/linked/daemon.json")
    options = Options(host_root=PurePosixPath(root))
    if given:
        place = PurePosixPath(root, given.lstrip("/"))
        options = replace(options, mounts=((PurePosixPath("/etc/docker"), place),))
        host = host.under(options.host_root, options.mounts)
    paths = tuple((PurePosixPath(path), PurePosixPath(source)) for path, source in mounts)
    engine = replace(EngineState.usual(ENGINES["docker"]), stopped=True, unit_mounts=paths)

    try:
        refuse_unread_configs(host, options, Record(), [engine])
    except InstallerError as error:
        return error.problem
    return ""


@pytest.mark.parametrize(
    ("mounts", "place"),
    [
        pytest.param((("/etc/docker", OTHER),), CONFIG, id="its directory"),
        pytest.param(((CONFIG, f"{OTHER}/daemon.json"),), CONFIG, id="the config alone"),
        pytest.param((("/etc", "/srv/etc"),), CONFIG, id="a directory above"),
        pytest.param((("/", "/srv"),), CONFIG, id="a root directory"),
        pytest.param((("/etc/docker", "/srv/linked"),), "/etc/docker", id="hard links of the config"),
    ],
)
def test_another_file_or_directory_in_the_place_of_the_config_is_refused(
    tmp_path: Path, mounts: tuple[tuple[str, str], ...], place: str
) -> None:
    said = explain(tmp_path, mounts)

    assert said == f"edit {CONFIG} of Docker ({UNIT} mounts another {place} at its next start)"


@pytest.mark.parametrize(
    "mounts",
    [
        pytest.param((), id="nothing"),
        pytest.param((("/opt", "/srv/opt"),), id="another directory"),
        pytest.param((("/etc/docker", "/etc/docker"),), id="the config's directory on itself"),
        pytest.param((("/etc/docker", MISSING),), id="a directory that this process does not have"),
        pytest.param((("/", "/srv"), ("/etc", "/etc")), id="a root directory with the host's /etc"),
        pytest.param(
            (("/etc", "/srv/etc"), ("/etc/docker", "/etc/docker")), id="the config's own one in another one"
        ),
    ],
)
def test_mounts_with_which_an_engine_reads_the_same_config_are_not_refused(
    tmp_path: Path, mounts: tuple[tuple[str, str], ...]
) -> None:
    assert explain(tmp_path, mounts) == ""


def test_the_directory_that_the_unit_mounts_is_taken_by_mount(tmp_path: Path) -> None:
    assert explain(tmp_path, (("/etc/docker", OTHER),), given=OTHER) == ""


def test_a_directory_by_mount_that_the_unit_does_not_mount_is_refused(tmp_path: Path) -> None:
    said = explain(tmp_path, (("/etc", "/srv/etc"),), given=OTHER)

    assert said.endswith(f"({UNIT} mounts another {CONFIG} at its next start)")


def test_the_mounts_of_a_unit_are_read_with_its_state(tmp_path: Path) -> None:
    bind = "a(ssbt)"
    unit = FakeUnit(
        properties={
            "RootDirectory": ("s", "/srv/root"),
            "BindPaths": (bind, [(OTHER, "/etc/docker", False, 16384)]),
            "BindReadOnlyPaths": (bind, [("/usr", "/usr", True, 0)]),
        }
    )
    host = put(tmp_path, {})

    with on_bus(tmp_path, FakeSystemd({UNIT: unit})):
        state = systemd.read_unit(host, UNIT)

    assert state.mounts == (("/", "/srv/root"), ("/etc/docker", OTHER), ("/usr", "/usr"))
