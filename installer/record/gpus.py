"""The CDI specification of the node's GPUs: made by the payload's nvidia-ctk, beside what is there of it."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from installer.decide.data import replace
from installer.decide.errors import InstallerError, StoppedError
from installer.decide.facts import EngineFacts, GpuSpecification
from installer.decide.inode import File
from installer.decide.layout import DRIVER_LIBRARY_DIRS, cdi_hook
from installer.decide.mode import SPEC_DIR, Version, highest_read
from installer.decide.mode import SPECIFICATION as PATH
from installer.decide.options import GPU_KIND, ROOT, Options
from installer.decide.parts.gpus import without
from installer.decide.read_specification import devices
from installer.decide.rows import Record
from installer.decide.specification import ALL_GPUS, device_names, named, specification
from installer.host.events import log
from installer.host.files import Host
from installer.record.cdi import run_tool
from installer.record.hints import driver_root
from installer.record.ledger import Ledger
from installer.record.texts import text, text_of

SUFFIXES: Final = frozenset({".json", ".yaml"})  # an engine reads no other
LOADED: Final = PurePosixPath("/proc/driver/nvidia/version")  # there as long as the driver's module is
NAMED: Final = 5
DEVICES: Final = ("nvidia", "nvidia-caps/", "dri/")

# The names of devices, by directory and file.
Beside: TypeAlias = Mapping[PurePosixPath, Mapping[PurePosixPath, frozenset[str]]]


def gpu_specification(
    host: Host, options: Options, engines: Collection[EngineFacts], held: Record, file: File | None
) -> GpuSpecification:
    """Return what the specification of the GPUs is to be, and what is beside it; ``file`` is in its place."""
    hook, now, row = str(cdi_hook(options.layout)), text_of(file), held.config(PATH)
    highest = highest_read(engines)
    ours = _is_ours(file, options, held)
    beside = _beside(host, engines, highest, ours=ours)
    found = GpuSpecification(PATH, ours=ours, stale=_gone(host, now) if ours else ())
    # What is in our place and gives nobody a device is no other's specification: ours, which was spoilt.
    if file is not None and not (ours or row or any(PATH in files for files in beside.values())):
        return replace(found, lacking=f"cannot replace {PATH} (it is no specification of ours); move it away")
    try:
        found = replace(found, text=_generated(host, options, hook, highest))
    except StoppedError:
        raise
    except InstallerError as error:
        found = replace(found, lacking=f"cannot {error.problem}; {error.remedy}", unmade=error)
    return _among(host, engines, beside, found, device_names(found.text or (now if ours else "")))


def _among(
    host: Host, engines: Iterable[EngineFacts], beside: Beside, spec: GpuSpecification, ours: frozenset[str]
) -> GpuSpecification:
    """Return the specification with those that have ``ours``, too, and what they lack of it.

    Where nobody knows what ours would have, it is what each that nvidia-ctk generates has.
    """
    wanted = ours or {ALL_GPUS}
    found = {path: names for there in beside.values() for path, names in there.items()}
    others = tuple(path for path, names in found.items() if path == PATH or names & wanted)
    missing = sorted(wanted - _given(host, engines, beside)) if others else []
    if spec.unmade is not None:
        return replace(
            spec, others=others, unmade=spec.unmade if not others and host.exists(LOADED) else None
        )
    files = " and ".join(map(str, others))
    lacking = InstallerError(
        f"give containers {GPU_KIND}={ALL_GPUS} ({files} has devices that ours would have, and not that one; "
        "beside ours, engines would drop or hide them)",
        remedy="move that away, and ours comes back; or let it name what nvidia-ctk cdi generate does",
        code="cdi-failed",
    )
    return replace(
        spec, others=others, missing=tuple(missing), unmade=lacking if ALL_GPUS in missing else None
    )


def _given(host: Host, engines: Iterable[EngineFacts], beside: Beside) -> frozenset[str]:
    """Return the devices that all engines take from these files, of two in one directory neither."""
    read = [engine.serving.cdi_dirs for engine in engines if engine.serving] or [tuple(beside)]
    given = []
    for directories in read:
        there = [[*beside[each].values()] for each in dict.fromkeys(map(host.resolve, directories))]
        twice = {name for files in there for name, count in Counter(chain(*files)).items() if count > 1}
        given.append(frozenset(chain(*chain(*there))) - twice)
    return frozenset.intersection(*given)


def _is_ours(file: File | None, options: Options, held: Record) -> bool:
    """Tell whether a text in our place is ours; without its ledger it is known by its hook."""
    row = held.config(PATH)
    known = row is not None and file is not None and file.digest in row.ours
    return known or f'"{cdi_hook(options.layout)}"' in text_of(file)


def _gone(host: Host, said: str) -> tuple[str, ...]:
    """Return what a specification names and what is not there."""
    return tuple(path for path in named(said) if not _is_there(host, path))


@contextmanager
def stale_withdrawn(host: Host, options: Options, ledger: Ledger) -> Iterator[None]:
    """Withdraw a stale specification where the block, which would have replaced it, fails or is refused."""
    try:
        yield
    except StoppedError:
        raise
    except InstallerError:
        withdraw_stale(host, options, ledger)
        raise


def withdraw_stale(host: Host, options: Options, ledger: Ledger) -> None:
    """Remove a specification of ours that names what is gone: no container could start with it.

    That it cannot be removed is told, and stops nothing.
    """
    try:
        file = host.read(PATH)
        gone = _gone(host, text_of(file)) if _is_ours(file, options, ledger.held) else ()
        if gone:
            host.remove(PATH)
            log.warning("specification withdrawn", path=str(PATH), gone=list(gone[:NAMED]), in_all=len(gone))
            if ledger.held.config(PATH):
                ledger.write(without(ledger.held, {PATH}))
    except InstallerError as error:
        log.warning("specification not withdrawn", path=str(PATH), error=error)


def roots(host: Host, options: Options) -> tuple[PurePosixPath, PurePosixPath]:
    """Return the real directories of the host below which the driver and its device nodes are.

    A driver's root that is a link loses every library (engine-facts.md#gpu-specification).
    """
    driver = host.resolve(PurePosixPath(driver_root(host, options)[0] or "/"))
    return driver, driver if host.exists(driver / "dev/nvidiactl") else ROOT


def _generated(host: Host, options: Options, hook: str, highest: Version | None) -> str:
    driver, dev = roots(host, options)
    moves = tuple((PurePosixPath(host.local_path(root)), root) for root in (driver, dev))
    vendor, _, kind = GPU_KIND.partition("/")
    said = run_tool(
        options.toolkit_source,
        "generate the CDI specification of the GPUs",
        (
            *("cdi", "generate", "--format=json"),
            *(f"--driver-root={moves[0][0]}", f"--dev-root={moves[1][0]}"),
            *(f"--vendor={vendor}", f"--class={kind}", f"--nvidia-cdi-hook-path={hook}"),
        ),
    )
    return specification(said, GPU_KIND, moves, highest)


def _beside(host: Host, engines: Iterable[EngineFacts], highest: Version | None, *, ours: bool) -> Beside:
    """Return, by directory, the files with devices of our kind; not one in our place that is ``ours``."""
    own = host.resolve(PATH)
    said = (path for engine in engines if engine.serving for path in engine.serving.cdi_dirs)
    found: dict[PurePosixPath, dict[PurePosixPath, frozenset[str]]] = {}
    for directory in dict.fromkeys(host.resolve(path) for path in (SPEC_DIR, *said)):
        there = found.setdefault(directory, {})
        for path in (directory / name for name in host.names(directory)):
            known = path.suffix not in SUFFIXES or (path == own and ours)
            try:
                names = frozenset() if known else devices(text(host, path), GPU_KIND, highest)
            except InstallerError as error:
                log.warning("specification not read", path=str(path), error=error)
                continue
            if names:
                there[PATH if path == own else path] = names
    return found


def _is_there(host: Host, path: str) -> bool:
    with suppress(InstallerError):
        return host.local_path(PurePosixPath(path)).exists()
    return False


def watched(host: Host, options: Options, held: Record) -> Iterator[str]:
    """Yield the places, as the waiter has them, whose change makes another specification."""
    if held.cdi is not None:
        with suppress(InstallerError):  # a root that cannot be looked at is told by the look itself
            yield from _watched(host, options)


def _watched(host: Host, options: Options) -> Iterator[str]:
    driver, dev = roots(host, options)
    devices = f"{host.local_path(dev / 'dev')}/"
    yield from (f"{devices}{name}*" for name in DEVICES)
    for each in named(text(host, PATH)):
        local = str(host.local_path(PurePosixPath(each), last=False))
        if not local.startswith(devices):
            yield local
    # A driver beside the one that is named, and one that was not there at all.
    yield from (str(host.local_path(driver / path.relative_to("/"))) for path in DRIVER_LIBRARY_DIRS)
    yield str(host.local_path(driver))
    yield str(LOADED)
    yield from (f"{host.local_path(path)}/" for path in (SPEC_DIR, PurePosixPath("/etc/cdi")))
