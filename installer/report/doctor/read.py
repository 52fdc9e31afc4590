"""A node as ``doctor`` judges it: reads only, each question with an end, what fails is left open.

Of programs, only those that root alone can have written are started.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import asdict, replace

from installer.cdi.specification import named_paths, read_devices
from installer.change.observe import SPEC_DIRS, SPEC_SUFFIXES
from installer.config_text import Tree, value_at
from installer.engines import ENGINES
from installer.engines.config_edits import is_hook, tree_of
from installer.engines.config_files import with_readable_configs
from installer.engines.crio.config import HOOK_DIR, PODMANS_HOOK_DIR
from installer.engines.dependencies import MONITORS, Dependencies, driver_root, find_dependencies
from installer.engines.dry_run import Trials
from installer.engines.observe import ask_for, drop_unused, look_for, with_process
from installer.engines.startup import find_lacks, find_moves, path_of, value_of
from installer.engines.templates import find_template_flaw
from installer.errors import InstallerError
from installer.host import systemd
from installer.host.files import Host, find_absent, is_file, text, used_percent
from installer.host.kernel import character_devices, kernel_log
from installer.host.locks import is_pidfile_locked
from installer.host.processes import (
    HostProcess,
    can_see_host,
    inotify_instances,
    is_written_by_root,
    list_root_processes,
    program_holds,
    read_command_line,
)
from installer.host.programs import can_be_started, run_in
from installer.host.sockets import is_listened_on
from installer.lifecycle.installation_report import LAST_CHECK, Installation, Line, read_installation
from installer.model.engine import Api, Engine
from installer.model.facts import EngineState, Record
from installer.model.files import DRIVER_LIBRARY_DIRS, PATH, File
from installer.model.options import GPU_KIND, Options, Places
from installer.nri.state import describe_plugin as plugin_lines
from installer.report.doctor import model, system

PCI: Final = PurePosixPath("/sys/bus/pci/devices")
GPUS: Final = frozenset({0x0300, 0x0302})  # VGA and 3D controllers
SWITCH: Final = 0x0680  # a bridge of class "other"
MODULES: Final = PurePosixPath("/sys/module")
DRIVER_PROC: Final = PurePosixPath("/proc/driver/nvidia")
DRIVER_VERSION: Final = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
MAJOR: Final = re.compile(r"^ *(\d{1,9}) +(.*\S)", re.MULTILINE | re.ASCII)
CHAR_LINK: Final = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
DEV: Final = PurePosixPath("/dev")
SECURE_BOOT: Final = PurePosixPath(
    "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
)
SOCKET: Final = {None: "absent", True: "answers", False: "dead"}
LOG_WORDS: Final = ("NVRM", "nvidia", "Key was rejected", "Required key", "unsigned module", 'peer="runc"')
MINOR: Final = re.compile(r"DeviceFileMinor:\s*(\d{1,6})")
HOST_PATH: Final = re.compile(r"""["']?hostPath["']?:\s*["']?(/[^"'\s,]{1,1000})""")
MOST_PATHS: Final = 2000  # of one specification
MOST_SPECS: Final = 256  # of one directory
SPEC_BYTES: Final = 4 << 20  # engines read more; the specification of a node with 128 devices has 130,000
SYS: Final = PurePosixPath("/sys")
STORES: Final = ("/var", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers")
BOOLEANS: Final = ("container_use_devices", "container_use_xserver_devices")
CGROUP_DRIVER: Final = re.compile(r"^cgroupDriver:\s*[\"']?(systemd|cgroupfs)\b", re.MULTILINE)
CONFIG: Final = PurePosixPath("/etc/nvidia-container-runtime/config.toml")
RUNTIME: Final = "nvidia-container-runtime"
CLI: Final = "nvidia-container-cli"
# 1.0 has one line "version: 1.0.0"; later ones tell themselves and their library apart.
CLI_VERSION: Final = re.compile(r"^(?:cli-)?version:\s*(\S{1,60})", re.MULTILINE)
LIBRARY_VERSION: Final = re.compile(r"^lib-version:\s*(\S{1,60})", re.MULTILINE)
CTK_VERSION: Final = re.compile(r"\bCLI version\s+(\S{1,60})")
VERSION: Final = re.compile(r"(?<![\w.])v?((\d{1,5}(?:\.\d{1,5}){1,3})[^\s,]{0,40})")
PROGRAM_S: Final = 2.0
PATHS_S: Final = 5.0  # to look at all that CDI specifications name
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


def read_node(host: Host, options: Options) -> model.Node:
    """Return everything that is judged; nothing is written, locked, started or signalled."""
    try:
        installation = read_installation(host, options)
    except InstallerError as error:
        installation = Installation(None, None, (Line("status", str(error), good=False),), ())
    record = installation.record or Record()
    processes = tuple(list_root_processes(host, unread=True))
    toolkits = tuple(read_toolkits(host, options))
    named = {name: places for name, places in options.places.items() if places.socket}
    sockets = {row.name: Places(socket=row.socket) for row in record.engines}
    besides = _read_system(host, processes, record, options)
    configured = {row.name: (row.unit, besides.units.get(row.unit, "")) for row in record.engines}
    active = [name for name, (_, state) in configured.items() if state.startswith("active/running")]
    asked = replace(options, places={**options.places, **sockets, **named})
    engines = read_engines(host, asked, processes, active)
    used = {exam.name for exam in drop_unused(host, record, engines)[0]}
    hooked = {row.engine for row in record.configs if is_hook(row)}
    hooks = read_hooks(host, engines)
    return model.Node(
        driver=read_driver(host, _choose_driver_root(host, options, toolkits)),
        specs=tuple(read_specifications(host)),
        toolkits=toolkits,
        engines=engines,
        processes=ask_processes(host, processes),
        runc=ask_runc(host),
        programs=_find_programs(host, toolkits, engines, hooks.values()),
        hooks=hooks,
        installed=tuple((line.what, line.state, line.good) for line in installation.files),
        unwatched=next(
            (each.state for each in installation.lines if each.what == LAST_CHECK and each.good), ""
        ),
        exempt=frozenset(exam.name for exam in engines) - used | hooked,
        by_cdi=record.cdi,
        plugin=tuple((state, good) for _, state, good, _ in plugin_lines(host, options.nri, record)),
        configured=configured,
        system=besides,
        run_waits=is_pidfile_locked(host.local_path(options.pid_file)),
        sees_host=can_see_host(host),
    )


def _choose_driver_root(host: Host, options: Options, toolkits: tuple[model.Toolkit, ...]) -> PurePosixPath:
    """Return where the toolkit looks for the driver: as its config says, else where there is one."""
    for toolkit in toolkits:
        root = toolkit.value("nvidia-container-cli", "root")
        if isinstance(root, str) and root.startswith("/"):
            return PurePosixPath(root)
    usual = PurePosixPath(driver_root(host, options)[0])
    return usual if _list_names(host, usual) else model.ROOT


def read_hooks(host: Host, engines: Iterable[EngineState]) -> dict[PurePosixPath, str]:
    """Return the OCI hooks of CRI-O and Podman, each with the program that it starts."""
    directories = [PurePosixPath(HOOK_DIR), PurePosixPath(PODMANS_HOOK_DIR)]
    for engine in engines:
        directories += engine.served.hook_dirs
    hooks: dict[PurePosixPath, str] = {}
    for directory in dict.fromkeys(directories):
        for path in (directory / name for name in _list_names(host, directory) if name.endswith(".json")):
            with suppress(InstallerError):  # what is no hook is no engine's to run
                program = value_at(tree_of(host.read(path), path), ("hook", "path"))
                if isinstance(program, str) and program.startswith("/"):
                    hooks[path] = program
    return hooks


def _find_programs(
    host: Host,
    toolkits: tuple[model.Toolkit, ...],
    engines: tuple[model.EngineExam, ...],
    of_hooks: Iterable[str],
) -> frozenset[str]:
    """Return those programs that configs and hooks name and that are there."""
    words = {program for exam in engines for program in exam.programs.values()}.union(of_hooks)
    for toolkit in toolkits:
        for table in (toolkit.config or {}).values():
            for value in table.values() if isinstance(table, dict) else ():
                values = value if isinstance(value, list) else [value]
                words |= {word.removeprefix("@") for word in values if isinstance(word, str)}
    paths = {word for word in words if word.startswith("/") and "\0" not in word}
    found = {path for path in paths if is_file(host, PurePosixPath(path))}
    for exam in engines:
        places = exam.started.paths if exam.started else PATH
        names = (word for word in exam.programs.values() if word and "/" not in word)
        found |= {name for name in names if any(can_be_started(host, place / name) for place in places)}
    return frozenset(found)


def read_driver(host: Host, root: PurePosixPath) -> model.Driver:
    """Return the driver whose libraries are below ``root``."""
    libraries = (
        name
        for directory in DRIVER_LIBRARY_DIRS
        for name in _list_names(host, root / directory.relative_to("/"))
        if name.startswith("libnvidia-ml.so.")
    )
    modules = ("nvidia", "nvidia_uvm", "nouveau")
    version = text(host, MODULES / "nvidia/version").strip() or text(host, DRIVER_PROC / "version")
    found = DRIVER_VERSION.search(version[:1000])
    characters = text(host, PurePosixPath("/proc/devices")).partition("Block devices:")[0]
    persistenced = host.local_path(PurePosixPath("/run/nvidia-persistenced/socket"))
    links = (CHAR_LINK.fullmatch(name) for name in _list_names(host, DEV / "char"))
    functions = [*_read_functions(host)]
    return model.Driver(
        gpus={address: driver for address, kind, driver in functions if kind in GPUS},
        switches=sum(kind == SWITCH for _, kind, _ in functions),
        modules=frozenset(name for name in modules if host.exists(MODULES / name)),
        version=found[1] if found else "",
        root=root,
        libraries=tuple(libraries),
        majors={name: int(number) for number, name in MAJOR.findall(characters)},
        nodes=tuple(
            model.DeviceNode(directory / name, major, minor, label)
            for directory in (DEV, DEV / "nvidia-caps")
            for name, major, minor, label in character_devices(host.local_path(directory), "nvidia")
        ),
        char_links=frozenset((int(link[1]), int(link[2])) for link in links if link),
        log=kernel_log(host.local_path(DEV / "kmsg"), LOG_WORDS),
        secure_boot=text(host, SECURE_BOOT).endswith("\x01"),
        persistenced=SOCKET[is_listened_on(persistenced)],
        mig_minors=tuple(sorted(_read_mig_minors(host))),
    )


def _list_names(host: Host, path: PurePosixPath) -> tuple[str, ...]:
    """Return the names in a directory; none where it cannot be read."""
    with suppress(InstallerError):
        return host.names(path)
    return ()


def _read_functions(host: Host) -> Iterator[tuple[str, int, str]]:
    """Yield the address, the class and the driver of each function of NVIDIA's on the PCI bus."""
    for address in _list_names(host, PCI):
        if text(host, PCI / address / "vendor").strip() == "0x10de":
            driver = PurePosixPath(host.link_target(PCI / address / "driver") or "").name
            with suppress(ValueError):
                yield address, int(text(host, PCI / address / "class"), 16) >> 8, driver


def _has_gpu(host: Host) -> bool:
    return any(kind in GPUS for _, kind, _ in _read_functions(host))


def _read_mig_minors(host: Host) -> Iterator[int]:
    gpus = DRIVER_PROC / "capabilities"
    for instances in (gpus / gpu / "mig" for gpu in _list_names(host, gpus)):
        for place in (instances / name for name in _list_names(host, instances)):
            for access in (place / "access", *(place / name / "access" for name in _list_names(host, place))):
                if is_file(host, access) and (found := MINOR.search(text(host, access))):
                    yield int(found[1])


def read_specifications(host: Host) -> Iterator[model.Spec]:
    """Yield the CDI specifications that engines would read, ``MOST_SPECS`` of a directory at most."""
    specs: list[model.Spec] = []
    for directory in SPEC_DIRS:
        names = [directory / name for name in _list_names(host, directory)]
        paths = [path for path in names if path.suffix in SPEC_SUFFIXES]
        specs += [_read_specification(host, path) for path in paths[:MOST_SPECS]]
        if len(paths) > MOST_SPECS:
            reason = f"{directory}: cannot look at more than {MOST_SPECS} of {len(paths)} specifications"
            specs.append(model.Spec(directory, unreadable=reason))
    named = dict.fromkeys(PurePosixPath(path) for spec in specs for path in spec.paths)
    absent = {str(path) for path in find_absent(host, named, timeout_s=PATHS_S)}
    for spec in specs:
        yield replace(spec, gone=tuple(path for path in spec.paths if path in absent))


def _read_specification(host: Host, path: PurePosixPath) -> model.Spec:
    if host.size(path) > SPEC_BYTES:
        return model.Spec(path, unreadable=f"{path}: it has more than {SPEC_BYTES >> 20} MiB")
    content = text(host, path)
    version = system.WRITTEN_IN.search(content)
    paths = dict.fromkeys((*named_paths(content), *HOST_PATH.findall(content))[:MOST_PATHS])
    gpus: frozenset[str] = frozenset()
    unreadable = ""
    try:
        gpus = read_devices(content, GPU_KIND)
    except InstallerError as error:
        unreadable = f"{path}: cannot {error.problem}"
    return model.Spec(
        path,
        version=tuple(int(part) for part in version[1].split(".")) if version else (),
        uvm_majors=frozenset(int(major) for major in system.UVM_MAJOR.findall(content)),
        caps=frozenset(int(minor) for minor in system.CAP.findall(content)),
        paths=tuple(str(PurePosixPath(each)) for each in paths),
        gpus=gpus,
        unreadable=unreadable,
    )


def _read_system(host: Host, seen: Sequence[HostProcess], record: Record, options: Options) -> model.System:
    names = {unit for each in ENGINES.values() for unit in (each.unit, *each.units)}
    units = (*system.UNITS, *sorted(names | {row.unit for row in record.engines}))
    states = ((unit, spell_state(systemd.look_at_unit(host, unit))) for unit in units)
    selinux = SYS / "fs/selinux"
    booleans = [text(host, selinux / "booleans" / name) for name in BOOLEANS]
    profiles = text(host, SYS / "kernel/security/apparmor/profiles").splitlines()
    limit = text(host, PurePosixPath("/proc/sys/fs/inotify/max_user_instances")).strip()
    places = map(PurePosixPath, ("/run", "/", "/usr/local", str(options.install_dir), *STORES))
    shares = [(path, used_percent(host, path)) for path in places]
    return model.System(
        cgroup2=host.exists(SYS / "fs/cgroup/cgroup.controllers"),
        tegra=host.exists(PurePosixPath("/etc/nv_tegra_release")),
        selinux_enforcing=text(host, selinux / "enforce").strip() == "1",
        devices_for_containers=any(boolean.startswith("1") for boolean in booleans),
        apparmor_profiles=frozenset(line.rpartition(" (")[0] for line in profiles),
        inotify=(inotify_instances(host), int(limit) if limit.isascii() and limit.isdigit() else 0),
        spaces={path: share for path, share in shares if share is not None},
        units={unit: state for unit, state in states if state},
        kubelet_cgroups=_read_kubelet_cgroups(host, seen),
        refused=dict(_find_refused_files(host)),
    )


def _find_refused_files(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the units of engines with the file in their directory that they do not start with."""
    for engine in ENGINES.values():
        if engine.drop_ins.directory is None or not engine.config_markers:
            continue
        for name in _list_names(host, engine.drop_ins.directory):
            path = engine.drop_ins.directory / name
            with suppress(InstallerError):
                tree = tree_of(host.read(path), path) if fnmatchcase(name, engine.drop_ins.pattern) else {}
                if reason := engine.explain_refused_drop_in(tree):
                    yield from ((unit, f"{path} {reason}") for unit in engine.units)


def _read_kubelet_cgroups(host: Host, processes: Sequence[HostProcess]) -> str:
    kubelet = next((each for each in processes if each.name == "kubelet" and each.of_host), None)
    if kubelet is None:
        return ""
    words = read_command_line(host, kubelet)
    if driver := value_of(words, ("--cgroup-driver",)):
        return driver
    config = path_of(words, ("--config",)) or PurePosixPath("/var/lib/kubelet/config.yaml")
    found = CGROUP_DRIVER.search(text(host, config))
    return found[1] if found else ""


def read_toolkits(host: Host, options: Options) -> Iterator[model.Toolkit]:
    """Yield the toolkits of the node, ours first."""
    layout = options.layout
    packaged = ((place, CONFIG) for place in model.PACKAGED)
    for directory, config in ((layout.toolkit, layout.config), *packaged):
        if not any(is_file(host, directory / name) for name in (RUNTIME, CLI)):
            continue
        words = ask_version(host, directory / CLI)
        cli, library = _find_version(CLI_VERSION, words), _find_version(LIBRARY_VERSION, words)
        # The programs of a toolkit of ours may be links to those of a package.
        target = PurePosixPath(host.link_target(directory / "nvidia-cdi-hook") or "")
        tree: Tree | None = None
        with suppress(InstallerError):
            tree = tree_of(file, config) if (file := host.read(config)) else None
        yield model.Toolkit(
            directory,
            library=library or cli,
            cli=cli,
            ctk=_find_version(CTK_VERSION, ask_version(host, directory / "nvidia-ctk")),
            config=tree,
            config_path=config,
            starts=target.parent if target.is_absolute() and directory not in model.PACKAGED else None,
        )


def _find_version(pattern: "re.Pattern[str]", words: str) -> model.Version:
    found = pattern.search(words[:2000])
    return find_version(found[1])[0] if found else ()


def find_version(text: str) -> tuple[model.Version, str]:
    """Return the first version in a text: as numbers, and as it is spelled; () and "" without one."""
    found = VERSION.search(text[:2000])
    return (tuple(int(part) for part in found[2].split(".")), found[1]) if found else ((), "")


def ask_version(host: Host, program: PurePosixPath) -> str:
    """Return what a program of the host's says about its version; "" where it may not be run."""
    allowed = is_file(host, program) and is_written_by_root(host, program)
    return _run(host, str(program), "--version") if allowed else ""


def _run(host: Host, *words: str) -> str:
    ran = run_in(host.local_path(model.ROOT), list(words), timeout_s=PROGRAM_S)
    return ran.stdout if ran is not None and ran.returncode == 0 else ""


def ask_processes(host: Host, processes: Sequence[HostProcess]) -> tuple[model.Process, ...]:
    """Return the processes that count here, each program asked once, whatever it was replaced by since."""
    wanted = [each for each in processes if each.name in PROCESS_NAMES]
    files = {each.file: each for each in wanted}
    answers = {file: _ask_process(host, each) for file, each in files.items()}
    return tuple(
        model.Process(each.pid, each.name, each.program, each.deleted, *answers[each.file]) for each in wanted
    )


def _ask_process(host: Host, process: HostProcess) -> tuple[model.Version, str, bool]:
    name, words = PurePosixPath(process.program).name, ""
    if process.of_host and name in VERSION_FLAGS and name[:NAME_LETTERS] == process.name:
        # By its process and not by its path: that may lead to a later program.
        words = _run(host, f"/proc/{process.pid}/exe", VERSION_FLAGS[name])
    version, spelled = find_version(words)
    # The shim of containerd 1.2 has no word for its version.
    dies = process.of_host and process.name == SHIM and program_holds(host, process.pid, NIL_POINTER)
    return version, f"{process.name} {spelled}" if spelled else "", dies


def ask_runc(host: Host) -> dict[str, tuple[model.Version, str]]:
    """Return what each runc and crun of the node says, by path."""
    places = (place / name for name in ("runc", "crun") for place in PATH)
    programs = {}
    for path in dict.fromkeys(host.resolve(path) for path in places if is_file(host, path)):
        version, spelled = find_version(ask_version(host, path))
        programs[str(path)] = (version, f"{path.name} {spelled}" if spelled else "")
    return programs


def read_engines(
    host: Host, options: Options, processes: Sequence[HostProcess], active: Collection[str] = ()
) -> tuple[model.EngineExam, ...]:
    """Return each engine whose process or unit runs; a connection could start one that does not.

    ``active`` names those whose unit runs, be it a program of another name.
    """
    running = {each.name for each in processes}
    specs = (spec for spec in ENGINES.values() if spec.process in running or spec.name in active)
    exams = (_examine(host, options, spec) for spec in specs)
    return tuple(exam for exam in exams if exam is not None)


def _examine(host: Host, options: Options, spec: Engine) -> model.EngineExam | None:
    sought, asked = replace(look_for(spec, options), hook=None), replace(options, timeout_s=ENGINE_S)
    engine = ask_for(host, sought, asked, awaits_s=0)
    if engine.stopped and not engine.another:
        return None  # the process is another one's, or about to end
    engine, unit = with_process(host, engine, options.places.get(spec.name, Places()))
    if spec.built_in_runtime and engine.unit not in spec.units:
        return None  # its sibling, on the same socket
    engine = with_readable_configs(host, engine)
    contents, trees, invalid = _read_configs(host, engine.files)
    on_disk, unable = None, ""
    with suppress(InstallerError):
        on_disk = None if spec.built_in_runtime or engine.another else Trials(host, contents)(engine, {})
    try:  # what keeps an engine that answers from starting containers
        if engine.serving:
            monitor = MONITORS[spec.monitor][0] if engine.pid else ""
            find_dependencies(host, engine, options.layout.toolkit, Dependencies(monitor=monitor))
    except InstallerError as error:
        unable = f"{error.problem}; {error.remedy}"
    has_hook = None
    if spec.api is Api.DOCKER and engine.started and engine.started.environment.get("PATH"):
        has_hook = any(is_file(host, place / DOCKER_HOOK) for place in engine.started.paths)
    lacks = (f"{engine.unit} would not start it again: {lack}" for lack in find_lacks(host, unit.start))
    moves = (f"at its next start {engine.unit} gives it {move}" for move in find_moves(engine))
    flaws = [*lacks, *moves]
    wanted = (
        spec.built_in_runtime in engine.served.handlers
        or host.exists(options.layout.toolkit)
        or _has_gpu(host)
    )
    template = find_template_flaw(host, spec, engine.config, engine.version) if wanted else None
    if template is not None:
        flaws.append(f"after its next start it does not serve {spec.built_in_runtime}: {template.reason}")
    return model.EngineExam(
        **asdict(engine),
        on_disk=on_disk,
        trees=trees,
        invalid=invalid,
        next_flaw=next(iter(flaws), ""),
        unit_state=spell_state(unit),
        has_hook=has_hook,
        unable=unable,
    )


def _read_configs(
    host: Host, paths: Sequence[PurePosixPath]
) -> tuple[dict[PurePosixPath, File | None], dict[PurePosixPath, Tree], str]:
    """Return configs, what those say that are valid, and why the first other is not."""
    contents: dict[PurePosixPath, File | None] = {}
    trees: dict[PurePosixPath, Tree] = {}
    invalid = ""
    for path in paths:
        try:
            contents[path] = host.read(path)
            trees[path] = tree_of(contents[path], path)
        except InstallerError as error:
            invalid = invalid or f"cannot {error.problem}"
    return contents, trees, invalid


def spell_state(state: systemd.Unit) -> str:
    """Return "active/sub/result" of a unit; "" where it is not there, or systemd does not tell."""
    active = state.load if state.start.masked and state.active == "inactive" else state.active
    return "" if state.load in {"", "not-found"} else f"{active}/{state.sub}/{state.result}"
