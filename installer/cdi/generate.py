"""The driver's control device nodes and the CDI specifications, both made by the payload's nvidia-ctk.

A device node of ours is removed unless the driver has made it again. The GPUs' specification depends on the
specifications beside it.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

from installer import watch
from installer.cdi.plan import SPEC_DIR, highest_read, without
from installer.cdi.plan import SPECIFICATION as PATH
from installer.cdi.specification import ALL_GPUS, device_names, named_paths, read_devices, specification
from installer.engines.dependencies import driver_root
from installer.errors import InstallerError, Option, Remedy, StoppedError
from installer.host.events import log
from installer.host.files import Host, read_json_of_root, text, text_of
from installer.host.kernel import boot_id
from installer.host.programs import LateError, find_program, run_until_stopped
from installer.host.supervision import is_child
from installer.model.engine import EngineState, Version
from installer.model.facts import DeviceNode, GpuSpecification, Record
from installer.model.files import DRIVER_LIBRARY_DIRS, ROOT, File, Layout
from installer.model.options import GPU_KIND, Cdi, Options
from installer.model.steps import MakeDeviceNodes, RemoveDeviceNodes

SUFFIXES: Final = (".json", ".yaml")  # engines read no other files
LOADED: Final = PurePosixPath("/proc/driver/nvidia/version")  # exists while the driver's module is loaded
NAMED: Final = 5
TOOL: Final = "nvidia-ctk"
ANSWER_S: Final = 30.0  # enough for eight GPUs that have to be woken
CONTROL_NODES: Final = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
DEVICES: Final = ("nvidia", "nvidia-caps/", "dri/")

# The names of the devices that specifications define, by directory and file.
Beside: TypeAlias = Mapping[PurePosixPath, Mapping[PurePosixPath, frozenset[str]]]


def gpu_specification(
    host: Host, options: Options, engines: Collection[EngineState], record: Record, file: File | None
) -> GpuSpecification:
    """Return the wanted specification of the GPUs, and the other specifications of devices.

    ``file`` is the present file at our path.
    """
    present = text_of(file)
    row = record.config(PATH)
    highest = highest_read(engines)
    ours = _is_ours(file, options, record)
    beside = _read_beside(host, engines, highest, ours=ours, since_s=_last_check_s(host, options))
    stale = _list_gone(host, present) if ours else ()
    # A file at our path that gives no device may be ours, damaged; without a row in the ledger it is not.
    gives_devices = any(PATH in files for files in beside.values())
    if file is not None and not (ours or row or gives_devices):
        lacking = f"cannot replace {PATH} (it is no specification of ours); move it away"
        return GpuSpecification(PATH, ours=ours, stale=stale, lacking=lacking)
    text = ""
    failure = None
    try:
        text = _generate(host, options, highest)
    except StoppedError:
        raise
    except InstallerError as error:
        failure = error
    # Every specification of nvidia-ctk has the device ``all``: it stands for devices that are not known.
    wanted = device_names(text or (present if ours else "")) or {ALL_GPUS}
    others = tuple(_list_others(beside, wanted))
    missing: list[str] = []
    if others and not failure:
        missing = sorted(wanted - _common_devices(host, engines, beside))
    unmade = failure if not others and host.exists(LOADED) else None
    if ALL_GPUS in missing:
        names = " and ".join(map(str, others))
        if len(others) > 1:
            have = "have"
            remedy = "move those files away: ours is written again; or add that device to one"
        else:
            have = "has"
            remedy = "move that file away: ours is written again; or add that device to it"
        unmade = InstallerError(
            f"give containers {GPU_KIND}={ALL_GPUS} ({names} {have} devices of ours, but not that one; "
            "engines ignore a device that two files define)",
            remedy=remedy,
            code="cdi-failed",
        )
    return GpuSpecification(
        PATH,
        text=text,
        lacking=f"cannot {failure.problem}; {failure.remedy}" if failure else "",
        ours=ours,
        stale=stale,
        others=others,
        missing=tuple(missing),
        problem=unmade,
    )


def _generate(host: Host, options: Options, highest: Version | None) -> str:
    """Generate the specification of the GPUs with nvidia-ctk, with the host's paths."""
    driver, dev = roots(host, options)
    local_driver = PurePosixPath(host.local_path(driver))
    local_dev = PurePosixPath(host.local_path(dev))
    words = _words("--format=json", local_driver, local_dev, GPU_KIND, options.layout)
    text = run_tool(options.toolkit_source, "generate the CDI specification of the GPUs", words)
    return specification(text, GPU_KIND, ((local_driver, driver), (local_dev, dev)), highest)


def _list_others(beside: Beside, wanted: Collection[str]) -> Iterator[PurePosixPath]:
    """Yield the files of others with a wanted device, or at our path."""
    for files in beside.values():
        for path, names in files.items():
            if path == PATH or not names.isdisjoint(wanted):
                yield path


def _last_check_s(host: Host, options: Options) -> float:
    """Return the time of the last check by this process's parent, a ``run``; 0 without a check."""
    if not is_child():
        return 0.0
    last = read_json_of_root(host, options.state_file, dict[str, Any])
    # A state file older than the pidfile was written by another ``run``.
    if last is None or host.changed_s(options.state_file) <= host.changed_s(options.pid_file):
        return 0.0
    return time.time() - time.monotonic() + float(last.get("began_s", 0.0))


def _common_devices(host: Host, engines: Iterable[EngineState], beside: Beside) -> frozenset[str]:
    """Return the devices that every engine takes from these files."""
    read = [engine.serving.cdi_dirs for engine in engines if engine.serving]
    if not read:
        read = [tuple(beside)]
    given = []
    for directories in read:
        devices: set[str] = set()
        dropped: set[str] = set()
        for directory in dict.fromkeys(map(host.resolve, directories)):
            counts = Counter(chain.from_iterable(beside[directory].values()))
            devices.update(counts)
            # Engines drop a device that two files in one directory define.
            dropped.update(name for name, count in counts.items() if count > 1)
        given.append(frozenset(devices - dropped))
    return frozenset.intersection(*given)


def _is_ours(file: File | None, options: Options, record: Record) -> bool:
    """Tell whether we wrote the file at our path: by the ledger, or by the hook in the text."""
    row = record.config(PATH)
    if row is not None and file is not None and file.digest in row.ours:
        return True
    return f'"{options.layout.cdi_hook}"' in text_of(file)


def _list_gone(host: Host, specification: str) -> tuple[str, ...]:
    """Return the missing paths of a specification."""
    gone = []
    for path in named_paths(specification):
        with suppress(InstallerError):
            if host.local_path(PurePosixPath(path)).exists():
                continue
        gone.append(path)
    return tuple(gone)


def withdraw_stale(host: Host, options: Options, record: Record, write: Callable[[Record], None]) -> None:
    """Remove our specification if a named file is missing: no container could start."""
    try:
        file = host.read(PATH)
        gone: tuple[str, ...] = ()
        if _is_ours(file, options, record):
            gone = _list_gone(host, text_of(file))
        if gone:
            host.remove(PATH)
            log.warning("CDI specification removed", path=str(PATH), gone=[*gone[:NAMED]], in_all=len(gone))
            if record.config(PATH):
                write(without(record, {PATH}))
    except InstallerError as error:
        log.warning("CDI specification not removed", path=str(PATH), error=error)


def roots(host: Host, options: Options) -> tuple[PurePosixPath, PurePosixPath]:
    """Return the host's real directories of the driver and of the device nodes."""
    # nvidia-ctk finds no library below a root that is a link (engine-facts.md#gpu-specification).
    driver = host.resolve(PurePosixPath(driver_root(host, options)[0] or "/"))
    dev = driver if host.exists(driver / "dev/nvidiactl") else ROOT
    return driver, dev


def _read_beside(
    host: Host, engines: Iterable[EngineState], highest: Version | None, *, ours: bool, since_s: float
) -> Beside:
    """Return the files with devices of our kind by directory.

    The file at our path is left out if it is ``ours``. A file that cannot be read is logged if it has changed
    since the time ``since_s``, in seconds of the epoch.
    """
    own = host.resolve(PATH)
    directories = [SPEC_DIR]
    for engine in engines:
        if engine.serving:
            directories += engine.serving.cdi_dirs
    found: dict[PurePosixPath, dict[PurePosixPath, frozenset[str]]] = {}
    for directory in dict.fromkeys(map(host.resolve, directories)):
        files = found.setdefault(directory, {})
        for name in host.names(directory):
            path = directory / name
            if not name.endswith(SUFFIXES) or (path == own and ours):
                continue
            try:
                names = read_devices(text(host, path), GPU_KIND, highest)
            except InstallerError as error:
                if host.changed_s(path) > since_s:
                    log.warning("CDI specification not read", path=str(path), error=error)
                continue
            if names:
                files[PATH if path == own else path] = names
    return found


def list_watched(host: Host, options: Options, record: Record) -> Iterator["watch.Place"]:
    """Yield the places for ``run`` to watch: a change of a place may change the specification."""
    if record.cdi is None:
        return
    with suppress(InstallerError):  # the check itself reports a root that cannot be read
        driver, dev = roots(host, options)
        devices = f"{host.local_path(dev / 'dev')}/"
        for name in DEVICES:
            yield watch.NAMES, f"{devices}{name}"
        for each in named_paths(text(host, PATH)):
            local = str(host.local_path(PurePosixPath(each), last=False))
            if not local.startswith(devices):
                yield watch.PATH, local
        # Another driver may be installed beside the named driver, or the first driver.
        for directory in DRIVER_LIBRARY_DIRS:
            yield watch.PATH, str(host.local_path(driver / directory.relative_to("/")))
        yield watch.PATH, str(host.local_path(driver))
        yield watch.EXISTENCE, str(LOADED)
        yield watch.DIRECTORY, str(host.local_path(SPEC_DIR))
        yield watch.DIRECTORY, str(host.local_path(PurePosixPath("/etc/cdi")))


def management_specification(source: PurePosixPath, layout: Layout, cdi: Cdi) -> str:
    """Return the management specification for this node, with the host's paths.

    Raises:
        InstallerError: the driver or the device nodes are missing.
    """
    driver = cdi.local_driver_root
    dev = cdi.local_dev_root
    words = _words("--mode=management", driver, dev, cdi.kind, layout)
    text = run_tool(source, "generate the CDI specification", words)
    moves = [(driver, cdi.driver_root), (dev, cdi.dev_root)]
    if driver == dev:  # the first move has moved the nodes, too
        moves[1] = (str(PurePosixPath(cdi.driver_root, "dev")), str(PurePosixPath(cdi.dev_root, "dev")))
    for local, there in moves:
        if local != there:
            words = ("cdi", "transform", "root", f"--from={local}", f"--to={there}")
            text = run_tool(source, "give the CDI specification the host's paths", words, text)
    return text


def _words(
    form: str, driver: str | PurePosixPath, dev: str | PurePosixPath, kind: str, layout: Layout
) -> tuple[str, ...]:
    """Return the arguments of nvidia-ctk for a specification of the devices and files below two roots."""
    vendor, _, name = kind.partition("/")
    roots = (f"--driver-root={driver}", f"--dev-root={dev}")
    names = (f"--vendor={vendor}", f"--class={name}", f"--nvidia-cdi-hook-path={layout.cdi_hook}")
    return ("cdi", "generate", form, *roots, *names)


def run_tool(source: PurePosixPath, what: str, words: tuple[str, ...], text: str = "") -> str:
    """Return the output of the toolkit's nvidia-ctk.

    Args:
        source: the root of the toolkit's source.
        what: the task as a verb with its object, for errors.
        words: the arguments of nvidia-ctk.
        text: the standard input of nvidia-ctk.

    Raises:
        InstallerError: nvidia-ctk is missing, cannot be run from here, is late, or fails.
    """
    tool = find_program(source, TOOL)
    ran = None
    try:
        if tool:
            ran = run_until_stopped(tool, words, text, timeout_s=ANSWER_S)
    except LateError as error:
        reason = f"the toolkit's {TOOL} did not end within {ANSWER_S:g} s"
        remedy = "see whether nvidia-smi answers on the node: a GPU that hangs holds both up"
        raise InstallerError(f"{what} ({reason})", remedy=remedy, code="cdi-failed") from error
    if ran is None:
        raise InstallerError(
            f"{what} (the toolkit's {TOOL} cannot be run from here)",
            remedy=Remedy("check ", Option("toolkit-source"), ", or switch CDI off"),
            code="cdi-failed",
        )
    if ran.returncode:
        remedy = "install the driver and load its modules, or switch CDI off"
        raise InstallerError(f"{what} ({ran.last_line})", remedy=remedy, code="cdi-failed")
    return ran.stdout


def absent_nodes(host: Host, cdi: Cdi) -> tuple[DeviceNode, ...]:
    """Return the missing control device nodes."""
    if not cdi.nodes:
        return ()
    paths = [PurePosixPath(cdi.dev_root, "dev", name) for name in CONTROL_NODES]
    return tuple(absent_node(path) for path in paths if not host.exists(path))


def absent_node(path: PurePosixPath) -> DeviceNode:
    """Return the row of a node to be made: a later node at the path, in this boot, counts as our node."""
    return DeviceNode(path, f"{boot_id()} absent")


def held_node(host: Host, device: DeviceNode) -> DeviceNode | None:
    """Read a node of the ledger again; None if the node is gone or was replaced by the driver."""
    status = host.status(device.path, last=False)
    if status is None:
        return None
    now = DeviceNode(device.path, f"{boot_id()} {status.st_ino}")
    is_ours = device in {now, absent_node(device.path)}
    return now if is_ours else None


def change_device_nodes(host: Host, step: MakeDeviceNodes | RemoveDeviceNodes) -> None:
    """Make the control device nodes, or remove our nodes.

    Raises:
        InstallerError: the nodes cannot be made; some of them may exist.
    """
    if isinstance(step, MakeDeviceNodes):
        root = f"--dev-root={step.cdi.local_dev_root}"
        words = ("system", "create-device-nodes", "--control-devices", root)
        run_tool(step.source, "make the control device nodes", words)
        return
    for node in step.nodes:
        if held_node(host, node) is not None:
            host.remove(node.path)
