"""What admins do with the configs of a containerd between our install and our undo, and how configs are put together.

Each version's own program says what would be in force (``config dump``); it runs no daemon for that.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from installer.config_text import Want
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.errors import InstallerError
from installer.model.engine_spec import find_disturbances
from tests.engines.dumps import OURS, Containerd, Node, a_node, writes

OLD = f'plugins."{V2_PLUGIN}".containerd'
NEW = f'plugins."{V3_PLUGIN}".containerd'
RUNC = 'runtime_type = "io.containerd.runc.v2"'
SYSTEMD = "options.SystemdCgroup = true"


def driver(node: Node, name: str) -> bool:
    """Tell whether a runtime uses systemd's cgroup driver, as containerd itself has it."""
    options = node.truth().handlers[name].table.get("options")
    return isinstance(options, Mapping) and options.get("SystemdCgroup") is True


def schema_of(containerd: Containerd) -> tuple[int, str]:
    """Return the newest schema that a containerd reads, and the table of its runtimes."""
    return (3, NEW) if containerd[1] >= (2,) else (2, OLD)


ROOTS = [
    pytest.param(f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n", id="schema 2"),
    pytest.param("version = 2\n", id="only a version"),
    pytest.param("", id="empty"),
]


def test_an_owner_who_makes_one_of_ours_the_default_keeps_them_until_there_is_another(
    containerd: Containerd, tmp_path: Path
) -> None:
    node = a_node(containerd, tmp_path, "version = 2\n")
    node.install()
    default = (*node.cri(node.config), "default_runtime_name")
    node.edit(node.config, Want(default, "nvidia"))

    kept = node.uninstall()

    left = node.truth()
    assert (left.undefined, left.default) == ("", "nvidia")
    assert left.handlers.keys() >= OURS
    assert "the runtime nvidia" in kept.needed[0].problem
    assert kept.final is not None
    node.edit(node.config, Want(default, "runc"))
    assert node.uninstall().needed == ()
    assert not node.truth().undefined
    assert not node.names_us()


def test_runc_stays_where_a_runtime_of_others_takes_the_built_in_one_away(
    containerd: Containerd, tmp_path: Path
) -> None:
    node = a_node(containerd, tmp_path, "version = 2\n")
    node.install()
    node.edit(
        node.config,
        Want((*node.cri(node.config), "runtimes", "mine", "runtime_type"), "io.containerd.runc.v2"),
    )

    done = node.uninstall()

    left = node.truth()
    assert not left.undefined
    assert {"runc", "mine"} <= left.handlers.keys()
    assert done.final is None
    assert not node.names_us()


MERGED = {
    "an older file under a root of schema 3": (
        'version = 3\nimports = ["@/conf.d/old.toml"]\n',
        {"conf.d__old": f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n"},
    ),
    "imports of imports": (
        'version = 2\nimports = ["@/conf.d/*.toml"]\n',
        {
            "conf.d__a": 'imports = ["@/more/b.toml"]\n',
            "more__b": f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n",
        },
    ),
    "wildcards in directories": (
        'version = 2\nimports = ["@/*.d/*.toml"]\n',
        {"conf.d__a": f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n"},
    ),
    "NVIDIA's own as the default, in an import": (
        f'version = 2\nimports = ["@/conf.d/*.toml"]\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n',
        {
            "conf.d__gpu": f'version = 2\n[{OLD}]\ndefault_runtime_name = "nvidia"\n'
            f"[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n"
            f'[{OLD}.runtimes.nvidia]\n{RUNC}\noptions.BinaryName = "/usr/bin/nvidia-container-runtime"\n'
        },
    ),
    "a file with both ids of the plugin": (
        f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n[{NEW}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n",
        {},
    ),
    "CRI's table in an imported file": (
        'version = 2\nimports = ["@/conf.d/*.toml"]\n[grpc]\ngid = 7\n',
        {"conf.d__cri": f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n"},
    ),
    "no schema, and nothing but a directory": ('root = "/var/lib/elsewhere"\n', {}),
}


@pytest.mark.parametrize("case", MERGED)
def test_what_containerd_makes_of_all_files_is_inherited_and_left_alone(
    containerd: Containerd, tmp_path: Path, case: str
) -> None:
    root, files = MERGED[case]
    node = a_node(containerd, tmp_path, root, **files)
    untouched, before = node.files(), node.truth()
    wanted = driver(node, before.default) if before.default in before.handlers else False
    if before.broken or before.undefined:
        with pytest.raises(InstallerError):
            node.install()
        assert node.files() == untouched
        return

    node.install()

    served = node.truth()
    assert [*find_disturbances(before, served, OURS)] == []
    assert served.handlers.keys() >= OURS
    assert {driver(node, name) for name in OURS} == {wanted or driver(node, "runc")}
    node.uninstall()
    assert node.files() == untouched


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(
            {"drop_in": "etc/conf.d/50-gpu.toml", "default": True}, {}, id="drop-in, then root file"
        ),
        pytest.param({"default": True}, {"drop_in": "etc/conf.d/50-gpu.toml"}, id="root file, then drop-in"),
        pytest.param(
            {"drop_in": "etc/conf.d/50-gpu.toml", "default": True},
            {"drop_in": "etc/conf.d/60-gpu.toml"},
            id="another drop-in",
        ),
    ],
)
def test_a_place_that_is_not_wanted_any_more_holds_nothing_of_ours(
    containerd: Containerd, tmp_path: Path, first: Mapping[str, object], then: Mapping[str, object]
) -> None:
    version, table = schema_of(containerd)
    node = a_node(
        containerd,
        tmp_path,
        f'version = {version}\nimports = ["@/conf.d/*.toml"]\n[{table}.runtimes.runc]\n{RUNC}\n',
    )
    untouched, before = node.files(), node.truth()
    node.install(**first)  # type: ignore[arg-type]  # a table of keywords

    node.install(**then)  # type: ignore[arg-type]

    assert node.truth().default == before.default
    assert node.truth().handlers.keys() >= OURS
    holders = [path for path, content in node.files().items() if b"/usr/local/nvidia/toolkit" in content]
    assert len(holders) == 1
    node.uninstall()
    assert node.files() == untouched


def test_an_import_that_is_not_there_keeps_containerd_from_starting_whatever_it_dumps(
    containerd: Containerd, tmp_path: Path
) -> None:
    node = a_node(
        containerd, tmp_path, f'version = 2\nimports = ["@/absent.toml"]\n[{OLD}.runtimes.runc]\n{RUNC}\n'
    )
    facts, trials = node.facts(None)
    dumped = node.truth()

    told = trials(facts.engines[0], facts.contents)

    assert told.broken
    assert bool(dumped.broken) == (containerd[1] < (2,)), "2.x prints its defaults"
    with pytest.raises(InstallerError, match=r"absent\.toml"):
        node.install()


ELSEWHERE = {
    "the default alone": f'version = 2\n[{OLD}]\ndefault_runtime_name = "runc"\n',
    "the default and its runtime": (
        f'version = 2\n[{OLD}]\ndefault_runtime_name = "mine"\n[{OLD}.runtimes.mine]\n{RUNC}\n{SYSTEMD}\n'
    ),
    "the other id of the plugin": f'version = 3\n[{NEW}]\ndefault_runtime_name = "runc"\n',
}


@pytest.mark.parametrize("case", ELSEWHERE)
@pytest.mark.parametrize("drop_in", ["", "etc/conf.d/10-gpu.toml", "etc/conf.d/99-gpu.toml"])
def test_a_default_that_is_asked_for_is_in_force_or_the_file_is_named_that_says_another(
    containerd: Containerd, tmp_path: Path, case: str, drop_in: str
) -> None:
    root = f'version = 2\nimports = ["@/conf.d/*.toml"]\n[{OLD}.runtimes.runc]\n{RUNC}\n'
    node = a_node(containerd, tmp_path, root, **{"conf.d__50-site": ELSEWHERE[case]})
    untouched, before = node.files(), node.truth()
    try:
        node.install(default=True, drop_in=drop_in)
    except InstallerError as error:
        assert before.broken, error  # 1.7 reads no schema 3
        assert "50-site.toml" in error.problem
        assert node.files() == untouched
        return
    assert node.truth().default == "nvidia"
    assert [*find_disturbances(before, node.truth(), OURS)] == []
    node.uninstall()
    assert node.files() == untouched


def test_a_file_that_nobody_imports_is_not_brought_into_force(containerd: Containerd, tmp_path: Path) -> None:
    version, _ = schema_of(containerd)
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


DROP_IN = "etc/conf.d/99-nvidia.toml"


@pytest.mark.parametrize("pattern", ["@/conf.d/*.toml", "conf.d/*", "conf.d/[0-9]*-gpu.tom?"])
def test_what_a_wildcard_takes_on_the_disk_is_no_part_of_what_is_asked_about(
    containerd: Containerd, tmp_path: Path, pattern: str
) -> None:
    root, text = f'version = 2\nimports = ["{pattern}"]\n', f"[{OLD}.runtimes.mine]\n{RUNC}\n"
    node = a_node(containerd, tmp_path, root, **{"conf.d__50-gpu": text})
    facts, trials = node.facts(None)
    engine = facts.engines[0]

    with_it = trials(engine, facts.contents)
    without = trials(engine, {**facts.contents, engine.files[1]: None})

    assert "mine" in with_it.handlers
    assert set(without.handlers) == {"runc"}


def test_a_runtime_can_be_renamed_after_a_migration(containerd: Containerd, tmp_path: Path) -> None:
    node = a_node(containerd, tmp_path, f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n")
    before = node.truth()
    node.install()
    node.migrate()

    node.install(name="gpu")

    assert node.truth().handlers.keys() == {*before.handlers, "gpu", *(OURS - {"nvidia"})}
    done = node.uninstall()
    assert (done.needed, done.final) == ((), None)
    assert node.truth().handlers.keys() == before.handlers.keys()
    assert not node.names_us()


@pytest.mark.parametrize("default", [True, False], ids=["default", "no default"])
@pytest.mark.parametrize("drop_in", ["", DROP_IN], ids=["root file", "drop-in"])
def test_a_runtime_that_was_made_to_start_another_program_is_served_as_before(
    containerd: Containerd, tmp_path: Path, drop_in: str, *, default: bool
) -> None:
    node = a_node(containerd, tmp_path, f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n")
    before = node.truth()
    node.install(default=default, drop_in=drop_in)
    (place,) = (Path(path) for path, content in node.files().items() if b"/usr/local/nvidia" in content)
    place.write_text(
        re.sub(r'"/usr/local/nvidia/.*container-runtime"', '"/usr/sbin/runc"', place.read_text())
    )
    lived = node.truth()
    assert lived.handlers["nvidia"].binary == "/usr/sbin/runc"

    done = node.uninstall()

    left = node.truth()
    assert left.handlers["nvidia"] == lived.handlers["nvidia"]
    assert left.default == before.default
    if place != node.config:  # which would not be read any more without our import of it
        assert "the runtime nvidia would be lost" in done.needed[0].problem
        assert f"move what was added to {place} to a file of its own" in str(done.needed[0].remedy)
        assert left.handlers == lived.handlers
        return
    assert (done.needed, done.final) == ((), None)
    assert left.handlers == {**before.handlers, "nvidia": lived.handlers["nvidia"]}
    assert any("left the runtime nvidia in" in note for note in done.notes)
    assert not node.names_us()


@pytest.mark.parametrize("default", [True, False], ids=["default", "no default"])
@pytest.mark.parametrize("root", [pytest.param(None, id="no file"), *ROOTS])
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
