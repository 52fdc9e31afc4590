"""What admins do with the configs of a containerd between our install and our undo, and how configs are put together.

Each version's own program says what would be in force (``config dump``); it runs no daemon for that.
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from installer.config_text import ABSENT, Want
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.errors import InstallerError
from installer.model.engine_spec import find_disturbances
from tests.engines.dumps import HOST, OURS, Node, writes

Containerd = tuple[Path, tuple[int, ...]]
OLD = f'plugins."{V2_PLUGIN}".containerd'
NEW = f'plugins."{V3_PLUGIN}".containerd'
RUNC = 'runtime_type = "io.containerd.runc.v2"'
SYSTEMD = "options.SystemdCgroup = true"


def a_node(containerd: Containerd, directory: Path, root: str | None = None, **files: str) -> Node:
    """Return a node with a root file and others; ``@`` stands for the directory of the configs."""
    node = Node(*containerd, directory)
    node.config.parent.mkdir(parents=True)
    texts = {"config": root, **files} if root is not None else files
    for name, text in texts.items():
        path = node.config.parent / f"{name.replace('__', '/')}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("@", str(node.config.parent)))
    return node


def driver(node: Node, name: str) -> bool:
    """Tell whether a runtime uses systemd's cgroup driver, as containerd itself has it."""
    options = node.truth().handlers[name].table.get("options")
    return isinstance(options, Mapping) and options.get("SystemdCgroup") is True


def names_us(node: Node) -> bool:
    return any(b"/usr/local/nvidia/toolkit" in content for content in node.files().values())


def schema_of(containerd: Containerd) -> tuple[int, str]:
    """Return the newest schema that a containerd reads, and the table of its runtimes."""
    return (3, NEW) if containerd[1] >= (2,) else (2, OLD)


ROOTS = [
    pytest.param(f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n", id="schema 2"),
    pytest.param("version = 2\n", id="only a version"),
    pytest.param("", id="empty"),
]


@pytest.mark.parametrize("root", ROOTS)
def test_an_owner_who_makes_one_of_ours_the_default_keeps_them_until_there_is_another(
    containerd: Containerd, tmp_path: Path, root: str
) -> None:
    node = a_node(containerd, tmp_path, root)
    node.install()
    node.edit(node.config, Want((*node.cri(node.config), "default_runtime_name"), "nvidia"))

    kept = node.uninstall()

    left = node.truth()
    assert not left.undefined
    assert left.default == "nvidia"
    assert left.handlers.keys() & OURS == OURS
    assert "the runtime nvidia" in kept.needed[0].problem
    assert kept.final is not None
    assert kept.final.toolkit is not None

    node.edit(node.config, Want((*node.cri(node.config), "default_runtime_name"), "runc"))
    rest = node.uninstall()

    assert rest.needed == ()
    assert rest.final is None
    assert not node.truth().undefined
    assert not names_us(node)


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
    assert not names_us(node)


def test_settings_that_were_put_into_a_file_of_ours_stay_in_force(
    containerd: Containerd, tmp_path: Path
) -> None:
    node = a_node(containerd, tmp_path)
    node.install()
    node.edit(node.config, Want((*node.cri(node.config)[:-1], "cni", "conf_dir"), "/etc/site/net.d"))
    lived = node.truth()

    done = node.uninstall()

    assert [*find_disturbances(lived, node.truth(), OURS)] == []
    assert "/etc/site/net.d" in node.config.read_text()
    assert done.final is None
    assert not names_us(node)


@pytest.mark.parametrize("default", [True, False], ids=["default", "no default"])
def test_our_keys_are_found_where_a_migration_has_moved_them(
    containerd: Containerd, tmp_path: Path, *, default: bool
) -> None:
    node = a_node(containerd, tmp_path, f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n")
    before = node.truth()
    node.install(default=default)
    node.migrate()

    done = node.uninstall()

    left = node.truth()
    assert done.needed == ()
    assert done.final is None
    assert not names_us(node)
    assert left.handlers.keys() == before.handlers.keys()
    assert left.default == before.default
    assert [*find_disturbances(before, left, ())] == []


def test_a_default_that_is_gone_does_not_come_back(containerd: Containerd, tmp_path: Path) -> None:
    node = a_node(
        containerd,
        tmp_path,
        f'version = 2\n[{OLD}]\ndefault_runtime_name = "crun"\n[{OLD}.runtimes.runc]\n{RUNC}\n'
        f'[{OLD}.runtimes.crun]\n{RUNC}\noptions.BinaryName = "/usr/bin/crun"\n',
    )
    node.install(default=True)
    text = node.config.read_text()
    start = text.index(f"[{OLD}.runtimes.crun]")
    node.config.write_text(text[:start] + text[text.index("\n[", start) + 1 :])
    assert "runtimes.crun" not in node.config.read_text()

    kept = node.uninstall()

    left = node.truth()
    assert not left.undefined
    assert left.default == "nvidia"
    assert "its default runtime crun would not be defined" in kept.needed[0].problem

    node.edit(
        node.config,
        Want((*node.cri(node.config), "runtimes", "crun", "runtime_type"), "io.containerd.runc.v2"),
    )
    assert node.uninstall().needed == ()
    assert node.truth().default == "crun"
    assert not names_us(node)


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


def test_what_others_put_into_a_runtime_of_ours_goes_with_it(containerd: Containerd, tmp_path: Path) -> None:
    node = a_node(containerd, tmp_path, f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n")
    before = node.truth()
    node.install()
    key = (*node.cri(node.config), "runtimes", "nvidia")
    node.edit(
        node.config, Want((*key, "cni_conf_dir"), "/etc/site/gpu.d"), Want((*key, "runtime_type"), ABSENT)
    )
    node.edit(node.config, Want((*key, "runtime_type"), "io.containerd.runc.v2"))

    done = node.uninstall()

    assert node.truth() == before
    assert any("cni_conf_dir" in note for note in done.notes)


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


@pytest.mark.parametrize("pattern", ["@/conf.d/*.toml", "conf.d/*", "conf.d/[0-9]*-gpu.tom?"])
def test_a_drop_in_that_goes_is_not_found_again_by_an_import_of_its_owner(
    containerd: Containerd, tmp_path: Path, pattern: str
) -> None:
    version, _ = schema_of(containerd)
    node = a_node(containerd, tmp_path, f'version = {version}\nimports = ["{pattern}"]\n')
    node.install(drop_in="etc/conf.d/50-gpu.toml")
    facts, ask = node.facts(None)

    gone = {path: None if path.name == "50-gpu.toml" else file for path, file in facts.contents.items()}
    without = ask(
        facts.engines[0], {**gone, PurePosixPath(node.config): HOST.read(PurePosixPath(node.config))}
    )

    if containerd[1] >= (2,):  # the others are told in the root file
        assert not without.handlers.keys() & OURS


def test_a_file_that_nobody_imports_is_not_brought_into_force(containerd: Containerd, tmp_path: Path) -> None:
    version, _ = schema_of(containerd)
    files = {"conf.d__50-gpu-old": "oom_score = -1\n"}
    node = a_node(containerd, tmp_path, f"version = {version}\n", **files)
    untouched = node.files()

    if containerd[1] >= (2,):
        with pytest.raises(InstallerError, match=r"would take .*/50-gpu-old\.toml too"):
            node.install(drop_in="etc/conf.d/50-gpu.toml")
        assert node.files() == untouched
        node.install(drop_in="etc/conf.d/60-gpu.toml")
    else:
        node.install(drop_in="etc/conf.d/50-gpu.toml")

    assert b"oom_score" not in node.config.read_bytes()
    node.uninstall()
    assert node.files() == untouched


DROP_IN = "etc/conf.d/99-nvidia.toml"
IMPORTS = 'imports = ["@/conf.d/*.toml"]\n'


def test_what_a_wildcard_takes_on_the_disk_is_no_part_of_what_is_asked_about(
    containerd: Containerd, tmp_path: Path
) -> None:
    text = f"[{OLD}.runtimes.mine]\n{RUNC}\n"
    node = a_node(containerd, tmp_path, f"{IMPORTS}version = 2\n", **{"conf.d__mine": text})
    facts, trials = node.facts(None)
    engine = facts.engines[0]

    with_it = trials(engine, facts.contents)
    without = trials(engine, {**facts.contents, engine.files[1]: None})

    assert "mine" in with_it.handlers
    assert set(without.handlers) == {"runc"}


@pytest.mark.parametrize("default", [True, False], ids=["default", "no default"])
@pytest.mark.parametrize("imports", [IMPORTS, ""], ids=["imported already", "imported by us"])
@pytest.mark.parametrize("again", [False, True], ids=["undone at once", "installed again"])
def test_an_older_containerd_takes_no_harm_from_what_a_newer_one_was_given(
    containerds: dict[str, Containerd], tmp_path: Path, imports: str, *, default: bool, again: bool
) -> None:
    root = f"{imports}version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n[{OLD}.runtimes.mine]\n{RUNC}\n"
    for name in ("trixie", "bookworm"):
        node = a_node(containerds["sid"], tmp_path / name, root)
        files = node.files()
        node.install(default=default, drop_in=DROP_IN)
        node.program, node.version = containerds[name]

        if again:
            node.install(default=default, drop_in=DROP_IN)
            assert node.truth().handlers.keys() == {"runc", "mine", *OURS}
        done = node.uninstall()

        assert (done.needed, done.final) == ((), None)
        assert node.files() == files
        assert node.truth().handlers.keys() == {"runc", "mine"}


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
    assert not names_us(node)


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
    assert not names_us(node)


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
