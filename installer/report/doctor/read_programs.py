"""Engines and programs of the node, asked what they are: only what root alone can have written is started."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.config_text import Tree
from installer.engines import ENGINES
from installer.engines.config_edits import tree_of
from installer.engines.config_files import with_readable_configs
from installer.engines.dependencies import Dependencies, find_dependencies
from installer.engines.docker.api import settings
from installer.engines.dry_run import Trials
from installer.engines.observe import look_for, observe
from installer.errors import InstallerError
from installer.host import units
from installer.host.files import Host, is_file
from installer.host.limits import each as at_once
from installer.host.processes import Seen, holds, root_wrote
from installer.host.programs import run_in
from installer.model.effective import EffectiveConfig
from installer.model.engine_spec import Api, EngineSpec
from installer.model.facts import EngineState, Started
from installer.model.files import File
from installer.model.options import Options, Places
from installer.model.paths import PATH
from installer.report.doctor.model import ROOT, EngineExam, Process, Toolkit, Version

PACKAGED: Final = (PurePosixPath("/usr/bin"), PurePosixPath("/usr/local/bin"))
CONFIG: Final = PurePosixPath("/etc/nvidia-container-runtime/config.toml")
RUNTIME: Final = "nvidia-container-runtime"
CLI: Final = "nvidia-container-cli"
CTK: Final = "nvidia-ctk"
HOOK: Final = "nvidia-cdi-hook"
# 1.0 has one line "version: 1.0.0"; later ones tell themselves and their library apart.
SAYS_CLI: Final = re.compile(r"^(?:cli-)?version:\s*(\S{1,60})", re.MULTILINE)
SAYS_LIBRARY: Final = re.compile(r"^lib-version:\s*(\S{1,60})", re.MULTILINE)
SAYS_CTK: Final = re.compile(r"\bCLI version\s+(\S{1,60})")


def toolkits(host: Host, options: Options) -> Iterator[Toolkit]:
    """Yield the toolkits of the node, ours first."""
    layout = options.layout
    places = ((layout.toolkit, layout.config), *((place, CONFIG) for place in PACKAGED))
    for directory, config in places:
        if not any(is_file(host, directory / name) for name in (RUNTIME, CLI)):
            continue
        cli = version_of(host, directory / CLI)
        itself, library = _version(SAYS_CLI, cli), _version(SAYS_LIBRARY, cli)
        yield Toolkit(
            directory,
            library=library or itself,
            cli=itself,
            ctk=_version(SAYS_CTK, version_of(host, directory / CTK)),
            config=_tree(host, config),
            config_path=config,
            starts=_starts(host, directory),
        )


def _starts(host: Host, directory: PurePosixPath) -> PurePosixPath | None:
    """Return where the programs are that a toolkit of ours leads to; None for one that has its own."""
    target = host.link_target(directory / HOOK) or ""
    return PurePosixPath(target).parent if target.startswith("/") and directory not in PACKAGED else None


def _version(pattern: "re.Pattern[str]", text: str) -> Version:
    found = pattern.search(text[:2000])
    return version_in(found[1])[0] if found else ()


def _tree(host: Host, path: PurePosixPath) -> Tree | None:
    try:
        file = host.read(path)
        return tree_of(file, path) if file is not None else None
    except InstallerError:
        return None


TELL_S: Final = 2.0
SHIM: Final = "containerd-shim"
NIL_POINTER: Final = (
    b"(*execProcess).pidv"  # the function that the shim of containerd 1.2.1 and 1.2.2 dies in
)
# By the name of the process, which the kernel cuts after 15 letters: names of the program, and how to ask it.
ASKED: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    SHIM: (frozenset({SHIM, f"{SHIM}-runc-v1", f"{SHIM}-runc-v2"}), "-v"),
    **{engine.process: (frozenset({engine.process}), "--version") for engine in ENGINES.values()},
    "nv-fabricmanage": (frozenset({"nv-fabricmanager"}), "--version"),
}
_SAYS: Final = re.compile(r"(?<![\w.])v?((\d{1,5}(?:\.\d{1,5}){1,3})[^\s,]{0,40})")


def version_in(text: str) -> tuple[Version, str]:
    """Return the first version in a text: as numbers, and as it is spelled; () and "" without one."""
    found = _SAYS.search(text[:2000])
    return (tuple(int(part) for part in found[2].split(".")), found[1]) if found else ((), "")


def version_of(host: Host, program: PurePosixPath) -> str:
    """Return what a program of the host's says about its version; "" where it may not be run."""
    if not is_file(host, program) or not root_wrote(host, program):
        return ""
    ran = run_in(host.local_path(ROOT), [str(program), "--version"], timeout_s=TELL_S)
    return ran.stdout if ran is not None and ran.returncode == 0 else ""


def asked_processes(host: Host, seen: Sequence[Seen]) -> tuple[Process, ...]:
    """Return the processes that count here, each program asked once, whatever it was replaced by since."""
    wanted = [each for each in seen if each.name in ASKED]
    files = {each.file: each for each in wanted}
    answers = dict(zip(files, at_once(partial(_asked, host), files.values()), strict=True))
    return tuple(
        Process(
            each.pid,
            each.name,
            program=each.program,
            deleted=each.deleted,
            version=answers[each.file][0],
            said=answers[each.file][1],
            nil_pointer=answers[each.file][2],
        )
        for each in wanted
    )


def _asked(host: Host, process: Seen) -> tuple[Version, str, bool]:
    names, word = ASKED[process.name]
    said = ""
    if process.of_host and PurePosixPath(process.program).name in names:
        # By its process and not by its path: that may lead to a later program by now.
        ran = run_in(host.local_path(ROOT), [f"/proc/{process.pid}/exe", word], timeout_s=TELL_S)
        said = ran.stdout if ran is not None and ran.returncode == 0 else ""
    version, spelled = version_in(said)
    # The shim of containerd 1.2 has no word for its version.
    dying = process.name == SHIM and holds(host, process.pid, NIL_POINTER)
    return version, f"{process.name} {spelled}" if spelled else "", dying


def asked_runc(host: Host) -> dict[str, tuple[Version, str]]:
    """Return what each runc and crun of the node says, by path."""
    named = (place / name for name in ("runc", "crun") for place in PATH)
    paths = {host.resolve(path): None for path in named if is_file(host, path)}
    found = {}
    for path in paths:
        version, spelled = version_in(version_of(host, path))
        found[str(path)] = (version, f"{path.name} {spelled}" if spelled else "")
    return found


ASK_S: Final = 3.0
DOCKER_HOOK: Final = "nvidia-container-runtime-hook"


def engines(host: Host, options: Options, seen: Sequence[Seen]) -> tuple[EngineExam, ...]:
    """Return each engine whose process runs; a connection could start one that does not."""
    running = {each.name for each in seen}
    wanted = [spec for spec in ENGINES.values() if spec.process in running]
    return tuple(exam for spec in wanted if (exam := _exam(host, options, spec)) is not None)


def _exam(host: Host, options: Options, spec: EngineSpec) -> EngineExam | None:
    sought, asked = replace(look_for(spec, options), hook=None), replace(options, timeout_s=ASK_S)
    engine = observe(host, sought, asked, options.places.get(spec.name, Places()), awaits_s=0)
    if engine.stopped and not engine.another:
        return None  # the process is another one's, or about to end
    if spec.finds and engine.unit not in spec.units:
        return None  # its sibling, on the same socket
    engine = with_readable_configs(host, engine)
    contents, trees, unreadable = _configs(host, engine.files)
    speaks_docker = spec.api is Api.DOCKER
    cgroup_driver, live_restore = (
        settings(host.local_path(engine.socket), timeout_s=ASK_S) if speaks_docker else ("", None)
    )
    return EngineExam(
        engine,
        told=None if spec.finds or engine.another else _told(host, engine, contents),
        trees=trees,
        unreadable=unreadable,
        unit_state=unit_state(host, engine.unit),
        cgroup_driver=cgroup_driver,
        live_restore=live_restore,
        finds_hook=_finds_hook(host, engine.started) if speaks_docker else None,
        unable=_unable(host, engine, options) if engine.serving else "",
    )


def _unable(host: Host, engine: EngineState, options: Options) -> str:
    """Return why an engine that answers could start no container; "" where it could."""
    try:
        find_dependencies(host, engine, options.layout.toolkit, Dependencies())
    except InstallerError as error:
        return error.problem
    return ""


def _configs(
    host: Host, paths: Sequence[PurePosixPath]
) -> tuple[dict[PurePosixPath, File | None], dict[PurePosixPath, Tree], str]:
    """Return configs, what those say that are valid, and why the first other is not."""
    contents: dict[PurePosixPath, File | None] = {}
    trees: dict[PurePosixPath, Tree] = {}
    unreadable = ""
    for path in paths:
        try:
            contents[path] = host.read(path)
            trees[path] = tree_of(contents[path], path)
        except InstallerError as error:
            unreadable = unreadable or error.problem
    return contents, trees, unreadable


def _told(
    host: Host, engine: EngineState, contents: Mapping[PurePosixPath, File | None]
) -> EffectiveConfig | None:
    try:
        return Trials(host, contents)(engine, {})
    except InstallerError:
        return None


def unit_state(host: Host, unit: str) -> str:
    """Return "active/sub/result" of a unit; "" where it is not there, or systemd does not tell."""
    try:
        now = units.state(host, unit) if unit else None
    except InstallerError:
        return ""
    return f"{now.active}/{now.sub}/{now.result}" if now and now.load != "not-found" else ""


def _finds_hook(host: Host, started: Started | None) -> bool | None:
    if started is None or not started.environment.get("PATH"):
        return None
    return any(is_file(host, place / DOCKER_HOOK) for place in started.paths)
