"""What admins do with the configs of a containerd between our install and our undo, and how configs are put together.

Each version's own program says what would be in force (``config dump``); it runs no daemon for that.
"""

import tomllib
from pathlib import Path

import pytest

from installer.config_text import WantedKey
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.errors import InstallerError
from installer.model.effective import find_disturbances
from tests.engines.conftest import Containerd
from tests.engines.dumps import OURS, a_node, writes

OLD = f'plugins."{V2_PLUGIN}".containerd'
RUNC = 'runtime_type = "io.containerd.runc.v2"'
DRIVER = f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n[{OLD}.runtimes.runc.options]\nSystemdCgroup = true\n"


@pytest.mark.sampled(16)
def test_runc_stays_where_a_runtime_of_others_takes_the_built_in_one_away(
    containerd: Containerd, tmp_path: Path
) -> None:
    node = a_node(containerd, tmp_path, "version = 2\n")
    node.install()
    node.edit(
        node.config,
        WantedKey((*node.cri(node.config), "runtimes", "mine", "runtime_type"), "io.containerd.runc.v2"),
    )

    done = node.uninstall()

    left = node.truth()
    assert not left.undefined
    assert {"runc", "mine"} <= left.handlers.keys()
    assert done.final is None
    assert not node.names_us()


@pytest.mark.sampled(16)
def test_an_import_that_is_not_there_keeps_containerd_from_starting_whatever_it_dumps(
    containerd: Containerd, tmp_path: Path
) -> None:
    node = a_node(
        containerd, tmp_path, f'version = 2\nimports = ["@/absent.toml"]\n[{OLD}.runtimes.runc]\n{RUNC}\n'
    )
    facts, dry_runs = node.facts(None)
    dumped = node.truth()

    told = dry_runs(facts.engines[0], facts.contents)

    assert told.broken
    assert bool(dumped.broken) == (containerd[1] < (2,)), "2.x prints its defaults"
    with pytest.raises(InstallerError, match=r"absent\.toml"):
        node.install()


@pytest.mark.sampled(16)
def test_a_file_that_nobody_imports_is_not_brought_into_force(containerd: Containerd, tmp_path: Path) -> None:
    version = 3 if containerd[1] >= (2,) else 2
    files = {"conf.d__50-gpu-old": "oom_score = -1\n"}
    node = a_node(containerd, tmp_path, f"version = {version}\n", **files)
    untouched = node.files()

    if containerd[1] >= (2,):
        with pytest.raises(InstallerError, match=r"would load .*/50-gpu-old\.toml too"):
            node.install(drop_in="etc/conf.d/50-gpu.toml")
        assert node.files() == untouched
        node.install(drop_in="etc/conf.d/60-gpu.toml")
    else:
        node.install(drop_in="etc/conf.d/50-gpu.toml")

    assert b"oom_score" not in node.config.read_bytes()
    node.uninstall()
    assert node.files() == untouched


@pytest.mark.sampled(16)
def test_a_runtime_under_the_other_plugin_stays_in_force_and_ours_move_to_it(
    containerd: Containerd, tmp_path: Path
) -> None:
    node = a_node(containerd, tmp_path)
    node.install()
    node.edit(
        node.config,
        WantedKey(
            ("plugins", V3_PLUGIN, "containerd", "runtimes", "mine", "runtime_type"), "io.containerd.runc.v2"
        ),
    )
    edited = node.truth()
    moves = containerd[1] >= (2,)  # which passes over the older plugin where a file has both
    assert (edited.handlers.keys() >= OURS) == (not moves)

    again = node.install()
    run = node.install()

    assert [bool(writes(each)) for each in (again, run)] == [moves, False]
    installed = node.truth()
    assert installed.handlers.keys() >= OURS
    assert [*find_disturbances(edited, installed, OURS)] == []
    node.uninstall()
    left = node.truth()
    assert not OURS & left.handlers.keys()
    assert [*find_disturbances(edited, left, OURS)] == []
    assert tomllib.loads(node.config.read_text())["version"] == 2


@pytest.mark.sampled(16)
@pytest.mark.parametrize("default", [True, False], ids=["default", "no default"])
@pytest.mark.parametrize(
    "root", [None, "version = 2\n", DRIVER], ids=["no file", "only a version", "schema 2"]
)
@pytest.mark.parametrize(
    ("first", "second"),
    [("sid", "trixie"), ("sid", "bookworm"), ("trixie", "sid"), ("bookworm", "sid")],
    ids=["2.1 to 1.7", "2.1 to 1.6", "1.7 to 2.1", "1.6 to 2.1"],
)
def test_a_config_of_ours_serves_the_containerd_that_takes_the_place_of_another(  # noqa: PLR0913 - a table
    containerds: dict[str, Containerd],
    tmp_path: Path,
    first: str,
    second: str,
    root: str | None,
    *,
    default: bool,
) -> None:
    node = a_node(containerds[first], tmp_path, root)
    files = node.files()
    before = node.truth()
    node.install(default=default)
    if root is not None:  # 1.x prints nothing of a file that is not there
        assert [*find_disturbances(before, node.truth(), OURS)] == []

    node.program, node.version = containerds[second]

    assert not node.truth().fatal
    assert node.truth().handlers.keys() == {"runc", *OURS}
    assert writes(node.install(default=default)) == []
    node.uninstall()
    assert node.files() == files
