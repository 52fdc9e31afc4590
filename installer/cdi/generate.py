"""What the payload's nvidia-ctk makes: the driver's control device nodes and CDI specifications.

Nodes are removed where they were not made anew. The GPUs' specification is made beside what is there of it.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

from installer.cdi.plan import SPEC_DIR, highest_read, without
from installer.cdi.plan import SPECIFICATION as PATH
from installer.cdi.specification import ALL_GPUS, device_names, named_paths, read_devices, specification
from installer.engines.dependencies import driver_root
from installer.errors import InstallerError, Option, Remedy, StoppedError
from installer.host.events import log
from installer.host.files import Host, read_json_of_root, text, text_of
from installer.host.kernel import boot_id
from installer.host.programs import LateError, find_program, run_until_stopped
from installer.host.supervision import current_run
from installer.model.engine_spec import Version
from installer.model.facts import DeviceNode, EngineState, GpuSpecification, Record
from installer.model.files import DRIVER_LIBRARY_DIRS, ROOT, File, Layout
from installer.model.options import GPU_KIND, Cdi, Options
from installer.model.steps import MakeDeviceNodes, RemoveDeviceNodes

SUFFIXES: Final = frozenset({".json", ".yaml"})  # an engine reads no other
LOADED: Final = PurePosixPath("/proc/driver/nvidia/version")  # there as long as the driver's module is
NAMED: Final = 5
TOOL: Final = "nvidia-ctk"
ANSWER_S: Final = 30.0  # seconds are enough for eight GPUs that have to be woken
CONTROL_NODES: Final = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
DEVICES: Final = ("nvidia", "nvidia-caps/", "dri/")

# The names of devices, by directory and file.
Beside: TypeAlias = Mapping[PurePosixPath, Mapping[PurePosixPath, frozenset[str]]]


def gpu_specification(
    host: Host, options: Options, engines: Collection[EngineState], record: Record, file: File | None
) -> GpuSpecification:
    """Return what the specification of the GPUs is to be, and what is beside it; ``file`` is in its place."""
    now, row, highest = text_of(file), record.config(PATH), highest_read(engines)
    ours = _is_ours(file, options, record)
    beside = _read_beside(host, engines, highest, ours=ours, since_s=_last_check_s(host, options))
    stale = _list_gone(host, now) if ours else ()
    # What is in our place and gives no device is no other's specification: ours, which was spoilt.
    if file is not None and not (ours or row or any(PATH in files for files in beside.values())):
        lacking = f"cannot replace {PATH} (it is no specification of ours); move it away"
        return GpuSpecification(PATH, ours=ours, stale=stale, lacking=lacking)
    text, failure = "", None
    try:
        driver, dev = roots(host, options)
        moves = tuple((PurePosixPath(host.local_path(root)), root) for root in (driver, dev))
        words = _words("--format=json", moves[0][0], moves[1][0], GPU_KIND, options.layout)
        text = run_tool(options.toolkit_source, "generate the CDI specification of the GPUs", words)
        text = specification(text, GPU_KIND, moves, highest)
    except StoppedError:
        raise
    except InstallerError as error:
        text, failure = "", error
    # Where it is not known what ours would have, it is what each that nvidia-ctk generates has.
    wanted = device_names(text or (now if ours else "")) or {ALL_GPUS}
    found = {path: names for there in beside.values() for path, names in there.items()}
    others = tuple(path for path, names in found.items() if path == PATH or names & wanted)
    missing = sorted(wanted - _common_devices(host, engines, beside)) if others and not failure else []
    unmade = failure if not others and host.exists(LOADED) else None
    if ALL_GPUS in missing:
        unmade = InstallerError(
            f"give containers {GPU_KIND}={ALL_GPUS} ({' and '.join(map(str, others))} has devices of ours, "
            "but not that one; engines ignore a device that two files define)",
            remedy="move that file away: ours is written again; or add that device to it",
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
        unmade=unmade,
    )


def _last_check_s(host: Host, options: Options) -> float:
    """Return when the last check of the ``run`` began whose child this is; 0 where there was none."""
    last = read_json_of_root(host, options.state_file, dict[str, Any]) if current_run().pid else None
    written_s, started_s = (host.changed_s(path) for path in (options.state_file, options.pid_file))
    if last is None or written_s <= started_s:  # that of another ``run``
        return 0.0
    return time.time() - time.monotonic() + float(last.get("began_s", 0.0))


def _common_devices(host: Host, engines: Iterable[EngineState], beside: Beside) -> frozenset[str]:
    """Return the devices that all engines take from these files, of two in one directory neither."""
    read = [engine.serving.cdi_dirs for engine in engines if engine.serving] or [tuple(beside)]
    given = []
    for directories in read:
        there = [[*beside[each].values()] for each in dict.fromkeys(map(host.resolve, directories))]
        twice = {name for files in there for name, count in Counter(chain(*files)).items() if count > 1}
        given.append(frozenset(chain(*chain(*there))) - twice)
    return frozenset.intersection(*given)


def _is_ours(file: File | None, options: Options, record: Record) -> bool:
    """Tell whether a text in our place is ours; without its ledger it is known by its hook."""
    row = record.config(PATH)
    known = row is not None and file is not None and file.digest in row.ours
    return known or f'"{options.layout.cdi_hook}"' in text_of(file)


def _list_gone(host: Host, specification: str) -> tuple[str, ...]:
    """Return what a specification names and what is not there."""
    gone = []
    for path in named_paths(specification):
        with suppress(InstallerError):
            if host.local_path(PurePosixPath(path)).exists():
                continue
        gone.append(path)
    return tuple(gone)


def withdraw_stale(host: Host, options: Options, record: Record, write: Callable[[Record], None]) -> None:
    """Remove a specification of ours that names what is gone: no container could start with it."""
    try:
        file = host.read(PATH)
        gone = _list_gone(host, text_of(file)) if _is_ours(file, options, record) else ()
        if gone:
            host.remove(PATH)
            log.warning("CDI specification removed", path=str(PATH), gone=[*gone[:NAMED]], in_all=len(gone))
            if record.config(PATH):
                write(without(record, {PATH}))
    except InstallerError as error:
        log.warning("CDI specification not removed", path=str(PATH), error=error)


def roots(host: Host, options: Options) -> tuple[PurePosixPath, PurePosixPath]:
    """Return the real directories of the host below which the driver and its device nodes are."""
    # A driver's root that is a link loses every library (engine-facts.md#gpu-specification).
    driver = host.resolve(PurePosixPath(driver_root(host, options)[0] or "/"))
    return driver, driver if host.exists(driver / "dev/nvidiactl") else ROOT


def _read_beside(
    host: Host, engines: Iterable[EngineState], highest: Version | None, *, ours: bool, since_s: float
) -> Beside:
    """Return, by directory, the files with devices of our kind; not one in our place that is ``ours``."""
    own = host.resolve(PATH)
    read = (path for engine in engines if engine.serving for path in engine.serving.cdi_dirs)
    found: dict[PurePosixPath, dict[PurePosixPath, frozenset[str]]] = {}
    for directory in dict.fromkeys(host.resolve(path) for path in (SPEC_DIR, *read)):
        there = found.setdefault(directory, {})
        for path in (directory / name for name in host.names(directory)):
            known = path.suffix not in SUFFIXES or (path == own and ours)
            try:
                names = frozenset() if known else read_devices(text(host, path), GPU_KIND, highest)
            except InstallerError as error:
                if host.changed_s(path) > since_s:  # else it was logged
                    log.warning("CDI specification not read", path=str(path), error=error)
                continue
            if names:
                there[PATH if path == own else path] = names
    return found


def list_watched(host: Host, options: Options, record: Record) -> Iterator[str]:
    """Yield the places whose change makes another specification; ``run`` watches them."""
    if record.cdi is None:
        return
    with suppress(InstallerError):  # the check itself reports a root that cannot be read
        driver, dev = roots(host, options)
        devices = f"{host.local_path(dev / 'dev')}/"
        yield from (f"{devices}{name}*" for name in DEVICES)
        for each in named_paths(text(host, PATH)):
            local = str(host.local_path(PurePosixPath(each), last=False))
            if not local.startswith(devices):
                yield local
        # A driver beside the one that is named, and one that was not there at all.
        yield from (str(host.local_path(driver / path.relative_to("/"))) for path in DRIVER_LIBRARY_DIRS)
        yield str(host.local_path(driver))
        yield str(LOADED)
        yield from (f"{host.local_path(path)}/" for path in (SPEC_DIR, PurePosixPath("/etc/cdi")))


def management_specification(source: PurePosixPath, layout: Layout, cdi: Cdi) -> str:
    """Return the specification for this node, with the host's paths, or raise: no driver, or no nodes."""
    driver, dev = cdi.local_driver_root, cdi.local_dev_root
    words = _words("--mode=management", driver, dev, cdi.kind, layout)
    text = run_tool(source, "generate the CDI specification", words)
    moves = [(driver, cdi.driver_root), (dev, cdi.dev_root)]
    if driver == dev:  # the nodes are where the first move has put them
        moves[1] = (str(PurePosixPath(cdi.driver_root, "dev")), str(PurePosixPath(cdi.dev_root, "dev")))
    for local, there in moves:
        if local != there:
            words = ("cdi", "transform", "root", f"--from={local}", f"--to={there}")
            text = run_tool(source, "give the CDI specification the host's paths", words, text)
    return text


def _words(
    form: str, driver: str | PurePosixPath, dev: str | PurePosixPath, kind: str, layout: Layout
) -> tuple[str, ...]:
    """Return how nvidia-ctk is asked for a specification of what it finds below two roots."""
    vendor, _, name = kind.partition("/")
    roots = (f"--driver-root={driver}", f"--dev-root={dev}")
    names = (f"--vendor={vendor}", f"--class={name}", f"--nvidia-cdi-hook-path={layout.cdi_hook}")
    return ("cdi", "generate", form, *roots, *names)


def run_tool(source: PurePosixPath, what: str, words: tuple[str, ...], text: str = "") -> str:
    """Return what the toolkit's nvidia-ctk says, or raise; ``what`` is what it is asked for."""
    tool = find_program(source, TOOL)
    try:
        ran = run_until_stopped(tool, words, text, timeout_s=ANSWER_S) if tool else None
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
    """Return the driver's control device nodes that are wanted and not there."""
    paths = (PurePosixPath(cdi.dev_root, "dev", name) for name in CONTROL_NODES if cdi.nodes)
    return tuple(absent_node(path) for path in paths if not host.exists(path))


def absent_node(path: PurePosixPath) -> DeviceNode:
    """Return a node that is about to be made: what stands there later in this boot is taken for it."""
    return DeviceNode(path, f"{boot_id()} absent")


def held_node(host: Host, device: DeviceNode) -> DeviceNode | None:
    """Return a node of the ledger as it stands there; None where it has gone, or the driver made it anew."""
    status = host.status(device.path, last=False)
    now = DeviceNode(device.path, f"{boot_id()} {status.st_ino}") if status else None
    return now if now is not None and device in {now, absent_node(device.path)} else None


def change_device_nodes(host: Host, step: MakeDeviceNodes | RemoveDeviceNodes) -> None:
    """Make the control device nodes, or raise: some may be there; or remove those that are still ours."""
    if isinstance(step, MakeDeviceNodes):
        root = f"--dev-root={step.cdi.local_dev_root}"
        words = ("system", "create-device-nodes", "--control-devices", root)
        run_tool(step.source, "make the control device nodes", words)
        return
    for node in step.nodes:
        if held_node(host, node) is not None:
            host.remove(node.path)
