"""The payload: which version should be in place, and the steps that put it there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final, assert_never

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import Facts
from installer.decide.inode import Entry, Kind
from installer.decide.integrity import access_flaw, damage, manifest
from installer.decide.layout import HOME
from installer.decide.options import Options
from installer.decide.rows import ToolkitRow
from installer.decide.steps import InstallVersion, RemoveToolkit, RemoveVersion, Step, SwitchToolkit
from installer.decide.toolkit import (
    CONFIG,
    Copy,
    PayloadFile,
    Symlink,
    Text,
    check_artifacts,
    payload,
    version_of,
)
from installer.decide.toolkit_config import carry_over, render_config

VERSIONS: Final = f"{HOME}/versions/"
TRY_AGAIN: Final = "run toolkit-installer uninstall again"
STAND_IN: Final = "stand-in"  # the version of links to a low-level runtime that a forced undo leaves
ADOPTED: Final = "adopted"  # the version of NVIDIA's own directory, once it is ours to remove
ROOM_FOR: Final = 2  # payloads: the one in place and the one that takes its place


@dataclass(frozen=True, slots=True)
class ToolkitPlan:
    """``steps`` come before the engines are touched, ``afterwards`` when they are proven.

    ``notes`` tell which edits of config.toml are kept or not, and each file of the version in place that is
    not as it was installed.
    """

    steps: tuple[Step, ...]
    afterwards: tuple[Step, ...]
    row: ToolkitRow | None
    obstacles: tuple[InstallerError, ...] = ()
    notes: tuple[str, ...] = ()


def plan_toolkit(facts: Facts, options: Options, low_level: tuple[str, ...]) -> ToolkitPlan:
    """Return how the payload comes into place; no steps where it is there, unchanged and complete."""
    held = facts.held.toolkit
    try:
        check_artifacts(
            facts.artifacts,
            source_root=options.toolkit_source,
            machine=facts.machine,
            absent=facts.absent_interpreters,
        )
    except InstallerError as error:
        return ToolkitPlan((), (), held, (error,))
    toolkit_dir = options.layout.toolkit
    rendered = render_config(
        replace(options.toolkit, driver_root=options.driver_root),
        toolkit_dir=toolkit_dir,
        low_level=low_level,
        ldconfig_real=facts.ldconfig_real,
        suse=facts.suse,
    )
    files = payload(facts.artifacts, toolkit_dir=toolkit_dir, low_level=low_level, config_text=rendered)
    version = version_of(files)
    now = standing(facts)
    target = f"{VERSIONS}{version}"
    current = now.removeprefix(VERSIONS) if now and now.startswith(VERSIONS) else None
    config, notes = _edited_config(facts, options, rendered, current)
    before = None if current == STAND_IN else current
    steps: list[Step] = []
    there = facts.toolkit.versions.get(version, {})
    damaged: tuple[str, ...] = ()
    if current == version:
        found = damage(manifest(files), there, facts.toolkit.digests)
        damaged = tuple(
            f"not as it was installed, and installed anew: {name} ({flaw})" for name, flaw in found
        )
    # What another version holds was not read: putting it there anew costs less than to trust it.
    if current != version or damaged or not _complete(files, there):
        steps.append(InstallVersion(version, _with_config(files, config), repairs=current == version))
    if now != target:
        steps.append(SwitchToolkit(now, target))
    previous = held.previous if held and current == version else before
    stale = sorted(facts.toolkit.versions.keys() - {version, previous})
    foreign = held or ToolkitRow(
        version, None, rendered, replaced=now is None, linked=now if now and current is None else None
    )
    wanted = tuple(manifest(files).items())
    row = replace(foreign, version=version, previous=previous, rendered=rendered, files=wanted)
    obstacles = _no_room(facts, options, files) if steps else ()
    return ToolkitPlan(
        tuple(steps), tuple(RemoveVersion(name) for name in stale), row, obstacles, (*notes, *damaged)
    )


def _edited_config(
    facts: Facts, options: Options, rendered: str, current: str | None
) -> tuple[str, tuple[str, ...]]:
    """Return config.toml with an administrator's edits, and what to say of them.

    Where others than root could write it nobody knows whose they are, and it names programs that root runs.
    """
    held, found = facts.held.toolkit, facts.toolkit.config
    if held is None or found is None:
        return rendered, ()
    entry = facts.toolkit.versions.get(current or "", {}).get(CONFIG)
    if entry is not None and (flaw := access_flaw(CONFIG, entry)):
        return rendered, (f"nothing of config.toml is kept, for it was {flaw}",)
    config, edited = carry_over(held.rendered, found, rendered, name=str(options.layout.config))
    return config, tuple(f"kept an administrator's edit of config.toml: {key}" for key in edited)


def plan_removal(
    facts: Facts, options: Options
) -> tuple[ToolkitRow | None, list[Step], list[InstallerError]]:
    """Return row, steps and obstacles of a payload that goes, but for what containers still need of it."""
    row = facts.held.toolkit
    now = standing(facts)
    if facts.live and row is not None:
        if options.in_use.forces:
            return _stand_ins(facts, row, now)
        return row, [], []
    steps: list[Step] = []
    obstacles: list[InstallerError] = []
    if row is not None and now is not None and now.startswith(VERSIONS):
        steps.append(SwitchToolkit(now, None if row.replaced else row.linked or ""))
    elif row is not None and row.version == ADOPTED and now is None:
        steps.append(RemoveToolkit())
    elif row is not None and facts.toolkit.replaced:
        if now == "":
            steps.append(SwitchToolkit(now, None))
        else:
            obstacles.append(
                InstallerError(
                    "give the toolkit directory of another installer back (something else has its name)",
                    remedy=f"move it away, then {TRY_AGAIN}",
                )
            )
    versions = sorted(facts.toolkit.versions)
    return None, [*steps, *(RemoveVersion(version) for version in versions)], obstacles


def _stand_ins(
    facts: Facts, row: ToolkitRow, now: str | None
) -> tuple[ToolkitRow, list[Step], list[InstallerError]]:
    """Return what lets a low-level runtime answer to the names that containers were started by.

    The handlers that an engine keeps for these have all of theirs: a new pod may ask for any of them.
    """
    if row.version == STAND_IN:
        return row, [], []
    if facts.low_level is None:
        problem = "leave a low-level runtime in the place of ours (neither runc nor crun was found)"
        return row, [], [InstallerError(problem, remedy=Remedy("use ", Option("in-use", "keep")))]
    served = {binary.name for engine in facts.held.engines for _, binary in engine.runtimes}
    names = sorted(served | {container.binary.name for container in facts.live})
    links = tuple(Symlink(PurePosixPath(name), str(facts.low_level)) for name in names)
    steps: list[Step] = [InstallVersion(STAND_IN, links), SwitchToolkit(now, f"{VERSIONS}{STAND_IN}")]
    steps += [RemoveVersion(version) for version in sorted(facts.toolkit.versions.keys() - {STAND_IN})]
    return replace(row, version=STAND_IN, previous=None, files=()), steps, []


def standing(facts: Facts) -> str | None:
    """Return what stands at the toolkit's name, as a side of ``SwitchToolkit``."""
    match facts.toolkit.kind:
        case Kind.ABSENT:
            return ""
        case Kind.LINK:
            return facts.toolkit.link
        case _:
            return None


def _complete(files: tuple[PayloadFile, ...], entries: Mapping[PurePosixPath, Entry]) -> bool:
    return all(file.path in entries and _as_planned(file, entries[file.path]) for file in files)


def _as_planned(file: PayloadFile, entry: Entry) -> bool:
    match file:
        case Copy(_, _, size_bytes, _, mode):
            return (entry.size_bytes, entry.mode, entry.link) == (size_bytes, mode, "")
        case Text(path, content, mode):
            # An administrator may edit config.toml; the wrappers are ours alone.
            size_bytes = entry.size_bytes if path == CONFIG else len(content.encode())
            return (entry.size_bytes, entry.mode, entry.link) == (size_bytes, mode, "")
        case Symlink(_, target):
            return entry.link == target
        case _:
            assert_never(file)


def _with_config(files: tuple[PayloadFile, ...], config: str) -> tuple[PayloadFile, ...]:
    return tuple(
        replace(file, content=config) if isinstance(file, Text) and file.path == CONFIG else file
        for file in files
    )


def _no_room(facts: Facts, options: Options, files: tuple[PayloadFile, ...]) -> tuple[InstallerError, ...]:
    need = ROOM_FOR * sum(file.size_bytes for file in files if isinstance(file, Copy))
    if facts.free_bytes is None or facts.free_bytes >= need:
        return ()
    return (
        InstallerError(
            f"install into {options.install_dir} ({_size(facts.free_bytes)} are free, "
            f"two payloads take {_size(need)})",
            remedy=Remedy("free some space there, or choose another ", Option("install-dir")),
        ),
    )


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"
