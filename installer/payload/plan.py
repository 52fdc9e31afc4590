"""The payload: which version should be in place, and the steps that put it there."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines.config_edits import is_hook
from installer.errors import InstallerError, Option, Remedy
from installer.model.facts import ADOPTED, NAME, STAND_IN, Facts, Record, ToolkitRow, names_of, require
from installer.model.files import VERSIONS, Copy, Kind, PayloadFile, Symlink, Text
from installer.model.options import InUse, Options
from installer.model.steps import (
    TRY_AGAIN,
    InstallVersion,
    Part,
    ProveUnused,
    Reload,
    RemoveToolkit,
    RemoveVersion,
    Step,
    SwitchToolkit,
    for_reason,
)
from installer.payload.config_toml import carry_over, config_tree, render_config
from installer.payload.files import (
    CONFIG,
    access_flaw,
    check_artifacts,
    list_damage,
    list_payload,
    list_programs_in_place,
    make_manifest,
    version_of,
)

ID: Final = "toolkit"
THEIRS: Final = "another installer's toolkit is there"
ROOM_FOR: Final = 2  # payloads: the one in place and the one that takes its place


def install(facts: Facts, options: Options, low_level: tuple[str, ...], *, by_cdi: bool = False) -> Part:
    """Return how the payload comes into place; no steps where it is there, unchanged and complete."""
    found = require(facts.payload)
    for error in check_artifacts(found, options.toolkit_source, by_cdi=by_cdi):
        return Part(ID, rows=Record(toolkit=facts.held.toolkit), obstacles=(error,))
    rendered = ""
    if not by_cdi:
        toolkit_dir, driver = options.layout.toolkit, require(facts.driver)
        tree = config_tree(options.toolkit, driver, toolkit_dir=toolkit_dir, low_level=low_level)
        rendered = render_config(tree, facts.held.toolkit.rendered if facts.held.toolkit else "")
    files = list_payload(
        found.artifacts,
        toolkit_dir=options.layout.toolkit,
        low_level=low_level,
        config_text=None if by_cdi else rendered,
        in_place=options.in_place,
    )
    version = version_of(files)
    now = find_link(facts)
    # An administrator's copy, or a way round to a version of ours, is none of ours.
    named = now.removeprefix(VERSIONS) if now and now.startswith(VERSIONS) else ""
    current = named if NAME.fullmatch(named) else None
    config, notes = _carry_edits_over(facts, options, rendered, current) if not by_cdi else ("", ())
    damaged, reason = _find_flaws(facts, files, version, current)
    planned: list[tuple[Step, str]] = []
    if reason:
        edited = (
            replace(file, content=config) if isinstance(file, Text) and file.path == CONFIG else file
            for file in files
        )
        planned.append((InstallVersion(version, tuple(edited), repairs=current == version), reason))
    if now != f"{VERSIONS}{version}":
        switches = (*_remove_superseded(facts), SwitchToolkit(now, f"{VERSIONS}{version}"))
        if facts.toolkit.theirs or now is None:  # also where it has not yet put all into its directory
            reason = THEIRS
        else:
            reason = f"it leads to {now}" if now else "it did not exist"
        planned += for_reason(reason, switches)
    used = (
        f"the toolkit in {place} is used in place: nothing of it is copied, changed or removed"
        for place in dict.fromkeys(path.parent for path in list_programs_in_place(make_manifest(files)))
    )
    return Part(
        ID,
        tuple(planned),
        Record(toolkit=_make_row(facts, version, current, rendered, files)),
        notes=(*used, *notes, *damaged),
        obstacles=tuple(_find_lack_of_room(facts, options, files)) if planned else (),
    )


def _find_flaws(
    facts: Facts, files: tuple[PayloadFile, ...], text: str, current: str | None
) -> tuple[tuple[str, ...], str]:
    """Return a note for each damaged file of the version in place, and why that version is installed."""
    there = facts.toolkit.versions.get(text, {})
    if current != text:
        # What another version holds was not read: putting it there anew costs less than to trust it.
        return (), "it is not in place"
    found = tuple(list_damage(make_manifest(files), there, facts.toolkit.digests))
    notes = (f"changed after the install, and installed again: {name} ({flaw})" for name, flaw in found)
    # A source is believed by its SHA256SUMS as long as its sizes are those of the copies.
    sizes = {path: entry.size_bytes for path, entry in there.items()}
    whole = all(sizes.get(file.path) == file.size_bytes for file in files if isinstance(file, Copy))
    if found or not whole or not all(file.path in there for file in files):
        return tuple(notes), "its files are not as they were installed" if found else "it is not complete"
    return (), ""


def _make_row(
    facts: Facts, text: str, current: str | None, rendered: str, files: tuple[PayloadFile, ...]
) -> ToolkitRow:
    """Return what is held of the payload once ``text`` is in the place of the version ``current``."""
    held, now = facts.held.toolkit, find_link(facts)
    before = None if current == STAND_IN else current
    previous = held.previous if held and current == text else before
    foreign = held or ToolkitRow(
        text, None, rendered, replaced=now is None, linked=now if now and current is None else None
    )
    return replace(foreign, version=text, previous=previous, rendered=rendered, files=make_manifest(files))


def sweep(facts: Facts, installed: Part) -> Part:
    """Return how the versions go that nothing names once the engines are proven; the previous one stays."""
    row = installed.rows.toolkit if not installed.obstacles else None
    kept = {row.version, row.previous} if row else facts.toolkit.versions.keys()
    going = map(RemoveVersion, sorted(facts.toolkit.versions.keys() - kept))
    return Part(ID, for_reason("nothing refers to it", going))


def _carry_edits_over(
    facts: Facts, options: Options, rendered: str, current: str | None
) -> tuple[str, tuple[str, ...]]:
    """Return config.toml with an administrator's edits, and what to say of them."""
    held, found = facts.held.toolkit, facts.toolkit.config
    if held is None or found is None:
        return rendered, ()
    entry = facts.toolkit.versions.get(current or "", {}).get(CONFIG)
    # Where others than root could write it their owner is unknown, and it names programs that root runs.
    if entry is not None and (flaw := access_flaw(CONFIG, entry)):
        return rendered, (f"config.toml is written anew, without edits: it was {flaw}",)
    config, edited = carry_over(held.rendered, found, rendered, name=str(options.layout.config))
    return config, tuple(f"kept an administrator's edit of config.toml: {key}" for key in edited)


def undo(facts: Facts, options: Options, needed: Collection[InstallerError], parts: Iterable[Part]) -> Part:
    """Return how the payload goes, but for what containers need; it stays where anything is ``needed``."""
    row = facts.held.toolkit
    if needed:
        return Part(ID, rows=Record(toolkit=row))
    if facts.containers.running and row is not None:
        return (
            _leave_stand_ins(facts, row)
            if options.in_use is InUse.FORCE
            else Part(ID, rows=Record(toolkit=row))
        )
    restored, obstacles = tuple(_restore_name(facts)), tuple[InstallerError, ...]()
    if row is not None and facts.toolkit.replaced and find_link(facts) != "" and not restored:
        now = f"another file or directory is at {options.layout.toolkit} now"
        problem = f"restore the toolkit directory of another installer ({now})"
        remedy = f"move it away, then {TRY_AGAIN}"
        obstacles = (InstallerError(problem, remedy=remedy, code="name-taken"),)
    steps = (*restored, *map(RemoveVersion, sorted(facts.toolkit.versions)))
    planned = for_reason("nothing refers to it", steps)
    hooked = next((each.engine for each in facts.held.configs if is_hook(each)), "")
    reloads = any(isinstance(step, Reload) for part in parts for step in part.steps)
    # After a reload of an engine it may be that no container was started.
    if steps and (hooked or reloads) and not facts.containers.running:
        planned = ((ProveUnused(hooked), "one may have been started since the node was looked at"), *planned)
    return Part(ID, planned, obstacles=obstacles)


def _restore_name(facts: Facts) -> Iterator[Step]:
    """Yield how the toolkit's name becomes what it was before us."""
    row, now = facts.held.toolkit, find_link(facts)
    if row is not None and now is not None and now.startswith(VERSIONS):
        yield SwitchToolkit(now, None if row.replaced else row.linked or "")
    elif row is not None and row.version == ADOPTED and now is None:
        yield RemoveToolkit()
    elif row is not None and facts.toolkit.replaced and now == "":
        yield SwitchToolkit(now, None)
    else:
        yield from _remove_superseded(facts)


def _remove_superseded(facts: Facts) -> Iterator[Step]:
    """Yield how the directory goes that stood there before us, where a later one of its kind stands now."""
    if facts.toolkit.superseded and find_link(facts) is None:
        yield SwitchToolkit(None, None)


def _leave_stand_ins(facts: Facts, toolkit: ToolkitRow) -> Part:
    """Return what lets a low-level runtime answer to the names that containers were started by."""
    if toolkit.version == STAND_IN:
        return Part(ID, rows=Record(toolkit=toolkit))
    if facts.containers.low_level is None:
        error = InstallerError(
            "leave a low-level runtime in the place of ours (neither runc nor crun was found)",
            remedy=Remedy("use ", Option("in-use", "keep")),
            code="no-low-level-runtime",
        )
        return Part(ID, rows=Record(toolkit=toolkit), obstacles=(error,))
    # The handlers that an engine keeps for these have all of theirs: a new pod may ask for any of them.
    served = {binary.name for engine in facts.held.engines for binary in engine.runtimes.values()}
    names = sorted(served | {container.binary.name for container in facts.containers.running})
    links = tuple(Symlink(PurePosixPath(name), str(facts.containers.low_level)) for name in names)
    steps: tuple[Step, ...] = (
        InstallVersion(STAND_IN, links),
        SwitchToolkit(find_link(facts), f"{VERSIONS}{STAND_IN}"),
        *map(RemoveVersion, sorted(facts.toolkit.versions.keys() - {STAND_IN})),
    )
    reason = f"{names_of(facts.containers.running)} can be stopped and removed by it"
    left = replace(toolkit, version=STAND_IN, previous=None, files={})
    return Part(ID, for_reason(reason, steps), Record(toolkit=left))


def find_link(facts: Facts) -> str | None:
    """Return what stands at the toolkit's name, as a side of ``SwitchToolkit``."""
    if facts.toolkit.kind is Kind.ABSENT:
        return ""
    return facts.toolkit.link if facts.toolkit.kind is Kind.LINK else None


def _find_lack_of_room(
    facts: Facts, options: Options, files: tuple[PayloadFile, ...]
) -> Iterator[InstallerError]:
    need = ROOM_FOR * sum(file.size_bytes for file in files if isinstance(file, Copy))
    free_bytes = require(facts.payload).free_bytes
    if free_bytes is not None and free_bytes < need:
        sizes = (free_bytes, need)
        has, takes = (f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" for size in sizes)
        problem = f"install into {options.install_dir} ({has} are free, {takes} are needed)"
        remedy = Remedy("free some space there, or choose another ", Option("install-dir"))
        yield InstallerError(problem, remedy=remedy, code="no-space")
