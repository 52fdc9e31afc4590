"""What NVIDIA's own installer left, found in texts alone: what an undo takes back, and what it leaves."""

from pathlib import PurePosixPath

import pytest

from installer.change.unrecorded import find_leftovers
from installer.engines import ENGINES
from installer.model.facts import EngineState, Facts, Record, ToolkitFacts
from installer.model.files import File, Kind
from installer.model.options import Options

TOOLKIT = "/usr/local/nvidia/toolkit"
RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"
OPTIONS = Options()

CONFIG, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
CRI = 'plugins."io.containerd.grpc.v1.cri".containerd'
THEIRS = f'[{CRI}.runtimes.nvidia.options]\nBinaryName = "{RUNTIME}"\n'
GLOB = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
OWN_GLOB = 'imports = ["/etc/containerd/conf.d/99-nvidia*.toml", "/x/*.toml", 7]\n'
DAEMON = "/etc/docker/daemon.json"
CRIO, CRIO_DROP_IN = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/99-nvidia.conf"
CRIO_THEIRS = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{RUNTIME}"\n'
HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"


def facts(engine: str, texts: dict[str, str | None], toolkit: ToolkitFacts | None = None) -> Facts:
    row = ENGINES[engine]
    files = tuple(PurePosixPath(path) for path in texts if path != HOOK)
    hooks = (PurePosixPath(HOOK),) if HOOK in texts else ()
    found = EngineState(engine, row.config, None, None, files, row.socket, row.unit, hooks=hooks)
    contents = {
        PurePosixPath(path): File(text.encode()) if text is not None else None for path, text in texts.items()
    }
    return Facts((found,), contents, {}, frozenset(), toolkit or ToolkitFacts(), Record())


@pytest.mark.parametrize(
    ("engine", "texts", "notes", "edits"),
    [
        pytest.param(
            "containerd",
            {CONFIG: OWN_GLOB, DROP_IN: THEIRS},
            [f"an import in {CONFIG}", f"{DROP_IN} as a whole"],
            ['imports "/etc/containerd/conf.d/99-nvidia*.toml"'],
            id="a drop-in, and an import of it alone beside others",
        ),
        pytest.param(
            "containerd",
            {CONFIG: f'imports = ["{DROP_IN}"]\n', DROP_IN: THEIRS},
            [f"an import in {CONFIG}", f"{DROP_IN} as a whole"],
            [f'imports "{DROP_IN}"'],
            id="a drop-in, and an import of it by its name",
        ),
        pytest.param(
            "containerd",
            {CONFIG: 'imports = ["/etc/containerd/conf.d/99*.toml"]\n', DROP_IN: THEIRS},
            [f"{DROP_IN} as a whole"],
            [],
            id="a drop-in, and an import as nobody but its owner writes it",
        ),
        pytest.param(
            "containerd",
            {CONFIG: GLOB, DROP_IN: "version = 2\n"},
            [],
            [],
            id="a drop-in of that name without a runtime of NVIDIA's",
        ),
        pytest.param("containerd", {CONFIG: GLOB}, [], [], id="an import that takes nothing"),
        pytest.param(
            "containerd",
            {CONFIG: f'[{CRI}]\ndefault_runtime_name = "runc"\n{THEIRS}'},
            [f"nvidia in {CONFIG}"],
            [f'BinaryName "{RUNTIME}"'],
            id="a runtime that is not",
        ),
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
            "docker",
            {DAEMON: f'{{"x": {{"path": "{RUNTIME}"}}, "runtimes": "{RUNTIME}"}}'},
            [],
            [],
            id="names in other places",
        ),
        pytest.param("docker", {DAEMON: None}, [], [], id="no file"),
        pytest.param(
            "crio",
            {CRIO: "", HOOK: f'{{"hook": {{"path": "{TOOLKIT}/nvidia-container-runtime-hook"}}}}'},
            [f"the hook {HOOK}"],
            [],
            id="a hook",
        ),
        pytest.param("crio", {HOOK: '{"hook": {"path": "/usr/bin/x"}}'}, [], [], id="a hook elsewhere"),
        pytest.param("crio", {HOOK: '{"hook": {"path": 7}}'}, [], [], id="a hook of nothing"),
        pytest.param("crio", {HOOK: "{"}, [], [], id="a hook that nobody can read"),
    ],
)
def test_what_nvidias_installer_left_is_found_and_nothing_else(
    engine: str, texts: dict[str, str | None], notes: list[str], edits: list[str]
) -> None:
    part = find_leftovers(facts(engine, texts), OPTIONS)

    assert list(part.notes) == notes
    told = [edit for row in part.rows.configs for edit in row.edits if edit.after != "{}"]
    assert [f"{edit.key[-1]} {edit.after}" for edit in told] == edits
    assert {edit.key for edit in told if edit.member} <= {("imports",)}
    wholes = [row.path for row in part.rows.configs if not row.edits]
    assert all(row.ours for row in part.rows.configs if not row.edits), "a digest tells that it is theirs"
    assert [note for note in notes if note.endswith("as a whole") or "hook" in note] == [
        f"the hook {path}" if str(path) == HOOK else f"{path} as a whole" for path in wholes
    ]
    # Where a runtime or a hook starts the toolkit, containers on it are looked for.
    named = any("an import" not in note for note in notes)
    assert (part.rows.toolkit is not None, bool(part.rows.engines)) == (named, named)


@pytest.mark.parametrize(
    ("engine", "texts", "notes"),
    [
        pytest.param(
            "containerd", {CONFIG: GLOB, DROP_IN: THEIRS}, [f"nvidia in {DROP_IN}"], id="an import of others"
        ),
        pytest.param(
            "containerd",
            {CONFIG: OWN_GLOB, DROP_IN: THEIRS},
            [f"an import in {CONFIG}", f"nvidia in {DROP_IN}"],
            id="our own import",
        ),
        pytest.param(
            "crio",
            {CRIO: "", CRIO_DROP_IN: CRIO_THEIRS},
            [f"nvidia in {CRIO_DROP_IN}"],
            id="a drop-in of CRI-O's",
        ),
    ],
)
def test_of_a_ledger_that_is_lost_only_keys_of_ours_go_and_our_own_import(
    engine: str, texts: dict[str, str | None], notes: list[str]
) -> None:
    part = find_leftovers(facts(engine, texts, ToolkitFacts(Kind.LINK)), OPTIONS, ours=True)

    assert list(part.notes) == notes
    assert all(row.edits for row in part.rows.configs)


@pytest.mark.parametrize(
    ("toolkit", "texts", "notes"),
    [
        pytest.param(ToolkitFacts(Kind.LINK, config="# x"), {DAEMON: "{}"}, [], id="a link, which is ours"),
        pytest.param(
            ToolkitFacts(Kind.DIRECTORY),
            {DAEMON: f'{{"runtimes": {{"nvidia": {{"path": "{RUNTIME}"}}}}}}'},
            [f"nvidia in {DAEMON}", TOOLKIT],
            id="without a config, and used",
        ),
    ],
)
def test_a_directory_is_nvidias_where_it_has_a_config_or_a_runtime_starts_it(
    toolkit: ToolkitFacts, texts: dict[str, str | None], notes: list[str]
) -> None:
    part = find_leftovers(facts("docker", texts, toolkit), OPTIONS)

    assert list(part.notes) == notes
    assert (part.rows.toolkit is not None) is bool(notes)
