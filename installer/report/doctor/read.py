"""Read a node for ``doctor``.

Nothing is changed, each read has a limit, and a failed read leaves its fact empty. Only programs that root
alone can have written are started.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict, replace

from installer.cdi.specification import named_paths, read_devices
from installer.change.reference_search import SPEC_DIRS, SPEC_SUFFIXES
from installer.config_text import Tree, value_at
from installer.engines import ENGINES
from installer.engines.config_edits import is_hook
from installer.engines.config_files import with_readable_configs
from installer.engines.config_texts import tree_of
from installer.engines.dependencies import Dependencies, driver_root, find_dependencies
from installer.engines.dry_run import DryRuns
from installer.engines.observe import ask_for, drop_unused, look_elsewhere, look_for, with_process
from installer.engines.other_engines import find_other_engines
from installer.engines.startup import find_missing_requirements, find_moves, path_of, value_of
from installer.engines.templates import find_template_flaw
from installer.errors import InstallerError
from installer.host import systemd
from installer.host.files import Host, find_absent, is_file, text, used_percent
from installer.host.kernel import character_devices, kernel_log
from installer.host.locks import is_pidfile_locked
from installer.host.processes import (
    HostProcess,
    UnfinishedError,
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
from installer.model.engine import Engine, EngineState
from installer.model.facts import Record
from installer.model.files import DRIVER_LIBRARY_DIRS, PATH, File
from installer.model.options import GPU_KIND, Options, Places
from installer.nri.state import describe_plugin
from installer.report.doctor import model, system

if TYPE_CHECKING:
    from installer.model.effective import EffectiveConfig

PCI: Final = PurePosixPath("/sys/bus/pci/devices")
GPUS: Final = frozenset({0x0300, 0x0302})  # VGA and 3D controllers
SWITCH: Final = 0x0680  # a bridge of class "other"
MODULES: Final = PurePosixPath("/sys/module")
DRIVER_PROC: Final = PurePosixPath("/proc/driver/nvidia")
DRIVER_VERSION: Final = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b")
MAJOR: Final = re.compile(r"^ *(\d{1,9}) +(.*\S)", re.MULTILINE | re.ASCII)
CHAR_LINK: Final = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
DEV: Final = PurePosixPath("/dev")
# CRI-O reads this directory, too, if its config names it.
PODMANS_HOOK_DIR: Final = PurePosixPath("/etc/containers/oci/hooks.d")
SECURE_BOOT: Final = PurePosixPath(
    "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
)
SOCKET: Final = {None: "absent", True: "answers", False: "dead"}
LOG_WORDS: Final = ("NVRM", "nvidia", "Key was rejected", "Required key", "unsigned module", 'peer="runc"')
MINOR: Final = re.compile(r"DeviceFileMinor:\s*(\d{1,6})")
HOST_PATH: Final = re.compile(r"""hostPath["']?:\s*["']?(/[^"'\s,]{1,1000})""")
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
# 1.0 has one line "version: 1.0.0"; later versions name the program and the library separately.
CLI_VERSION: Final = re.compile(r"^(?:cli-)?version:\s*(\S{1,60})", re.MULTILINE)
LIBRARY_VERSION: Final = re.compile(r"^lib-version:\s*(\S{1,60})", re.MULTILINE)
CTK_VERSION: Final = re.compile(r"\bCLI version\s+(\S{1,60})")
VERSION: Final = re.compile(r"(?<![\w.])v?((\d{1,5}(?:\.\d{1,5}){1,3})[^\s,]{0,40})")
PROGRAM_S: Final = 2.0
PATHS_S: Final = 5.0  # for all paths in CDI specifications
ENGINE_S: Final = 3.0
SHIM: Final = "containerd-shim"
# The function that the shim of containerd 1.2.1 and 1.2.2 dies in.
NIL_POINTER: Final = b"(*execProcess).pidv"
# The flag that prints the version, by the name of the program.
VERSION_FLAGS: Final[Mapping[str, str]] = {
    **dict.fromkeys((SHIM, f"{SHIM}-runc-v1", f"{SHIM}-runc-v2"), "-v"),
    **{engine.process: "--version" for engine in ENGINES.values()},
    "nv-fabricmanager": "--version",
}
NAME_LETTERS: Final = 15  # the kernel cuts the name of a process
PROCESS_NAMES: Final = frozenset(name[:NAME_LETTERS] for name in VERSION_FLAGS)


def read_node(host: Host, options: Options) -> model.Node:
    """Return the facts for all checks; nothing is written, locked, started or signalled."""
    try:
        installation = read_installation(host, options)
    except InstallerError as error:
        line = Line("status", str(error), good=False)
        installation = Installation(record=None, last_check=None, files=(line,), lines=())
    record = installation.record or Record()
    processes, sees_all = _list_processes(host)
    toolkits = tuple(read_toolkits(host, options))
    node_system = _read_system(host, processes, record, options)

    engine_units: dict[str, tuple[str, str]] = {}
    active: list[str] = []
    for row in record.engines:
        state = node_system.units.get(row.unit, "")
        engine_units[row.name] = (row.unit, state)
        if state.startswith("active/running"):
            active.append(row.name)
    engines = read_engines(host, _add_sockets(options, record), processes, active)
    used, _ = drop_unused(host, record, engines)
    needs_runtime = {exam.name for exam in used}
    hooked = {row.engine for row in record.configs if is_hook(row)}
    hooks = read_hooks(host, engines)

    last_check = ""
    for line in installation.lines:
        if line.subject == LAST_CHECK and line.good:
            last_check = line.state
            break

    return model.Node(
        driver=read_driver(host, _choose_driver_root(host, options, toolkits)),
        specs=tuple(read_specifications(host)),
        toolkits=toolkits,
        engines=engines,
        other_engines=find_other_engines(host, engines),
        processes=ask_processes(host, processes),
        runc=ask_runc(host),
        programs=_find_programs(host, toolkits, engines, hooks.values()),
        hooks=hooks,
        status_lines=tuple((line.subject, line.state, line.good) for line in installation.files),
        last_check=last_check,
        without_runtime=frozenset(exam.name for exam in engines) - needs_runtime | hooked,
        by_cdi=record.cdi,
        plugin=tuple((each.state, each.good) for each in describe_plugin(host, options.nri, record)),
        engine_units=engine_units,
        system=node_system,
        run_waits=is_pidfile_locked(host.local_path(options.pid_file)),
        sees_host=sees_all and can_see_host(host),
    )


def _add_sockets(options: Options, record: Record) -> Options:
    """Return the options with the sockets in the ledger for engines without a socket in the options."""
    places = dict(options.places)
    for row in record.engines:
        named = options.places.get(row.name)
        if named is None or not named.socket:
            places[row.name] = Places(socket=row.socket)
    return replace(options, places=places)


def _list_processes(host: Host) -> tuple[tuple[HostProcess, ...], bool]:
    """Return root's processes, and whether these are all: too many are not looked at."""
    processes: list[HostProcess] = []
    try:
        for process in list_root_processes(host, unread=True):
            processes.append(process)  # noqa: PERF402 - those before the error count
    except UnfinishedError:
        return tuple(processes), False
    return tuple(processes), True


def _choose_driver_root(host: Host, options: Options, toolkits: tuple[model.Toolkit, ...]) -> PurePosixPath:
    """Return the root in which the toolkit looks for the driver: by its config, or else the driver's root."""
    for toolkit in toolkits:
        root = toolkit.value("nvidia-container-cli", "root")
        if isinstance(root, str) and root.startswith("/"):
            return PurePosixPath(root)
    usual = PurePosixPath(driver_root(host, options)[0])
    if _list_names(host, usual):
        return usual
    return model.ROOT


def read_hooks(host: Host, engines: Iterable[EngineState]) -> dict[PurePosixPath, str]:
    """Return the OCI hooks of CRI-O and Podman, each with its program."""
    directories = [kind.hook_dir for kind in ENGINES.values() if kind.hook_dir is not None]
    directories.append(PODMANS_HOOK_DIR)
    for engine in engines:
        directories += engine.served.hook_dirs

    hooks: dict[PurePosixPath, str] = {}
    for directory in dict.fromkeys(directories):
        for name in _list_names(host, directory):
            if not name.endswith(".json"):
                continue
            path = directory / name
            with suppress(InstallerError):  # engines run no invalid hook
                program = value_at(tree_of(host.read(path), path), ("hook", "path"))
                if isinstance(program, str) and program.startswith("/"):
                    hooks[path] = program
    return hooks


def _find_programs(
    host: Host,
    toolkits: tuple[model.Toolkit, ...],
    engines: tuple[model.EngineExam, ...],
    hook_programs: Iterable[str],
) -> frozenset[str]:
    """Return the present programs among the programs that configs and hooks name."""
    words = set(hook_programs)
    for exam in engines:
        words.update(exam.programs.values())
    for toolkit in toolkits:
        words.update(_list_config_words(toolkit))

    paths = {word for word in words if word.startswith("/") and "\0" not in word}
    present = set()
    for path in paths:
        if is_file(host, PurePosixPath(path)):
            present.add(path)
    for exam in engines:
        search_path = exam.started.paths if exam.started else PATH
        for word in exam.programs.values():
            if not word or "/" in word:
                continue
            if any(can_be_started(host, directory / word) for directory in search_path):
                present.add(word)
    return frozenset(present)


def _list_config_words(toolkit: model.Toolkit) -> Iterator[str]:
    """Yield the texts in the tables of a toolkit's config.toml, without a leading @."""
    for table in (toolkit.config or {}).values():
        if not isinstance(table, dict):
            continue
        for value in table.values():
            values = value if isinstance(value, list) else [value]
            for word in values:
                if isinstance(word, str):
                    yield word.removeprefix("@")


def read_driver(host: Host, root: PurePosixPath) -> model.Driver:
    """Return the driver whose libraries are below ``root``."""
    modules = ("nvidia", "nvidia_uvm", "nouveau")
    version_text = text(host, MODULES / "nvidia/version").strip() or text(host, DRIVER_PROC / "version")
    version = DRIVER_VERSION.search(version_text[:1000])
    character_majors, _, _ = text(host, PurePosixPath("/proc/devices")).partition("Block devices:")
    persistenced = host.local_path(PurePosixPath("/run/nvidia-persistenced/socket"))
    functions = list(_read_functions(host))
    return model.Driver(
        gpus={address: driver for address, kind, driver in functions if kind in GPUS},
        switches=sum(kind == SWITCH for _, kind, _ in functions),
        modules=frozenset(name for name in modules if host.exists(MODULES / name)),
        version=version[1] if version else "",
        root=root,
        libraries=tuple(_list_driver_libraries(host, root)),
        majors={name: int(number) for number, name in MAJOR.findall(character_majors)},
        nodes=tuple(_list_device_nodes(host)),
        char_links=frozenset(_list_char_links(host)),
        log=kernel_log(host.local_path(DEV / "kmsg"), LOG_WORDS),
        secure_boot=text(host, SECURE_BOOT).endswith("\x01"),
        persistenced=SOCKET[is_listened_on(persistenced)],
        mig_minors=tuple(sorted(_read_mig_minors(host))),
    )


def _list_driver_libraries(host: Host, root: PurePosixPath) -> Iterator[str]:
    """Yield the names of libnvidia-ml.so.* below ``root``."""
    for directory in DRIVER_LIBRARY_DIRS:
        for name in _list_names(host, root / directory.relative_to("/")):
            if name.startswith("libnvidia-ml.so."):
                yield name


def _list_device_nodes(host: Host) -> Iterator[model.DeviceNode]:
    """Yield the device nodes of the driver."""
    for directory in (DEV, DEV / "nvidia-caps"):
        for name, major, minor, label in character_devices(host.local_path(directory), "nvidia"):
            yield model.DeviceNode(directory / name, major, minor, label)


def _list_char_links(host: Host) -> Iterator[tuple[int, int]]:
    """Yield major and minor of each link in /dev/char."""
    for name in _list_names(host, DEV / "char"):
        numbers = CHAR_LINK.fullmatch(name)
        if numbers:
            yield int(numbers[1]), int(numbers[2])


def _list_names(host: Host, path: PurePosixPath) -> tuple[str, ...]:
    """Return the names in a directory; none for a directory that cannot be read."""
    with suppress(InstallerError):
        return host.names(path)
    return ()


def _read_functions(host: Host) -> Iterator[tuple[str, int, str]]:
    """Yield the address, the class and the driver of each function of NVIDIA's on the PCI bus."""
    for address in _list_names(host, PCI):
        if text(host, PCI / address / "vendor").strip() != "0x10de":
            continue
        driver = PurePosixPath(host.link_target(PCI / address / "driver") or "").name
        with suppress(ValueError):
            yield address, int(text(host, PCI / address / "class"), 16) >> 8, driver


def _has_gpu(host: Host) -> bool:
    return any(kind in GPUS for _, kind, _ in _read_functions(host))


def _read_mig_minors(host: Host) -> Iterator[int]:
    """Yield the minors of the device nodes of MIG's GPU and compute instances."""
    gpus = DRIVER_PROC / "capabilities"
    for gpu in _list_names(host, gpus):
        gpu_instances = gpus / gpu / "mig"
        for name in _list_names(host, gpu_instances):
            instance = gpu_instances / name
            access_files = [instance / "access"]
            access_files += [instance / each / "access" for each in _list_names(host, instance)]
            for path in access_files:
                if not is_file(host, path):
                    continue
                minor = MINOR.search(text(host, path))
                if minor:
                    yield int(minor[1])


def read_specifications(host: Host) -> Iterator[model.Spec]:
    """Yield the CDI specifications that engines would read, ``MOST_SPECS`` of a directory at most."""
    specs: list[model.Spec] = []
    for directory in SPEC_DIRS:
        paths = []
        for name in _list_names(host, directory):
            if name.endswith(SPEC_SUFFIXES):
                paths.append(directory / name)
        for path in paths[:MOST_SPECS]:
            specs.append(_read_specification(host, path))
        if len(paths) > MOST_SPECS:
            reason = f"{directory}: cannot look at more than {MOST_SPECS} of {len(paths)} specifications"
            specs.append(model.Spec(directory, read_error=reason))

    named: dict[PurePosixPath, None] = {}
    for spec in specs:
        for path_text in spec.paths:
            named[PurePosixPath(path_text)] = None
    absent = {str(path) for path in find_absent(host, named, timeout_s=PATHS_S)}
    for spec in specs:
        missing_paths = tuple(path for path in spec.paths if path in absent)
        yield replace(spec, missing_paths=missing_paths)


def _read_specification(host: Host, path: PurePosixPath) -> model.Spec:
    if host.size(path) > SPEC_BYTES:
        return model.Spec(path, read_error=f"{path}: it has more than {SPEC_BYTES >> 20} MiB")

    content = text(host, path)
    version: model.Version = ()
    declared = system.WRITTEN_IN.search(content)
    if declared:
        version = _parse_numbers(declared[1])
    named = (*named_paths(content), *HOST_PATH.findall(content))
    paths = dict.fromkeys(named[:MOST_PATHS])
    gpus: frozenset[str] = frozenset()
    read_error = ""
    try:
        gpus = read_devices(content, GPU_KIND)
    except InstallerError as error:
        read_error = f"{path}: cannot {error.problem}"
    return model.Spec(
        path,
        version=version,
        uvm_majors=frozenset(map(int, system.UVM_MAJOR.findall(content))),
        caps=frozenset(map(int, system.CAP.findall(content))),
        paths=tuple(str(PurePosixPath(each)) for each in paths),
        gpus=gpus,
        read_error=read_error,
    )


def _read_system(
    host: Host, processes: Sequence[HostProcess], record: Record, options: Options
) -> model.System:
    selinux = SYS / "fs/selinux"
    booleans = [text(host, selinux / "booleans" / name) for name in BOOLEANS]
    profiles = text(host, SYS / "kernel/security/apparmor/profiles").splitlines()
    limit_text = text(host, PurePosixPath("/proc/sys/fs/inotify/max_user_instances")).strip()
    limit = 0
    if limit_text.isascii() and limit_text.isdigit():
        limit = int(limit_text)

    spaces: dict[PurePosixPath, tuple[int, int]] = {}
    for name in ("/run", "/", "/usr/local", str(options.install_dir), *STORES):
        path = PurePosixPath(name)
        percentages = used_percent(host, path)
        if percentages is not None:
            spaces[path] = percentages

    return model.System(
        cgroup2=host.exists(SYS / "fs/cgroup/cgroup.controllers"),
        tegra=host.exists(PurePosixPath("/etc/nv_tegra_release")),
        selinux_enforcing=text(host, selinux / "enforce").strip() == "1",
        devices_for_containers=any(boolean.startswith("1") for boolean in booleans),
        apparmor_profiles=frozenset(line.rpartition(" (")[0] for line in profiles),
        inotify=(inotify_instances(host), limit),
        spaces=spaces,
        units=dict(_list_unit_states(host, record)),
        kubelet_cgroups=_read_kubelet_cgroups(host, processes),
        refused_files=dict(_find_refused_files(host)),
    )


def _list_unit_states(host: Host, record: Record) -> Iterator[tuple[str, str]]:
    """Yield the units of the driver and of engines that systemd knows, with their states."""
    engine_units = {row.unit for row in record.engines}
    for kind in ENGINES.values():
        engine_units.add(kind.unit)
        engine_units.update(kind.units)

    for unit in (*system.UNITS, *sorted(engine_units)):
        state = spell_state(systemd.look_at_unit(host, unit))
        if state:
            yield unit, state


def _find_refused_files(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the units of engines with a file in the drop-in directory that keeps the engine from starting."""
    for engine in ENGINES.values():
        if engine.drop_ins.directory is None or not engine.config_markers:
            continue
        for name in _list_names(host, engine.drop_ins.directory):
            path = engine.drop_ins.directory / name
            with suppress(InstallerError):
                tree: Tree = {}
                if fnmatchcase(name, engine.drop_ins.pattern):
                    tree = tree_of(host.read(path), path)
                reason = engine.explain_refused_drop_in(tree)
                if reason:
                    for unit in engine.units:
                        yield unit, f"{path} {reason}"


def _read_kubelet_cgroups(host: Host, processes: Sequence[HostProcess]) -> str:
    """Return the cgroup driver of the running kubelet, "" if there is none."""
    kubelets = [process for process in processes if process.name == "kubelet" and process.of_host]
    if not kubelets:
        return ""

    words = read_command_line(host, kubelets[0])
    driver = value_of(words, ("--cgroup-driver",))
    if driver:
        return driver
    config = path_of(words, ("--config",)) or PurePosixPath("/var/lib/kubelet/config.yaml")
    match = CGROUP_DRIVER.search(text(host, config))
    return match[1] if match else ""


def read_toolkits(host: Host, options: Options) -> Iterator[model.Toolkit]:
    """Yield the toolkits of the node, ours first."""
    layout = options.layout
    if _has_toolkit(host, layout.toolkit):
        toolkit = _read_toolkit(host, layout.toolkit, layout.config)
        # The programs of a toolkit of ours may be links to those of a package.
        target = PurePosixPath(host.link_target(layout.toolkit / "nvidia-cdi-hook") or "")
        if target.is_absolute() and layout.toolkit not in model.PACKAGED:
            toolkit = replace(toolkit, linked_directory=target.parent)
        yield toolkit
    for directory in model.PACKAGED:
        if _has_toolkit(host, directory):
            yield _read_toolkit(host, directory, CONFIG)


def _has_toolkit(host: Host, directory: PurePosixPath) -> bool:
    return is_file(host, directory / RUNTIME) or is_file(host, directory / CLI)


def _read_toolkit(host: Host, directory: PurePosixPath, config: PurePosixPath) -> model.Toolkit:
    """Return the toolkit in a directory, with its config.toml."""
    cli_answer = ask_version(host, directory / CLI)
    cli = _find_version(CLI_VERSION, cli_answer)
    library = _find_version(LIBRARY_VERSION, cli_answer)
    tree: Tree | None = None
    with suppress(InstallerError):
        file = host.read(config)
        if file:
            tree = tree_of(file, config)
    return model.Toolkit(
        directory,
        library=library or cli,
        cli=cli,
        ctk=_find_version(CTK_VERSION, ask_version(host, directory / "nvidia-ctk")),
        config=tree,
        config_path=config,
    )


def _find_version(pattern: "re.Pattern[str]", answer: str) -> model.Version:
    """Return the version in a program's answer that a pattern finds; () without such a version."""
    match = pattern.search(answer[:2000])
    if not match:
        return ()
    version, _ = find_version(match[1])
    return version


def _parse_numbers(version: str) -> model.Version:
    return tuple(map(int, version.split(".")))


def find_version(text: str) -> tuple[model.Version, str]:
    """Return the first version in a text: as numbers, and as it is spelled; () and "" without one."""
    match = VERSION.search(text[:2000])
    if not match:
        return (), ""
    return _parse_numbers(match[2]), match[1]


def ask_version(host: Host, program: PurePosixPath) -> str:
    """Return the answer of a program of the host to --version; "" if the program may not be run."""
    if not is_file(host, program) or not is_written_by_root(host, program):
        return ""
    return _run(host, str(program), "--version")


def _run(host: Host, *words: str) -> str:
    """Return the output of a program in the host's root; "" after a failure."""
    result = run_in(host.local_path(model.ROOT), list(words), timeout_s=PROGRAM_S)
    if result is None or result.returncode != 0:
        return ""
    return result.stdout


def ask_processes(host: Host, processes: Sequence[HostProcess]) -> tuple[model.Process, ...]:
    """Return the processes of the programs in ``VERSION_FLAGS``; each program file is asked once."""
    wanted = [process for process in processes if process.name in PROCESS_NAMES]
    by_file = {process.file: process for process in wanted}
    answers = {}
    for file, process in by_file.items():
        answers[file] = _ask_process(host, process)
    asked: list[model.Process] = []
    for process in wanted:
        answer = answers[process.file]
        asked.append(
            replace(
                answer, pid=process.pid, name=process.name, program=process.program, deleted=process.deleted
            )
        )
    return tuple(asked)


def _ask_process(host: Host, process: HostProcess) -> model.Process:
    """Return a process with the version and the label of its program."""
    program_name = PurePosixPath(process.program).name
    answer = ""
    is_known = program_name in VERSION_FLAGS and program_name[:NAME_LETTERS] == process.name
    if process.of_host and is_known:
        # By the process: the path of the program may lead to a later program.
        answer = _run(host, f"/proc/{process.pid}/exe", VERSION_FLAGS[program_name])
    version, spelled = find_version(answer)
    # The shim of containerd 1.2 does not tell its version.
    is_shim = process.of_host and process.name == SHIM
    return model.Process(
        process.pid,
        process.name,
        version=version,
        label=_label(process.name, spelled),
        nil_pointer=is_shim and program_holds(host, process.pid, NIL_POINTER),
    )


def _label(name: str, version: str) -> str:
    """Return the label of a program with a known version, "" without a version."""
    return f"{name} {version}" if version else ""


def ask_runc(host: Host) -> dict[str, tuple[model.Version, str]]:
    """Return version and label of each runc and crun of the node, by path."""
    paths: dict[PurePosixPath, None] = {}
    for name in ("runc", "crun"):
        for directory in PATH:
            if is_file(host, directory / name):
                paths[host.resolve(directory / name)] = None

    programs: dict[str, tuple[model.Version, str]] = {}
    for path in paths:
        version, spelled = find_version(ask_version(host, path))
        programs[str(path)] = (version, _label(path.name, spelled))
    return programs


def read_engines(
    host: Host, options: Options, processes: Sequence[HostProcess], active: Collection[str] = ()
) -> tuple[model.EngineExam, ...]:
    """Return the engines that run; a connection to another engine's socket could start that engine.

    Args:
        host: The host.
        options: The options, with the sockets of engines.
        processes: The processes of root.
        active: The engines with a running unit, also if the program has another name.
    """
    running = {process.name for process in processes}
    exams: list[model.EngineExam] = []
    for kind in ENGINES.values():
        if kind.process not in running and kind.name not in active:
            continue
        exam = _examine(host, options, kind)
        if exam is not None:
            exams.append(exam)
    return tuple(exams)


def _examine(host: Host, options: Options, kind: Engine) -> model.EngineExam | None:
    """Ask and examine an engine; None: the process belongs to another engine, or is about to end."""
    sought = replace(look_for(kind, options), hook=None)
    engine = ask_for(host, sought, replace(options, timeout_s=ENGINE_S), awaits_s=0)
    engine = look_elsewhere(host, engine, options.places.get(kind.name, Places()))
    if engine.stopped and not engine.other_engine_reason:
        return None
    engine, unit = with_process(host, engine, options.places.get(kind.name, Places()))
    if (
        kind.built_in_runtime and engine.unit not in kind.units
    ):  # another engine of the same kind, on the same socket
        return None
    engine = with_readable_configs(host, engine)
    contents, trees, config_error = _read_configs(host, engine.files)

    on_disk: EffectiveConfig | None = None
    with suppress(InstallerError):
        if not kind.built_in_runtime and not engine.other_engine_reason:
            on_disk = DryRuns(host, contents)(engine, {})

    start_problem = ""
    try:
        if engine.serving:
            monitor = kind.monitor_program if engine.pid else ""
            find_dependencies(host, engine, options.layout.toolkit, Dependencies(monitor=monitor))
    except InstallerError as error:
        start_problem = f"{error.problem}; {error.remedy}"

    has_hook: bool | None = None
    if kind.gpus_hook and engine.started and engine.started.environment.get("PATH"):
        has_hook = any(is_file(host, directory / kind.gpus_hook) for directory in engine.started.paths)

    flaws = list(_find_next_flaws(host, options, engine, unit))
    moves = [f"at its next start {engine.unit} gives it {move}" for move in find_moves(engine)]
    return model.EngineExam(
        **asdict(engine),
        on_disk=on_disk,
        trees=trees,
        config_error=config_error,
        next_start_flaw=next(iter(flaws), ""),
        next_start_move=next(iter(moves), ""),
        unit_state=spell_state(unit),
        has_hook=has_hook,
        start_problem=start_problem,
    )


def _find_next_flaws(host: Host, options: Options, engine: EngineState, unit: systemd.Unit) -> Iterator[str]:
    """Yield the flaws of the engine's next start."""
    kind = engine.kind
    for lack in find_missing_requirements(host, unit.start):
        yield f"{engine.unit} would not start it again: {lack}"

    serves_nvidia = kind.built_in_runtime in engine.served.handlers
    if not (serves_nvidia or host.exists(options.layout.toolkit) or _has_gpu(host)):
        return
    template = find_template_flaw(host, kind, engine.config, engine.version)
    if template is not None:
        yield f"after its next start it does not serve {kind.built_in_runtime}: {template.reason}"


def _read_configs(
    host: Host, paths: Sequence[PurePosixPath]
) -> tuple[dict[PurePosixPath, File | None], dict[PurePosixPath, Tree], str]:
    """Return the files, the trees of the valid configs, and the error of the first invalid config."""
    contents: dict[PurePosixPath, File | None] = {}
    trees: dict[PurePosixPath, Tree] = {}
    first_error = ""
    for path in paths:
        try:
            contents[path] = host.read(path)
            trees[path] = tree_of(contents[path], path)
        except InstallerError as error:
            first_error = first_error or f"cannot {error.problem}"
    return contents, trees, first_error


def spell_state(state: systemd.Unit) -> str:
    """Return "active/sub/result" of a unit; "" if there is no such unit, or systemd does not tell."""
    if state.load in {"", "not-found"}:
        return ""
    active = state.active
    if state.start.masked and active == "inactive":
        active = state.load
    return f"{active}/{state.sub}/{state.result}"
