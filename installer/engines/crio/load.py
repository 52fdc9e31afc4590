"""Settings that CRI-O refuses only when it starts: ``crio config`` accepts all of them.

The rules are those of ``Validate`` with ``onExecution``, and of ``server.New``, in CRI-O from 1.24 on
(engine-facts.md#crio-start-checks).
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from installer.config_text import Key, Tree, value_at
from installer.engines import cdi_load
from installer.engines.crio.next_start import RUNTIMES, NextStart
from installer.engines.yaml_events import MOST_CHARACTERS, list_events
from installer.errors import InstallerError
from installer.model.effective import is_ours
from installer.model.engine import LoadError, LoadInput, Version
from installer.model.files import Kind

if TYPE_CHECKING:
    from yaml.events import NodeEvent

CGROUP_MANAGERS: Final = ("systemd", "cgroupfs")
SYSTEM_SLICE: Final = "system.slice"
POD: Final = "pod"
TYPES: Final = frozenset({"", "oci", "vm", POD})
VM_PROGRAM: Final = re.compile(r"containerd-shim-[a-zA-Z0-9+-]+")
STORAGE_DRIVERS: Final = frozenset({"overlay", "overlay2", "vfs", "btrfs", "zfs", "aufs", "devicemapper"})
DURATION: Final = re.compile(
    r"[+-]?(0|(\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)([0-9.]+(ns|us|µs|μs|ms|s|m|h))*)"
)
ID_MAPPINGS: Final = re.compile(r"\d+:\d+:\d+(,\d+:\d+:\d+)*")
HIGHEST_PORT: Final = 65535
SERVICES: Final = PurePosixPath("/etc/services")
# The names of ports that Go knows without /etc/services.
PORT_NAMES: Final = frozenset(
    {
        *("domain", "ftp", "ftps", "gopher", "http", "https", "imap2", "imap3", "imaps"),
        *("pop3", "pop3s", "smtp", "ssh", "submission", "telnet"),
    }
)
# Settings that name a directory; CRI-O makes a missing directory.
DIRECTORIES: Final[tuple[Key, ...]] = (
    ("crio", "log_dir"),
    ("crio", "root"),
    ("crio", "runroot"),
    ("crio", "imagestore"),
    ("crio", "runtime", "namespaces_dir"),
    ("crio", "runtime", "container_exits_dir"),
    ("crio", "runtime", "container_attach_socket_dir"),
    ("crio", "network", "network_dir"),
    ("crio", "network", "plugin_dirs"),
    ("crio", "image", "signature_policy_dir"),
    ("crio", "image", "namespaced_auth_dir"),
)
# Settings that name a file or a socket; CRI-O makes the directory.
IN_DIRECTORIES: Final[tuple[Key, ...]] = (
    ("crio", "version_file"),
    ("crio", "version_file_persist"),
    ("crio", "api", "listen"),
)
PROC: Final = PurePosixPath("/proc")
REGISTRIES: Final = PurePosixPath("/etc/containers/registries.conf")
REGISTRIES_DIR: Final = PurePosixPath("/etc/containers/registries.conf.d")
OLD_REGISTRIES: Final = "registries"  # the table of version 1
SHORT_NAME_MODES: Final = ("disabled", "enforcing", "permissive")
RESCTRL: Final = PurePosixPath("/sys/fs/resctrl")
APPARMOR: Final = PurePosixPath("/sys/kernel/security/apparmor")
APPARMOR_ENABLED: Final = PurePosixPath("/sys/module/apparmor/parameters/enabled")
APPARMOR_PARSER: Final = PurePosixPath("/sbin/apparmor_parser")
# CRI-O loads its default itself.
APPARMOR_PROFILES: Final = frozenset({"", "crio-default", "unconfined"})
NULLS: Final = ("", "~", "null", "Null", "NULL")
HOOK_VERSIONS: Final = frozenset({"", "0.1.0", "1.0.0"})
HOOK_DIR: Final = "/usr/share/containers/oci/hooks.d"
HOOK_STAGES: Final = frozenset(
    {"createContainer", "createRuntime", "prestart", "poststart", "poststop", "startContainer"}
)
CRUN_SINCE: Final = (1, 31)
# The first releases that read a key of a runtime and may refuse its value.
NO_SYNC_LOG_SINCE: Final = (1, 31)
RUNTIME_KEYS_SINCE: Final = (1, 34)


def find_load_errors(given: LoadInput) -> Iterator[LoadError]:
    """Yield the errors by which CRI-O would not start with its readable configs and with its unit."""
    start = NextStart.of(given)
    for find in (
        _find_wrong_words,
        _find_bad_cgroup_manager,
        _find_bad_default,
        _find_missing_programs,
        _find_bad_cgroups,
        _find_bad_directories,
        _find_bad_profiles,
        _find_bad_registries,
        _find_bad_hooks,
        _find_bad_specifications,
    ):
        yield from find(start)


def find_built_in(version: Version | None) -> str:
    """Return CRI-O's built-in runtime, the default unless a config names another runtime."""
    if version is not None and version < CRUN_SINCE:
        return "runc"
    return "crun"


def _make_error(start: NextStart, problem: str, key: Key) -> LoadError:
    """Make the error of a setting, with the source of the value: a file, a flag or a variable."""
    source = start.tell_source(*key)
    reason = f"{problem} ({source})" if source else problem
    return LoadError(reason, start.tell_remedy(*key))


def _find_default(start: NextStart) -> str:
    """Return the default runtime of the next start."""
    return start.text("crio", "runtime", "default_runtime") or find_built_in(start.given.state.version)


def _find_wrong_words(start: NextStart) -> Iterator[LoadError]:
    """Yield the settings with texts unacceptable for CRI-O."""
    key: Key = ("crio", "log_dir")
    log_dir = start.text(*key)
    if log_dir and not log_dir.startswith("/"):
        yield _make_error(start, f"its log_dir {log_dir} is no absolute path", key)

    key = ("crio", "storage_driver")
    driver = start.text(*key)
    if driver and driver not in STORAGE_DRIVERS:
        yield _make_error(start, f"its storage_driver {driver} is none that CRI-O knows", key)

    key = ("crio", "api", "stream_idle_timeout")
    idle_timeout = start.text(*key)
    if idle_timeout and not DURATION.fullmatch(idle_timeout):
        yield _make_error(start, f"its stream_idle_timeout {idle_timeout} is no duration such as 4h", key)

    key = ("crio", "api", "stream_port")
    port = start.text(*key)
    if port and not _is_port(start, port):
        yield _make_error(start, f"its stream_port {port} is no port", key)

    mappings = {name: start.text("crio", "runtime", name) for name in ("uid_mappings", "gid_mappings")}
    if all(mappings.values()):
        for name, mapping in mappings.items():
            if not ID_MAPPINGS.fullmatch(mapping):
                problem = f"its {name} {mapping} is no container:host:size"
                yield _make_error(start, problem, ("crio", "runtime", name))


def _is_port(start: NextStart, port: str) -> bool:
    """Tell whether a text is a port's number, or its name in /etc/services."""
    if port.isascii() and port.isdigit():
        return int(port) <= HIGHEST_PORT
    services = _read_text(start, SERVICES)
    if port in PORT_NAMES or services is None:
        return True
    return any(port in line.partition("#")[0].split() for line in services.splitlines())


def _find_bad_cgroup_manager(start: NextStart) -> Iterator[LoadError]:
    """Yield an error for a cgroup manager unknown to CRI-O."""
    manager = start.text("crio", "runtime", "cgroup_manager")
    if manager and manager not in CGROUP_MANAGERS:
        problem = f"its cgroup_manager {manager} is neither systemd nor cgroupfs"
        yield _make_error(start, problem, ("crio", "runtime", "cgroup_manager"))


def explain_ignored(start: NextStart, name: str) -> str:
    """Explain why CRI-O leaves a runtime out; "" for a kept runtime.

    CRI-O does not start without its default runtime.
    """
    runtime = start.runtimes.get(name, {})
    kind = _text(runtime, "runtime_type")
    if kind not in TYPES:
        return f"the runtime_type of {name}, {kind}, is neither oci nor vm nor pod"

    program = name  # looked up in the PATH of CRI-O
    binary = _text(runtime, "runtime_path")
    if runtime.get("inherit_default_runtime") is True:
        program = _find_default(start)
        binary = _text(start.runtimes.get(program, {}), "runtime_path")
    missing = _explain_missing(start, f"the runtime_path of {name}", binary, program)
    if missing and not is_ours(binary):  # our programs are installed before a config names them
        return missing

    if kind == "vm" and binary and not VM_PROGRAM.fullmatch(PurePosixPath(binary).name):
        return f"the runtime_path of {name}, {binary}, is not named containerd-shim-…, as one of type vm is"

    config = _text(runtime, "runtime_config_path")
    if config and kind != "vm":
        return f"{name} has a runtime_config_path, which goes with the runtime_type vm alone"
    if config and start.host.kind(PurePosixPath("/", config)) is Kind.ABSENT:
        return f"the runtime_config_path of {name}, {config}, is not there"
    return _explain_newer_keys(start, name, runtime)


def _explain_newer_keys(start: NextStart, name: str, runtime: Tree) -> str:
    """Find the flaw of a runtime's key unknown to earlier releases; "" for no flaw."""
    version = start.given.state.version
    if version is None:
        return ""
    kind = _text(runtime, "runtime_type")
    if version >= NO_SYNC_LOG_SINCE and runtime.get("no_sync_log") is True and kind not in {"", "oci"}:
        return f"{name} has no_sync_log, which goes with the runtime_type oci alone"
    if version < RUNTIME_KEYS_SINCE:
        return ""
    if runtime.get("stream_websockets") is True and kind != POD:
        return f"{name} has stream_websockets, which goes with the runtime_type pod alone"
    affinity = _text(runtime, "exec_cpu_affinity")
    if affinity not in {"", "first"}:
        return f"the exec_cpu_affinity of {name}, {affinity}, is not first"
    profile = _text(runtime, "seccomp_profile")
    flaw = _find_flaw_of_profile(start, PurePosixPath("/", profile)) if profile else ""
    if flaw:
        return f"the seccomp_profile of {name}, {profile}, {flaw}"
    return ""


def _find_bad_default(start: NextStart) -> Iterator[LoadError]:
    """Yield the reason why CRI-O refuses its default runtime; any other runtime would be left out."""
    default = _find_default(start)
    reason = explain_ignored(start, default)
    if reason:
        yield _make_error(start, reason, (*RUNTIMES, default))


def _find_missing_programs(start: NextStart) -> Iterator[LoadError]:
    """Yield the missing programs needed by CRI-O at its start (engine-facts.md#crio-conmon)."""
    pinns_key: Key = ("crio", "runtime", "pinns_path")
    missing = _explain_missing(start, "its pinns_path", start.text(*pinns_key), "pinns")
    if missing:
        yield _make_error(start, missing, pinns_key)

    conmon_key: Key = ("crio", "runtime", "conmon")
    conmon = start.text(*conmon_key)  # the monitor of all runtimes; "" if each runtime has its own
    for name in _list_used_runtimes(start):
        runtime = start.runtimes.get(name, {})
        monitor = _text(runtime, "monitor_path")
        kind = _text(runtime, "runtime_type")
        setting = f"the monitor_path of {name}"
        missing = ""
        if kind in {"", "oci"}:
            missing = _explain_missing(start, setting, conmon or monitor, "conmon", runs=True)
        elif kind == POD and name == _find_default(start):
            # CRI-O leaves out a runtime with a failing conmon-rs, unless the runtime is the default.
            missing = _explain_missing(start, setting, monitor, "conmonrs", runs=True)
        if missing:
            key = conmon_key if conmon and kind != POD else (*RUNTIMES, name)
            yield _make_error(start, missing, key)


def _find_bad_cgroups(start: NextStart) -> Iterator[LoadError]:
    """Yield the cgroups of conmon in conflict with the cgroup manager."""
    conmon_key: Key = ("crio", "runtime", "conmon_cgroup")
    conmon_cgroup = start.text(*conmon_key)  # of all runtimes; "" if each runtime has its own
    by_systemd = start.text("crio", "runtime", "cgroup_manager") in {"", "systemd"}
    for name in _list_used_runtimes(start):
        runtime = start.runtimes.get(name, {})
        if _text(runtime, "runtime_type") not in {"", "oci"}:
            continue
        cgroup = conmon_cgroup or _text(runtime, "monitor_cgroup") or SYSTEM_SLICE
        if by_systemd:
            fits = cgroup.endswith(".slice")
            wanted = "pod or a slice"
        else:
            fits = cgroup == SYSTEM_SLICE
            wanted = "pod or unset with the cgroup_manager cgroupfs"
        if cgroup != POD and not fits:
            key = conmon_key if conmon_cgroup else (*RUNTIMES, name)
            yield _make_error(start, f"the monitor_cgroup of {name}, {cgroup}, is not {wanted}", key)


def _list_used_runtimes(start: NextStart) -> Iterator[str]:
    """Yield the runtimes kept by CRI-O: the built-in runtime, the default, the others."""
    names = (find_built_in(start.given.state.version), _find_default(start), *start.runtimes)
    for name in dict.fromkeys(names):
        if not explain_ignored(start, name):
            yield name


def _find_bad_directories(start: NextStart) -> Iterator[LoadError]:
    """Yield the directories that CRI-O cannot make because of a file in their place or above."""
    for key in (*DIRECTORIES, *IN_DIRECTORIES):
        for place in start.texts(*key):
            directory = PurePosixPath(place)
            if key in IN_DIRECTORIES:
                directory = directory.parent
            obstacle = _find_obstacle(start, directory)
            if obstacle:
                problem = f"its {key[-1]} {place} cannot be made: {obstacle}"
                yield _make_error(start, problem, key)
    yield from _find_bad_nri(start)


def _find_bad_nri(start: NextStart) -> Iterator[LoadError]:
    """Yield the places of NRI that CRI-O can neither make nor read."""
    if value_at(start.whole, ("crio", "nri", "enable_nri")) is False:
        return
    for name in ("nri_listen", "nri_plugin_dir"):
        key = ("crio", "nri", name)
        place = start.text(*key)
        if not place:
            continue
        directory = PurePosixPath(place)
        if name == "nri_listen":
            directory = directory.parent
        obstacle = _find_obstacle(start, directory)
        if obstacle:
            yield _make_error(start, f"its {name} {place} cannot be made: {obstacle}", key)


def _find_obstacle(start: NextStart, path: PurePosixPath) -> str:
    """Explain why CRI-O cannot make a directory; "" for an existing or possible directory."""
    if not path.is_absolute():
        return ""
    for each in (path, *path.parents):
        with suppress(InstallerError):
            kind = start.host.kind(each)
            if kind is Kind.ABSENT and each.is_relative_to(PROC):
                return f"nobody can make {each}"
            if kind is Kind.ABSENT:
                continue
            if kind is not Kind.DIRECTORY:
                return f"{each} is no directory"
            return ""
    return ""


def _find_bad_profiles(start: NextStart) -> Iterator[LoadError]:
    """Yield the files read by CRI-O at its start and refused."""
    profile = start.text("crio", "runtime", "seccomp_profile")
    path = PurePosixPath("/", profile)
    # CRI-O uses its own profile if the file is missing.
    if profile and start.host.kind(path) is not Kind.ABSENT:
        flaw = _find_flaw_of_profile(start, path)
        if flaw:
            key = ("crio", "runtime", "seccomp_profile")
            yield _make_error(start, f"its seccomp_profile {profile} {flaw}", key)
    yield from _find_bad_classes(start, "blockio_config_file", ("classes",))
    # CRI-O ignores the setting on a machine without resctrl.
    if start.host.kind(RESCTRL / "info") is Kind.DIRECTORY:
        yield from _find_bad_classes(start, "rdt_config_file", ("options", "partitions"))
    yield from _find_bad_apparmor_profile(start)


def _find_bad_classes(start: NextStart, name: str, tables: Collection[str]) -> Iterator[LoadError]:
    """Yield the flaw of the YAML file in which a setting defines classes of containers."""
    key: Key = ("crio", "runtime", name)
    place = start.text(*key)
    if not place:
        return
    text = _read_text(start, PurePosixPath("/", place))
    flaw = "cannot be read" if text is None else _find_flaw_of_classes(text, tables)
    if flaw:
        yield _make_error(start, f"its {name} {place} {flaw}", key)


def _find_flaw_of_classes(text: str, tables: Collection[str]) -> str:
    """Find the flaw of a YAML text in which each of ``tables`` must be a mapping; "" for no flaw."""
    if len(text) > MOST_CHARACTERS:
        return ""
    import yaml  # few nodes have such a file
    from yaml.events import MappingStartEvent, NodeEvent

    documents = 0
    flaw = ""
    name: NodeEvent | None = None
    try:
        for level, event in list_events(text):
            if level > 1 or not isinstance(event, NodeEvent):
                continue
            if level == 0:
                documents += 1
                if not isinstance(event, MappingStartEvent) and not _is_null(event):
                    flaw = "is not a mapping of YAML"
            elif name is None:
                name = event
            else:
                flaw = flaw or _find_flaw_of_class(name, event, tables)
                name = None
    except yaml.YAMLError:
        return "is not valid YAML"
    if documents > 1:
        return "is not valid YAML"
    return flaw


def _find_flaw_of_class(name: "NodeEvent", value: "NodeEvent", tables: Collection[str]) -> str:
    """Return the flaw of a value that has to be a mapping if its name is in ``tables``; "" for no flaw."""
    from yaml.events import AliasEvent, MappingStartEvent, ScalarEvent

    # Go compares the names of fields without their case.
    if not isinstance(name, ScalarEvent) or name.value.lower() not in tables:
        return ""
    if isinstance(value, (AliasEvent, MappingStartEvent)) or _is_null(value):
        return ""
    return f"has {name.value} that is no mapping"


def _is_null(event: "NodeEvent") -> bool:
    from yaml.events import ScalarEvent

    return isinstance(event, ScalarEvent) and event.value in NULLS


def _find_bad_apparmor_profile(start: NextStart) -> Iterator[LoadError]:
    """Yield a profile of AppArmor missing from the kernel, if the kernel shows its profiles."""
    key: Key = ("crio", "runtime", "apparmor_profile")
    profile = start.text(*key)
    if profile in APPARMOR_PROFILES or not _uses_apparmor(start):
        return
    loaded = _read_text(start, APPARMOR / "profiles")
    if loaded is not None and not any(line.startswith(f"{profile} ") for line in loaded.splitlines()):
        yield _make_error(start, f"its apparmor_profile {profile} is not loaded", key)


def _uses_apparmor(start: NextStart) -> bool:
    """Tell whether the kernel has AppArmor and the host has its parser; else CRI-O ignores each profile."""
    enabled = _read_text(start, APPARMOR_ENABLED) or ""
    if not enabled.startswith("Y") or start.host.kind(APPARMOR) is Kind.ABSENT:
        return False
    if start.host.kind(APPARMOR_PARSER) is not Kind.ABSENT:
        return True
    return any(start.host.is_program(place / APPARMOR_PARSER.name) for place in start.paths)


def _find_flaw_of_profile(start: NextStart, path: PurePosixPath) -> str:
    """Return the flaw of a seccomp profile; "" for none."""
    text = _read_text(start, path)
    if text is None:
        return "cannot be read"
    try:
        profile = json.loads(text)
    except (ValueError, RecursionError):
        return "is not valid JSON"
    if not isinstance(profile, dict):
        return "is not a JSON object"
    return ""


def _find_bad_registries(start: NextStart) -> Iterator[LoadError]:
    """Yield the files about registries refused by CRI-O (containers-registries.conf(5))."""
    names = sorted(start.host.names(REGISTRIES_DIR))
    drop_ins = [REGISTRIES_DIR / name for name in names if name.endswith(".conf")]
    for path in (REGISTRIES, *drop_ins):
        text = _read_text(start, path)
        if text is None:
            continue
        flaw = _find_flaw_of_registries(text, is_drop_in=path != REGISTRIES)
        if flaw:
            yield LoadError(f"{path} {flaw}", f"correct {path}")


def _find_flaw_of_registries(text: str, *, is_drop_in: bool) -> str:
    """Return the flaw of a file about registries; "" for none."""
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return f"is not valid TOML: {error}"
    newer = tree.keys() & {"registry", "unqualified-search-registries", "short-name-mode"}
    if tree.get(OLD_REGISTRIES) and is_drop_in:
        return "has the table registries of version 1, which a drop-in may not have"
    if tree.get(OLD_REGISTRIES) and newer:
        return f"mixes the table registries of version 1 with {min(newer)} of version 2"
    mode = tree.get("short-name-mode", SHORT_NAME_MODES[0])
    if mode and mode not in SHORT_NAME_MODES:
        return f"has the short-name-mode {mode}"
    registries = tree.get("registry")
    if not isinstance(registries, list):
        return ""
    return next(filter(None, map(_find_flaw_of_registry, registries)), "")


def _find_flaw_of_registry(registry: object) -> str:
    """Return the flaw of an entry for a registry; "" for none."""
    if not isinstance(registry, dict):
        return "has a registry that is no table"
    location = registry.get("location", "")
    prefix = registry.get("prefix", "")
    if not location and not str(prefix).startswith("*."):
        return "has a registry without a location"
    for place in (location, prefix):
        if str(place).startswith(("http://", "https://")):
            return f"has a registry whose location begins with a scheme: {place}"
    return ""


def _find_bad_hooks(start: NextStart) -> Iterator[LoadError]:
    """Yield the OCI hooks refused by CRI-O (oci-hooks(5))."""
    for place in start.texts("crio", "runtime", "hooks_dir") or (HOOK_DIR,):
        directory = PurePosixPath(place)
        if not directory.is_absolute():
            continue
        with suppress(InstallerError):
            for name in sorted(start.host.names(directory)):
                if not name.endswith(".json"):
                    continue
                hook = directory / name
                flaw = _find_flaw_of_hook(start, hook)
                if flaw:
                    yield LoadError(f"the hook {hook} {flaw}", f"correct or remove {hook}")


def _find_bad_specifications(start: NextStart) -> Iterator[LoadError]:
    """Yield the specifications of CDI, read by CRI-O before it serves, that it does not survive."""
    key: Key = ("crio", "runtime", "cdi_spec_dirs")
    directories: tuple[str, ...] = cdi_load.DIRECTORIES
    if isinstance(value_at(start.whole, key), list):  # an empty list switches CDI off
        directories = start.texts(*key)
    yield from cdi_load.find_cdi_flaws(start.host, directories, "it would not start")


def _find_flaw_of_hook(start: NextStart, path: PurePosixPath) -> str:
    """Find the flaw of a hook; "" for no flaw, or for a hook removed meanwhile."""
    text = _read_text(start, path)
    if text is None:
        if start.host.kind(path) is Kind.ABSENT:
            return ""
        return "cannot be read"
    try:
        hook = json.loads(text)
    except (ValueError, RecursionError):
        return "is not valid JSON"
    if not isinstance(hook, dict):
        return "is not a JSON object"
    version = hook.get("version", "")
    if version not in HOOK_VERSIONS:
        return f"has the version {version}, which CRI-O does not know"
    if version != "1.0.0":  # the form of 2017 has other keys
        return ""
    program = hook.get("hook")
    if not (isinstance(program, dict) and program.get("path")):
        return "names no program in hook.path"
    stages = hook.get("stages")
    if not isinstance(stages, list):
        return "has no stages"
    for stage in stages:
        if stage not in HOOK_STAGES:
            return f"has the stage {stage}, which CRI-O does not know"
    return ""


def _explain_missing(start: NextStart, setting: str, place: str, name: str, *, runs: bool = False) -> str:
    """Explain why CRI-O does not find a program; "" for a found program.

    Nothing is missed without a known unit or process of CRI-O, as in an image under construction.

    Args:
        start: the next start of CRI-O.
        setting: the setting with the program, as the subject of a sentence.
        place: the value of the setting; "" if CRI-O looks for the program in its PATH.
        name: the name of the program in the PATH.
        runs: whether CRI-O runs the program at its start; else the path only has to exist.
    """
    if not start.paths:
        return ""
    if not place:
        if any(start.host.is_program(directory / name) for directory in start.paths):
            return ""
        return f"{setting}, {name}, is not in its PATH"

    path = PurePosixPath("/", place)  # a unit starts in the root directory
    is_there = True
    with suppress(InstallerError):
        is_there = start.host.is_program(path) if runs else start.host.kind(path) is not Kind.ABSENT
    return "" if is_there else f"{setting}, {place}, is no program"


def _read_text(start: NextStart, path: PurePosixPath) -> str | None:
    """Return the text of a file; None for a missing file, or if the file cannot be read."""
    with suppress(InstallerError):
        file = start.host.read(path)
        return file.content.decode(errors="replace") if file else None
    return None


def _text(table: Tree, key: str) -> str:
    """Return a text setting; "" for a value of another type."""
    value = table.get(key)
    return value if isinstance(value, str) else ""
