"""What NVIDIA's own installer left, found in texts alone: what an undo takes back, and what it leaves.

tests/test_lost.py has what is found of ours where the ledger is lost.
"""

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.unrecorded import find_leftovers, find_toolkits
from installer.engines import ENGINES
from installer.host.files import Host
from installer.model.facts import EngineState, Facts, Record, ToolkitFacts
from installer.model.files import File, Kind
from installer.model.options import Options
from tests.support.site import Site

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


def test_a_copy_that_no_engine_reads_names_no_toolkit(tmp_path: Path) -> None:
    host, drop_ins = Host.under(PurePosixPath(tmp_path)), tmp_path / "etc/containerd/conf.d"
    drop_ins.mkdir(parents=True)

    (drop_ins / "x.toml.bak").write_text(THEIRS)
    assert find_toolkits(host, {}) == {}
    (drop_ins / "x.toml").write_text(THEIRS)
    assert [*find_toolkits(host, {})] == [PurePosixPath(TOOLKIT).parent]


def test_a_drop_in_that_its_owner_has_commented_out_is_nothing_of_ours(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.call("install").returncode == 0
    drop_in = site.root / "etc/crio/crio.conf.d/99-nvidia.toml"
    drop_in.write_text("".join(f"#{line}\n" for line in drop_in.read_text().splitlines()))

    done, told = site.call("uninstall"), site.status()

    assert (done.returncode, told.returncode) == (0, 3), told.stdout
