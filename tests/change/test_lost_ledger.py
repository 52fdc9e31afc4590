"""What others left or changed: what NVIDIA's own installer left, and what is no reason to write or to reload.

tests/test_lost.py has what is found of ours where the ledger is lost.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.lost_ledger import find_left_behind, find_leftovers
from installer.change.our_runtimes import find_our_runtimes, forget_our_runtimes
from installer.change.plan import Plan, plan_install, plan_undo
from installer.config_text import Syntax, Tree, Value, WantedKey
from installer.config_text.change import apply
from installer.engines import ENGINES
from installer.engines.config_texts import text_of, tree_of
from installer.host.files import Host
from installer.model.effective import EffectiveConfig, Runtime
from installer.model.engine import EngineState
from installer.model.facts import ConfigRow, Facts, Record, SpecialVersion, ToolkitFacts, ToolkitRow
from installer.model.files import File, Kind
from installer.model.options import Options, RestartMode
from installer.model.steps import Reload, WriteConfig
from tests.change import golden
from tests.support.files import put
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
DROP_IN_OF_CRIO = PurePosixPath("/etc/crio/crio.conf.d/99-nvidia.toml")
HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"


def facts(engine: str, texts: dict[str, str], toolkit: ToolkitFacts | None = None) -> Facts:
    files = tuple(PurePosixPath(path) for path in texts if path != HOOK)
    hooks = (PurePosixPath(HOOK),) if HOOK in texts else ()
    found = replace(EngineState.usual(ENGINES[engine]), files=files, hooks=hooks)
    contents = {PurePosixPath(path): File(text.encode()) for path, text in texts.items()}
    return Facts((found,), contents, {}, frozenset(), toolkit or ToolkitFacts(), Record())


BY_NAME = f'imports = ["{DROP_IN}"]\n'
AMONG_OTHERS = {
    "b": {"path": RUNTIME, "a": {"c": ["d"]}},
    "a": {"path": f"{RUNTIME}.cdi"},
    "mine": {"path": "/mine"},
    "other": {"path": f"{TOOLKIT}/other"},
    "far": {"path": "/x/nvidia-container-runtime"},
}
IN_OTHER_PLACES = {"x": {"path": RUNTIME}, "runtimes": RUNTIME}
A_HOOK = {"hook": {"path": f"{TOOLKIT}/nvidia-container-runtime-hook"}}
IMPORTED = [f"an import in {CONFIG}", f"{DROP_IN} as a whole"]
OF_TWO = [f'path "{RUNTIME}"', 'c ["d"]', f'path "{RUNTIME}.cdi"']


@pytest.mark.parametrize(
    ("engine", "texts", "notes", "edits"),
    [
        ("containerd", {CONFIG: OWN_GLOB, DROP_IN: THEIRS}, IMPORTED, [f'imports "{DROP_IN[:-5]}*.toml"']),
        ("containerd", {CONFIG: BY_NAME, DROP_IN: THEIRS}, IMPORTED, [f'imports "{DROP_IN}"']),
        ("containerd", {CONFIG: GLOB, DROP_IN: "version = 2\n"}, [], []),
        ("docker", {DAEMON: json.dumps({"runtimes": AMONG_OTHERS})}, [f"a, b in {DAEMON}"], OF_TWO),
        ("docker", {DAEMON: json.dumps(IN_OTHER_PLACES)}, [], []),
        ("crio", {CRIO: "", HOOK: json.dumps(A_HOOK)}, [f"the hook {HOOK}"], []),
        ("crio", {HOOK: '{"hook": {"path": 7}}'}, [], []),
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


RUNC = f'[{CRI}.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
OURS = "".join(
    f'[{CRI}.runtimes.{name}]\nruntime_type = "io.containerd.runc.v2"\n'
    f'[{CRI}.runtimes.{name}.options]\nBinaryName = "{RUNTIME}{end}"\n'
    for name, end in (("nvidia", ""), ("nvidia-cdi", ".cdi"))
)


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        pytest.param(CONFIG, RUNC + OURS, True, id="as an install writes it"),
        pytest.param(CONFIG, f"{RUNC}x = 1\n{OURS}", False, id="with more"),
        pytest.param(CONFIG, OURS, False, id="none"),
        pytest.param(DROP_IN, RUNC + OURS, False, id="in our drop-in, with which it goes"),
    ],
)
def test_a_runc_that_may_be_ours_is_told_where_the_ledger_is_lost(
    path: str, text: str, *, told: bool
) -> None:
    linked = ToolkitFacts(Kind.LINK)

    lost, adopted = (
        find_leftovers(facts("containerd", {path: text}, linked), Options(), ours=ours)
        for ours in (True, False)
    )

    note = f"runc in {path}, which stays: it may be an administrator's"
    assert list(lost.notes) == [f"nvidia, nvidia-cdi in {path}", *([note] if told else [])]
    assert note not in adopted.notes


def test_a_directory_without_its_config_is_nvidias_where_a_runtime_starts_it() -> None:
    used = json.dumps({"runtimes": {"nvidia": {"path": RUNTIME}}})

    part = find_leftovers(facts("docker", {DAEMON: used}, ToolkitFacts(Kind.DIRECTORY)), Options())

    assert list(part.notes) == [f"nvidia in {DAEMON}", TOOLKIT]


def test_a_drop_in_that_its_owner_has_commented_out_is_nothing_of_ours(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.install()
    drop_in = str(DROP_IN_OF_CRIO)[1:]
    site.write(drop_in, "".join(f"#{line}\n" for line in site.read(drop_in).splitlines()))

    site.uninstall()

    assert site.status().returncode == 3


# What is no reason to write or to reload: a key of an owner's, a lost ledger, what CRI-O reports otherwise.

DAEMON_JSON = PurePosixPath(DAEMON)
CRIO_CASE = golden.case_of("crio", "source-build-absent")
SITE = DROP_IN_OF_CRIO.with_name("10-site.conf")


def _changes(plan: Plan) -> list[WriteConfig | Reload]:
    return [*golden.writes_of(plan), *golden.reloads_of(plan)]


def _linked(facts: Facts) -> Facts:
    return replace(facts, toolkit=replace(facts.toolkit, kind=Kind.LINK))


@pytest.mark.parametrize("key", [("debug",), ("runtimes", "x", "path")], ids=["our file", "our table"])
def test_a_key_that_the_owner_adds_to_what_we_have_made_is_no_reason_to_reload(key: tuple[str, ...]) -> None:
    def with_theirs(text: str) -> File:
        return File(apply(text, [WantedKey(key, "/theirs")], Syntax.JSON, name="daemon.json")[0].encode())

    case = golden.case_of("docker", "docker-com-package-absent")
    _, disk, held = golden.installed(case)
    edited: golden.Disk = {DAEMON_JSON: with_theirs(text_of(disk[DAEMON_JSON], DAEMON_JSON))}
    programs = {"runc": "runc", **golden.binaries_of(case.options)}
    handlers = {each: Runtime(program, {"path": program}) for each, program in programs.items()}
    serving = EffectiveConfig(handlers, held.engines[0].default or "runc")
    facts = golden.with_engines(_linked(case.facts(edited, held)), serving=serving, version=(28, 5))

    again = plan_install(facts, replace(case.options, restart_mode=RestartMode.AUTO))

    assert _changes(again) == []
    undone = golden.written(
        edited, plan_undo(golden.undo_facts(case, edited, golden.final_of(again)), case.options)
    )
    assert tree_of(undone[DAEMON_JSON], DAEMON_JSON) == tree_of(with_theirs(""), DAEMON_JSON)


def _is_all_told(case: golden.Case) -> bool:
    """Tell whether all in the texts that names us is ours; what the default was, and a hook, nobody can tell."""
    named = any(b"nvidia" in file.content for file in case.before.values() if file)
    untold = named or any(case.said.get(word) for word in ("set_as_default", "hook", "refused"))
    return not (untold or ENGINES[case.engine].built_in_runtime)


@pytest.mark.parametrize("engine", [name for name, kind in ENGINES.items() if not kind.built_in_runtime])
def test_an_engine_whose_configs_say_all_of_it_is_left_alone_where_the_ledger_is_lost(engine: str) -> None:
    for case in golden.cases(engine):
        # Without us it would have no runc, and no default but that.
        guessed = case.path.name == "aks-gpu-default-is-nvidia-container-runtime"
        options = replace(case.options, set_as_default=guessed)
        if not (guessed or _is_all_told(case)):
            continue
        _, disk, _ = golden.installed(case, options=options)
        held = find_leftovers(_linked(case.facts(disk)), options, ours=True).rows
        assert held.configs

        originals: golden.Disk = dict.fromkeys(row.path for row in held.configs)
        again = plan_install(_linked(case.facts(disk, held, originals)), options)

        assert [part.obstacles for part in again.parts if part.refused] == []
        assert _changes(again) == []


# As GET /config of CRI-O 1.37 tells: what it fills in itself is gone after a reload.
RELOADED = {"runtime_path": "/usr/bin/crun", "monitor_path": "/usr/bin/conmon"}
STARTED = {**RELOADED, "monitor_cgroup": "system.slice"}
POD = File(b'[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\nmonitor_cgroup = "pod"\n')


def _planned(disk: golden.Disk, held: Record, reports: Mapping[str, str]) -> Plan:
    serving = EffectiveConfig({"crun": Runtime("/usr/bin/crun", reports)}, "crun")
    return plan_install(golden.with_engines(CRIO_CASE.facts(disk, held), serving=serving), CRIO_CASE.options)


@pytest.mark.parametrize(
    ("first", "then", "added"),
    [(STARTED, RELOADED, {}), (RELOADED, STARTED, {}), (STARTED, RELOADED, {SITE: POD})],
    ids=["a reload", "a restart", "an administrator has changed it since"],
)
def test_what_crio_reports_otherwise_is_no_drift(
    first: Mapping[str, str], then: Mapping[str, str], added: golden.Disk
) -> None:
    plan = _planned({}, Record(), first)
    disk = golden.written({}, plan)
    assert ("monitor_cgroup" in text_of(disk[DROP_IN_OF_CRIO], DROP_IN_OF_CRIO)) == (
        "monitor_cgroup" in first
    )

    again = _planned({**disk, **added}, golden.final_of(plan), then)

    assert _changes(again) == []
    assert added or again.final == plan.final


def test_ours_inherit_what_stands_there_when_they_are_written_again() -> None:
    held = golden.final_of(_planned({}, Record(), STARTED))

    again = _planned({SITE: POD, DROP_IN_OF_CRIO: None}, held, RELOADED)  # ours was removed

    (write,) = golden.writes_of(again)
    assert 'monitor_cgroup = "pod"' in text_of(write.after, DROP_IN_OF_CRIO)


def _docker_runtimes(**programs: str) -> Tree:
    runtimes = {
        name.replace("_", "-"): {"path": f"{RUNTIME}{end}", "args": []} for name, end in programs.items()
    }
    return {"runtimes": runtimes}


SPECIAL = {"nvidia_cdi": ".cdi", "nvidia_legacy": ".legacy"}


@pytest.mark.parametrize(
    ("plain", "runtime_name", "found"),
    [
        (["nvidia"], "nvidia", {"nvidia"}),
        (["nvidia"], "gpu", {"nvidia"}),
        (["gpu"], "nvidia", {"gpu"}),
        (["nvidia", "gpu"], "gpu", {"gpu"}),
        (["nvidia", "gpu"], "nvidia", set()),
        (["nvidia", "gpu"], "other", set()),
    ],
)
def test_of_several_plain_runtimes_only_the_one_that_a_flag_names_is_ours(
    plain: list[str], runtime_name: str, found: set[str]
) -> None:
    tree = _docker_runtimes(**dict.fromkeys(plain, ""), **SPECIAL)

    ours = find_our_runtimes(tree, PurePosixPath(TOOLKIT), runtime_name)

    assert {key[-1] for key in ours} == {"nvidia-cdi", "nvidia-legacy", *found}


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        pytest.param({"args": []}, True, id="Docker, as an install writes it"),
        pytest.param({"runtimeArgs": []}, True, id="Docker, a package's with our path"),
        pytest.param({}, False, id="Docker, the path alone"),
        pytest.param({"runtimeArgs": ["--x"]}, False, id="Docker, with arguments"),
        pytest.param({"args": [], "options": {"x": 1}}, False, id="Docker, with options"),
        pytest.param({"runtime_type": "oci", "monitor_cgroup": "pod"}, True, id="CRI-O, with a copied key"),
    ],
)
def test_runtimes_that_no_install_writes_like_this_are_an_administrators(
    more: dict[str, Value], *, counts: bool
) -> None:
    runtimes: dict[str, Value] = {}
    for name, end in (("nvidia", ""), ("nvidia-cdi", ".cdi")):
        runtimes[name] = {"path": f"{RUNTIME}{end}", **more}

    ours = find_our_runtimes({"runtimes": runtimes}, PurePosixPath(TOOLKIT), "nvidia")

    assert bool(ours) == counts


# The configs that engines use at unusual places: a running engine's command line names them.


def _run_engine(root: Path, *words: str) -> Host:
    """Make a process of an engine in the node's /proc, with this command line."""
    name = PurePosixPath(words[0]).name
    uid = os.geteuid()
    process = {
        "comm": f"{name}\n",
        "stat": f"61 ({name}) S{' 0' * 19}\n",
        "cmdline": "\0".join(words) + "\0",
        "status": f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n",
    }
    host = put(root, {f"proc/61/{each}": text for each, text in process.items()})
    program = root / f"usr/bin/{name}"
    put(root, {f"usr/bin/{name}": ""}, mode=0o755)
    (root / "proc/61/exe").symlink_to(program)
    for pid in ("1", "61"):
        namespaces = root / f"proc/{pid}/ns"
        namespaces.mkdir(parents=True)
        (namespaces / "mnt").symlink_to("mnt:[4026531841]")
    return host


THREE = {"nvidia": "", "nvidia-cdi": ".cdi", "nvidia-legacy": ".legacy"}
OURS_OF_DOCKER = json.dumps(
    {"runtimes": {name: {"path": f"{RUNTIME}{end}", "args": []} for name, end in THREE.items()}}
)
DROP_IN_OF_2 = f"version = 2\n{OURS}"


@pytest.mark.parametrize(
    ("words", "texts", "found"),
    [
        pytest.param(
            ("/usr/bin/dockerd", "--config-file=/opt/e/daemon.json"),
            {"/opt/e/daemon.json": OURS_OF_DOCKER},
            {"/opt/e/daemon.json": "docker"},
            id="Docker",
        ),
        pytest.param(
            ("/usr/bin/containerd", "-c", "/opt/e/config.toml"),
            {"/opt/e/config.toml": 'imports = ["/opt/c/*.toml"]\n', "/opt/c/gpu.toml": DROP_IN_OF_2},
            {"/opt/c/gpu.toml": "containerd"},
            id="what containerd's config imports",
        ),
        pytest.param(
            ("/usr/bin/containerd", "--config", "/etc/k0s/containerd.toml"),
            {"/etc/k0s/containerd.toml": 'imports = ["/opt/c/*.toml"]\n', "/opt/c/gpu.toml": DROP_IN_OF_2},
            {"/opt/c/gpu.toml": "k0s"},
            id="the containerd of k0s, whose usual config imports a file",
        ),
        pytest.param(
            ("/usr/bin/other", "-c", "/opt/e/config.toml"), {"/opt/e/config.toml": OURS}, {}, id="no engine"
        ),
    ],
)
def test_the_config_of_a_running_engine_is_searched_for_a_lost_toolkit(
    tmp_path: Path, words: tuple[str, ...], texts: dict[str, str], found: dict[str, str]
) -> None:
    put(tmp_path, texts)
    host = _run_engine(tmp_path, *words)

    left_behind = find_left_behind(host, Options())

    assert {str(path): engine for path, engine in left_behind.items()} == found


@pytest.mark.parametrize(
    ("record", "is_lost"),
    [
        pytest.param(Record(), False, id="the first install"),
        pytest.param(
            Record(toolkit=ToolkitRow(SpecialVersion.ADOPTED, previous=None, rendered="")),
            True,
            id="the ledger was lost",
        ),
    ],
)
def test_our_own_runtimes_in_a_config_are_no_owners_at_an_install_after_a_loss(
    record: Record, *, is_lost: bool
) -> None:
    seen = replace(facts("docker", {DAEMON: OURS_OF_DOCKER}), record=record)
    owners = ("/mine/nvidia-container-runtime",)
    programs = (*owners, *(f"{RUNTIME}{end}" for end in THREE.values()))
    row = ConfigRow("docker", DAEMON_JSON, Syntax.JSON, None, (), (), named=programs)

    (kept,) = forget_our_runtimes([row], seen, Options())

    assert kept.named == (owners if is_lost else programs)
