"""Engines and programs of the node, asked what they are: only what root alone can have written is started."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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
from installer.host import systemd
from installer.host.files import Host, is_file
from installer.host.processes import Seen, holds, root_wrote
from installer.host.programs import run_in
from installer.model.engine_spec import Api, EngineSpec
from installer.model.facts import Started
from installer.model.files import PATH, File
from installer.model.options import Options, Places
from installer.report.doctor.model import PACKAGED, ROOT, EngineExam, Process, Toolkit, Version

CONFIG: Final = PurePosixPath("/etc/nvidia-container-runtime/config.toml")
RUNTIME: Final = "nvidia-container-runtime"
CLI: Final = "nvidia-container-cli"
# 1.0 has one line "version: 1.0.0"; later ones tell themselves and their library apart.
CLI_VERSION: Final = re.compile(r"^(?:cli-)?version:\s*(\S{1,60})", re.MULTILINE)
LIBRARY_VERSION: Final = re.compile(r"^lib-version:\s*(\S{1,60})", re.MULTILINE)
CTK_VERSION: Final = re.compile(r"\bCLI version\s+(\S{1,60})")
VERSION: Final = re.compile(r"(?<![\w.])v?((\d{1,5}(?:\.\d{1,5}){1,3})[^\s,]{0,40})")
PROGRAM_S: Final = 2.0
ENGINE_S: Final = 3.0
SHIM: Final = "containerd-shim"
# The function that the shim of containerd 1.2.1 and 1.2.2 dies in.
NIL_POINTER: Final = b"(*execProcess).pidv"
# By the name of the program: how it is asked for its version.
VERSION_FLAGS: Final[Mapping[str, str]] = {
    **dict.fromkeys((SHIM, f"{SHIM}-runc-v1", f"{SHIM}-runc-v2"), "-v"),
    **{engine.process: "--version" for engine in ENGINES.values()},
    "nv-fabricmanager": "--version",
}
NAME_LETTERS: Final = 15  # the kernel cuts the name of a process
PROCESS_NAMES: Final = frozenset(name[:NAME_LETTERS] for name in VERSION_FLAGS)
DOCKER_HOOK: Final = "nvidia-container-runtime-hook"


def read_toolkits(host: Host, options: Options) -> Iterator[Toolkit]:
    """Yield the toolkits of the node, ours first."""
    layout = options.layout
    for directory, config in ((layout.toolkit, layout.config), *((place, CONFIG) for place in PACKAGED)):
        if not any(is_file(host, directory / name) for name in (RUNTIME, CLI)):
            continue
        words = ask_version(host, directory / CLI)
        cli, library = _find_version(CLI_VERSION, words), _find_version(LIBRARY_VERSION, words)
        # The programs of a toolkit of ours may be links to those of a package.
        target = PurePosixPath(host.link_target(directory / "nvidia-cdi-hook") or "")
        yield Toolkit(
            directory,
            library=library or cli,
            cli=cli,
            ctk=_find_version(CTK_VERSION, ask_version(host, directory / "nvidia-ctk")),
            config=_read_tree(host, config),
            config_path=config,
            starts=target.parent if target.is_absolute() and directory not in PACKAGED else None,
        )


def _find_version(pattern: "re.Pattern[str]", words: str) -> Version:
    found = pattern.search(words[:2000])
    return find_version(found[1])[0] if found else ()


def _read_tree(host: Host, path: PurePosixPath) -> Tree | None:
    with suppress(InstallerError):
        file = host.read(path)
        return tree_of(file, path) if file is not None else None
    return None


def find_version(text: str) -> tuple[Version, str]:
    """Return the first version in a text: as numbers, and as it is spelled; () and "" without one."""
    found = VERSION.search(text[:2000])
    return (tuple(int(part) for part in found[2].split(".")), found[1]) if found else ((), "")


def ask_version(host: Host, program: PurePosixPath) -> str:
    """Return what a program of the host's says about its version; "" where it may not be run."""
    allowed = is_file(host, program) and root_wrote(host, program)
    return _run(host, str(program), "--version") if allowed else ""


def _run(host: Host, *words: str) -> str:
    ran = run_in(host.local_path(ROOT), list(words), timeout_s=PROGRAM_S)
    return ran.stdout if ran is not None and ran.returncode == 0 else ""


def ask_processes(host: Host, processes: Sequence[Seen]) -> tuple[Process, ...]:
    """Return the processes that count here, each program asked once, whatever it was replaced by since."""
    wanted = [each for each in processes if each.name in PROCESS_NAMES]
    files = {each.file: each for each in wanted}
    answers = {file: _ask_process(host, each) for file, each in files.items()}
    return tuple(
        Process(each.pid, each.name, each.program, each.deleted, *answers[each.file]) for each in wanted
    )


def _ask_process(host: Host, process: Seen) -> tuple[Version, str, bool]:
    name, words = PurePosixPath(process.program).name, ""
    if process.of_host and name in VERSION_FLAGS and name[:NAME_LETTERS] == process.name:
        # By its process and not by its path: that may lead to a later program.
        words = _run(host, f"/proc/{process.pid}/exe", VERSION_FLAGS[name])
    version, spelled = find_version(words)
    # The shim of containerd 1.2 has no word for its version.
    dies = process.name == SHIM and holds(host, process.pid, NIL_POINTER)
    return version, f"{process.name} {spelled}" if spelled else "", dies


def ask_runc(host: Host) -> dict[str, tuple[Version, str]]:
    """Return what each runc and crun of the node says, by path."""
    places = (place / name for name in ("runc", "crun") for place in PATH)
    programs = {}
    for path in dict.fromkeys(host.resolve(path) for path in places if is_file(host, path)):
        version, spelled = find_version(ask_version(host, path))
        programs[str(path)] = (version, f"{path.name} {spelled}" if spelled else "")
    return programs


def read_engines(host: Host, options: Options, processes: Sequence[Seen]) -> tuple[EngineExam, ...]:
    """Return each engine whose process runs; a connection could start one that does not."""
    running = {each.name for each in processes}
    exams = (_examine(host, options, spec) for spec in ENGINES.values() if spec.process in running)
    return tuple(exam for exam in exams if exam is not None)


def _examine(host: Host, options: Options, spec: EngineSpec) -> EngineExam | None:
    sought, asked = replace(look_for(spec, options), hook=None), replace(options, timeout_s=ENGINE_S)
    engine = observe(host, sought, asked, options.places.get(spec.name, Places()), awaits_s=0)
    if engine.stopped and not engine.another:
        return None  # the process is another one's, or about to end
    if spec.finds and engine.unit not in spec.units:
        return None  # its sibling, on the same socket
    engine = with_readable_configs(host, engine)
    contents, trees, unreadable = _read_configs(host, engine.files)
    on_disk, unable = None, ""
    with suppress(InstallerError):
        on_disk = None if spec.finds or engine.another else Trials(host, contents)(engine, {})
    try:  # what keeps an engine that answers from starting containers
        if engine.serving:
            find_dependencies(host, engine, options.layout.toolkit, Dependencies())
    except InstallerError as error:
        unable = error.problem
    is_docker = spec.api is Api.DOCKER
    cgroup_driver, live_restore = (
        settings(host.local_path(engine.socket), timeout_s=ENGINE_S) if is_docker else ("", None)
    )
    return EngineExam(
        engine,
        on_disk=on_disk,
        trees=trees,
        unreadable=unreadable,
        unit_state=read_unit_state(host, engine.unit),
        cgroup_driver=cgroup_driver,
        live_restore=live_restore,
        has_hook=_look_for_hook(host, engine.started) if is_docker else None,
        unable=unable,
    )


def _read_configs(
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


def read_unit_state(host: Host, unit: str) -> str:
    """Return "active/sub/result" of a unit; "" where it is not there, or systemd does not tell."""
    try:
        state = systemd.read_unit(host, unit) if unit else None
    except InstallerError:
        return ""
    return f"{state.active}/{state.sub}/{state.result}" if state and state.load != "not-found" else ""


def _look_for_hook(host: Host, started: Started | None) -> bool | None:
    if started is None or not started.environment.get("PATH"):
        return None
    return any(is_file(host, place / DOCKER_HOOK) for place in started.paths)
