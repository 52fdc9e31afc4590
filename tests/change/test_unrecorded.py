"""What is ours or NVIDIA's own installer's, and where, as far as files tell: no ledger says so."""

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.unrecorded import find_install_dir, find_leftovers, find_toolkits
from installer.engines import ENGINES
from installer.host.files import Host
from installer.model.facts import EngineState, Facts, Record, ToolkitFacts
from installer.model.files import File, Kind, Layout
from installer.model.options import Options, Places
from tests.support.site import Site

USUAL, OTHER, THIRD = "/usr/local/nvidia", "/opt/nvidia", "/srv/nvidia"
DOCKER = "etc/docker/daemon.json"


def node(root: Path, *homes: str, **named: str) -> Host:
    """Return a node with a ledger in each of ``homes``, and files that each name a toolkit."""
    for home in homes:
        (root / str(Layout(PurePosixPath(home)).home)[1:]).mkdir(parents=True)
    for name, place in named.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f'{{"path": "{place}/toolkit/nvidia-container-runtime"}}')
    return Host.under(PurePosixPath(root))


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        pytest.param({}, USUAL, id="another is there, and not named"),
        pytest.param({DOCKER: OTHER, "etc/containerd/config.toml": THIRD}, THIRD, id="its ledger is lost"),
        pytest.param({DOCKER: "/gone"}, THIRD, id="nothing where it was said, nor elsewhere"),
    ],
)
def test_the_installation_that_was_asked_for_is_meant(
    tmp_path: Path, named: dict[str, str], asked: str
) -> None:
    host = node(tmp_path, OTHER, **named)
    options = replace(Options(), install_dir=PurePosixPath(asked))

    assert str(find_install_dir(host, options).install_dir) == asked
    adopting = replace(options, adopt=True)
    assert find_install_dir(host, adopting) is adopting


def test_configs_name_a_toolkit_where_engines_read_them(tmp_path: Path) -> None:
    read = {
        DOCKER: OTHER,
        "etc/containerd/conf.d/x.toml": OTHER,
        "etc/crio/crio.conf.d/x.conf": USUAL,
        "srv/daemon.json": THIRD,
    }
    host = node(tmp_path, **read, **{"etc/containerd/conf.d/x.toml.bak": THIRD})
    (tmp_path / "etc/containerd/config.toml").mkdir()

    def found(places: dict[str, Places]) -> dict[str, str]:
        named = find_toolkits(host, places)
        return {str(path)[1:]: str(place) for place, each in named.items() for path in each}

    assert found({}) == {name: read[name] for name in read if name != "srv/daemon.json"}
    told = found({"docker": Places(config=PurePosixPath("/srv/daemon.json"))})
    assert told == {name: read[name] for name in read if name != DOCKER}


def test_a_drop_in_that_its_owner_has_commented_out_is_nothing_of_ours(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.call("install").returncode == 0
    drop_in = site.root / "etc/crio/crio.conf.d/99-nvidia.toml"
    drop_in.write_text("".join(f"#{line}\n" for line in drop_in.read_text().splitlines()))

    done, told = site.call("uninstall"), site.status()

    assert (done.returncode, told.returncode) == (0, 3), told.stdout


# What NVIDIA's own installer left: what an undo takes back, and what it leaves.

TOOLKIT = "/usr/local/nvidia/toolkit"
RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"

CONFIG, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
CRI = 'plugins."io.containerd.grpc.v1.cri".containerd'
THEIRS = f'[{CRI}.runtimes.nvidia.options]\nBinaryName = "{RUNTIME}"\n'
GLOB = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
OWN_GLOB = 'imports = ["/etc/containerd/conf.d/99-nvidia*.toml", "/x/*.toml", 7]\n'
DAEMON = "/etc/docker/daemon.json"
CRIO = "/etc/crio/crio.conf"
HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"


def facts(engine: str, texts: dict[str, str], toolkit: ToolkitFacts | None = None) -> Facts:
    files = tuple(PurePosixPath(path) for path in texts if path != HOOK)
    hooks = (PurePosixPath(HOOK),) if HOOK in texts else ()
    found = replace(EngineState.usual(ENGINES[engine]), files=files, hooks=hooks)
    contents = {PurePosixPath(path): File(text.encode()) for path, text in texts.items()}
    return Facts((found,), contents, {}, frozenset(), toolkit or ToolkitFacts(), Record())


@pytest.mark.parametrize(
    ("engine", "texts", "notes", "edits"),
    [
        pytest.param(
            *("containerd", {CONFIG: OWN_GLOB, DROP_IN: THEIRS}),
            [f"an import in {CONFIG}", f"{DROP_IN} as a whole"],
            ['imports "/etc/containerd/conf.d/99-nvidia*.toml"'],
            id="an import beside others",
        ),
        pytest.param(
            *("containerd", {CONFIG: f'imports = ["{DROP_IN}"]\n', DROP_IN: THEIRS}),
            [f"an import in {CONFIG}", f"{DROP_IN} as a whole"],
            [f'imports "{DROP_IN}"'],
            id="an import by its name",
        ),
        pytest.param("containerd", {CONFIG: GLOB, DROP_IN: "version = 2\n"}, [], [], id="no runtime in it"),
        pytest.param(
            "docker",
            {
                DAEMON: f'{{"runtimes": {{"b": {{"path": "{RUNTIME}", "a": {{"c": ["d"]}}}},'
                f' "a": {{"path": "{RUNTIME}.cdi"}}, "mine": {{"path": "/mine"}},'
                f' "other": {{"path": "{TOOLKIT}/other"}}, "far": {{"path": "/x/nvidia-container-runtime"}}}}}}'
            },
            [f"a, b in {DAEMON}"],
            [f'path "{RUNTIME}"', 'c ["d"]', f'path "{RUNTIME}.cdi"'],
            id="two runtimes among others",
        ),
        pytest.param(
            *("docker", {DAEMON: f'{{"x": {{"path": "{RUNTIME}"}}, "runtimes": "{RUNTIME}"}}'}, [], []),
            id="names in other places",
        ),
        pytest.param(
            "crio",
            {CRIO: "", HOOK: f'{{"hook": {{"path": "{TOOLKIT}/nvidia-container-runtime-hook"}}}}'},
            *([f"the hook {HOOK}"], []),
            id="a hook",
        ),
        pytest.param("crio", {HOOK: '{"hook": {"path": 7}}'}, [], [], id="a hook of nothing"),
    ],
)
def test_what_nvidias_installer_left_is_found_and_nothing_else(
    engine: str, texts: dict[str, str], notes: list[str], edits: list[str]
) -> None:
    part = find_leftovers(facts(engine, texts), Options())

    assert list(part.notes) == notes
    told = [edit for row in part.rows.configs for edit in row.edits if edit.after != "{}"]
    assert [f"{edit.key[-1]} {edit.after}" for edit in told] == edits
    assert {edit.key for edit in told if edit.member} <= {("imports",)}
    assert all(row.ours for row in part.rows.configs if not row.edits), "a digest tells that it is theirs"
    # Where a runtime starts the toolkit, containers on it are looked for.
    named = any("an import" not in note for note in notes)
    assert (part.rows.toolkit is not None, bool(part.rows.engines)) == (named, named)


USED = f'{{"runtimes": {{"nvidia": {{"path": "{RUNTIME}"}}}}}}'


@pytest.mark.parametrize(
    ("toolkit", "text", "notes"),
    [
        (ToolkitFacts(Kind.LINK, config="# x"), "{}", []),
        (ToolkitFacts(Kind.DIRECTORY, config="# x"), "{}", [TOOLKIT]),
        (ToolkitFacts(Kind.DIRECTORY), USED, [f"nvidia in {DAEMON}", TOOLKIT]),
    ],
    ids=["a link, which is ours", "with a config", "without a config, and used"],
)
def test_a_directory_is_nvidias_where_it_has_a_config_or_a_runtime_starts_it(
    toolkit: ToolkitFacts, text: str, notes: list[str]
) -> None:
    part = find_leftovers(facts("docker", {DAEMON: text}, toolkit), Options())

    assert list(part.notes) == notes
    assert (part.rows.toolkit is not None) is bool(notes)
