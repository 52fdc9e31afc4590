"""The payload: its wanted version, and the steps that install or remove it."""

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines.config_edits import is_hook
from installer.errors import UNINSTALL_AGAIN, InstallerError, Option, Remedy
from installer.model.facts import (
    NAME,
    OUR_PREFIX,
    DriverFacts,
    Facts,
    Record,
    SpecialVersion,
    ToolkitRow,
    names_of,
    require,
)
from installer.model.files import VERSIONS, Carried, Copy, Kind, PayloadFile, Symlink, Text
from installer.model.options import InUse, Options, ToolkitConfig
from installer.model.steps import (
    InstallVersion,
    Part,
    PartId,
    ProveUnused,
    RemoveToolkit,
    RemoveVersion,
    Step,
    SwitchToolkit,
    for_reason,
)
from installer.payload.carried import Named, choose_carried, explain_displaced, find_displaced
from installer.payload.config_toml import (
    ENVVAR_WHEN_UNPRIVILEGED,
    HOST_CONFIG,
    carry_over,
    config_tree,
    explain_host_settings,
    is_hardened,
    render_config,
)
from installer.payload.files import (
    CARRIED,
    CONFIG,
    Manifest,
    access_flaw,
    check_artifacts,
    list_carried,
    list_damage,
    list_foreign,
    list_payload,
    list_programs_in_place,
    make_manifest,
    version_of,
)

THEIRS: Final = "another installer's toolkit is there"
FOREIGN: Final = "a directory of others is there"  # without NVIDIA's programs: nobody knows whose
ROOM_FOR: Final = 2  # payloads: the version in place and its successor


def install(
    facts: Facts, options: Options, low_level: tuple[str, ...], named: Named, *, by_cdi: bool = False
) -> Part:
    """Plan the install of the payload; no steps for an installed, undamaged payload.

    Args:
        facts: the facts of an install.
        options: the options of the install.
        low_level: the runtimes to wrap, preferred first.
        named: what engines start or read in the toolkit's directory. A version gets copies of the files that
            are not part of it: an engine may not start without them.
        by_cdi: whether to leave out config.toml, the wrappers and the libraries.
    """
    found = require(facts.payload)
    obstacle = next(
        check_artifacts(found, options.toolkit_source, by_cdi=by_cdi, in_place=options.in_place), None
    )
    if obstacle is not None:
        return Part(PartId.TOOLKIT, rows=Record(toolkit=facts.record.toolkit), obstacles=(obstacle,))
    rendered = "" if by_cdi else _render(facts, options, low_level)
    files = list_payload(
        found.artifacts,
        toolkit_dir=options.layout.toolkit,
        low_level=low_level,
        config_text=None if by_cdi else rendered,
        in_place=options.in_place,
    )
    version = version_of(files)
    link = find_link(facts)
    current = _find_current(link)
    config = ""
    notes: tuple[str, ...] = ()
    if not by_cdi:
        config, edits = _carry_edits_over(facts, options, rendered, current)
        notes = (*edits, *_explain_host_config(require(facts.driver), options, config))
    manifest = _find_manifest(facts, files, version)
    damaged, install_reason = _find_flaws(facts, files, manifest, version, current)
    planned: list[tuple[Step, str]] = []
    extra: tuple[Carried, ...] = ()
    displaced: tuple[str, ...] = ()
    if install_reason:
        missing = find_displaced(files, named)
        extra = choose_carried(missing, files, facts.portable)
        displaced = (
            *explain_displaced(missing, extra, named),
            *_list_left_files(facts, options, version, {*named, *(file.path for file in extra)}),
        )
        manifest = make_manifest((*files, *extra))
        step = InstallVersion(version, (*_with_config(files, config), *extra), repairs=current == version)
        planned.append((step, install_reason))
    moved: tuple[str, ...] = ()
    if link is None:
        moved = (f"{options.layout.toolkit} moves to {options.layout.replaced}: uninstall puts it back",)
    if link != f"{VERSIONS}{version}":
        switches = (*_remove_superseded(facts), SwitchToolkit(link, f"{VERSIONS}{version}"))
        planned += for_reason(_why_switch(facts, link), switches)
    obstacles: tuple[InstallerError, ...] = ()
    if planned:
        obstacles = (
            *_refuse_immutable(facts, "install"),
            *_find_lack_of_room(facts, options, (*files, *extra)),
        )
    return Part(
        PartId.TOOLKIT,
        tuple(planned),
        Record(toolkit=_make_row(facts, version, current, rendered, manifest)),
        notes=(*_list_used_in_place(files), *moved, *notes, *damaged, *displaced),
        obstacles=obstacles,
    )


def _find_manifest(facts: Facts, files: tuple[PayloadFile, ...], version: str) -> Manifest:
    """Return the manifest of a version, with the owner's files that the last install has copied."""
    manifest = make_manifest(files)
    row = facts.record.toolkit
    if row is not None and row.version == version:
        manifest.update(dict.fromkeys(list_carried(row.files), CARRIED))
    return manifest


def _list_left_files(
    facts: Facts, options: Options, version: str, noted: Collection[PurePosixPath]
) -> Iterator[str]:
    """Note each file that others have put into the version in place, and that the new version does not have.

    An update leaves such a file in the directory of the old version; a repair replaces that directory.
    """
    row = facts.record.toolkit
    if row is None:
        return
    for path in _list_foreign_files(row, facts):
        if path in noted:
            continue
        file = options.layout.toolkit / path
        if row.version == SpecialVersion.STAND_IN:
            yield f"{file} is not part of the new toolkit, and goes: the install did not make it"
        elif row.version == version:
            yield f"{file} goes with the damaged toolkit: the install did not make it"
        else:
            left = options.layout.versions / row.version / path
            yield (
                f"{file} is not part of the new toolkit: it stays as {left}, "
                "until the next update or uninstall deletes it"
            )


def _render(facts: Facts, options: Options, low_level: tuple[str, ...]) -> str:
    """Return the text of config.toml without an administrator's edits."""
    toolkit_dir = options.layout.toolkit
    driver = require(facts.driver)
    config = options.toolkit
    if _takes_hardening_over(driver, config):
        config = replace(config, accept_envvar_when_unprivileged=False)
    tree = config_tree(config, driver, toolkit_dir=toolkit_dir, low_level=low_level)
    before = facts.record.toolkit.rendered if facts.record.toolkit else ""
    return render_config(tree, before)


def _takes_hardening_over(driver: DriverFacts, config: ToolkitConfig) -> bool:
    """Tell whether our config.toml forbids what only the host's own config.toml forbids."""
    return config.envvar_by_host and is_hardened(driver.host_config)


def _explain_host_config(driver: DriverFacts, options: Options, config: str) -> Iterator[str]:
    """Explain in notes what is taken over from the host's own config.toml, and what is not."""
    if _takes_hardening_over(driver, options.toolkit):
        yield f"{ENVVAR_WHEN_UNPRIVILEGED} is false as in the host's {HOST_CONFIG}: the flag overrides that"
    yield from explain_host_settings(driver.host_config, config, options.layout.config)


def _find_current(link: str | None) -> str | None:
    """Return the name of our version behind the toolkit's link; None if the link leads elsewhere."""
    if link is None or not link.startswith(VERSIONS):
        return None
    # An administrator's copy beside our versions, or a path through one of them, is no version of ours.
    name = link.removeprefix(VERSIONS)
    return name if NAME.fullmatch(name) else None


def _with_config(files: tuple[PayloadFile, ...], config: str) -> tuple[PayloadFile, ...]:
    """Return ``files`` with the text ``config`` as config.toml."""
    result: list[PayloadFile] = []
    for file in files:
        if isinstance(file, Text) and file.path == CONFIG:
            result.append(replace(file, content=config))
        else:
            result.append(file)
    return tuple(result)


def _why_switch(facts: Facts, link: str | None) -> str:
    """Return the reason to switch the toolkit's link from the present target, ``link``."""
    if facts.toolkit.theirs:
        return THEIRS
    if link is None:
        # After our install an installer that has only begun may have made the directory.
        return THEIRS if facts.record.toolkit is not None else FOREIGN
    if link == "":
        return "it did not exist"
    return f"it leads to {link}"


def _list_used_in_place(files: tuple[PayloadFile, ...]) -> Iterator[str]:
    """Note each directory of the host with programs used in place."""
    programs = list_programs_in_place(make_manifest(files))
    for directory in dict.fromkeys(path.parent for path in programs):
        yield f"the toolkit in {directory} is used in place: nothing of it is copied, changed or removed"


def _find_flaws(
    facts: Facts, files: tuple[PayloadFile, ...], manifest: Manifest, version: str, current: str | None
) -> tuple[tuple[str, ...], str]:
    """Note each damaged file of ``version``; return also the reason to install the version, or ""."""
    if current != version:
        # The files of other versions are not read: installing them again costs less than verifying them.
        return (), "it is not in place"
    entries = facts.toolkit.versions.get(version, {})
    damage = tuple(list_damage(manifest, entries, facts.toolkit.digests))
    if damage:
        notes = [f"changed after the install, and installed again: {name} ({flaw})" for name, flaw in damage]
        return tuple(notes), "its files are not as they were installed"
    for file in files:
        entry = entries.get(file.path)
        # The SHA256SUMS of a source are trusted as long as the sizes of the copies agree.
        if entry is None or (isinstance(file, Copy) and entry.size_bytes != file.size_bytes):
            return (), "it is not complete"
    return (), ""


def _make_row(
    facts: Facts, version: str, current: str | None, rendered: str, manifest: Manifest
) -> ToolkitRow:
    """Return the ledger's row of the payload for the time after ``version`` has replaced ``current``."""
    row = facts.record.toolkit
    previous = current
    if row is not None and current == version:
        previous = row.previous
    elif current == SpecialVersion.STAND_IN:
        previous = None
    if row is None:
        link = find_link(facts)
        foreign_link = link if link and current is None else None
        row = ToolkitRow(version, None, rendered, replaced=link is None, linked=foreign_link)
    return replace(row, version=version, previous=previous, rendered=rendered, files=manifest)


def sweep(facts: Facts, installed: Part) -> Part:
    """Plan the removal of superseded versions after the engines are proven.

    The installed version and the former version stay.
    """
    row = installed.rows.toolkit
    if installed.obstacles or row is None:
        return Part(PartId.TOOLKIT)
    superseded = sorted(facts.toolkit.versions.keys() - {row.version, row.previous})
    return Part(PartId.TOOLKIT, for_reason("nothing refers to it", map(RemoveVersion, superseded)))


def _carry_edits_over(
    facts: Facts, options: Options, rendered: str, current: str | None
) -> tuple[str, tuple[str, ...]]:
    """Return config.toml with an administrator's edits, and a note for each edit."""
    row = facts.record.toolkit
    installed = facts.toolkit.config
    if row is None or installed is None:
        return rendered, ()
    entry = facts.toolkit.versions.get(current or "", {}).get(CONFIG)
    if entry is not None:
        # config.toml names programs that root runs: edits count only if nobody but root could make them.
        flaw = access_flaw(CONFIG, entry)
        if flaw:
            return rendered, (f"config.toml is written anew, without edits: it was {flaw}",)
    config, edited = carry_over(row.rendered, installed, rendered, name=str(options.layout.config))
    return config, tuple(f"kept an administrator's edit of config.toml: {key}" for key in edited)


def undo(facts: Facts, options: Options, needed: Collection[InstallerError]) -> Part:
    """Plan the removal of the payload.

    The payload stays while something outside needs it: ``needed`` has an error for each reference. For
    running containers ``--in-use force`` leaves links to the low-level runtime instead.
    """
    row = facts.record.toolkit
    if needed:
        return Part(PartId.TOOLKIT, rows=Record(toolkit=row))
    if facts.containers.running and row is not None:
        if options.in_use is InUse.FORCE:
            return _leave_stand_ins(facts, row)
        return Part(PartId.TOOLKIT, rows=Record(toolkit=row))
    restored = tuple(_restore_name(facts))
    obstacles: tuple[InstallerError, ...] = ()
    if row is not None and facts.toolkit.replaced and find_link(facts) != "" and not restored:
        now = f"another file or directory is at {options.layout.toolkit} now"
        problem = f"restore the toolkit directory of another installer ({now})"
        remedy = f"move it away, then {UNINSTALL_AGAIN}"
        obstacles = (InstallerError(problem, remedy=remedy, code="name-taken"),)
    obstacles += tuple(_refuse_immutable(facts, "remove"))
    steps = (*restored, *map(RemoveVersion, sorted(facts.toolkit.versions)))
    notes: list[str] = []
    for path in _list_foreign_files(row, facts):
        notes.append(f"{options.layout.toolkit / path} goes with the toolkit: the install did not make it")
    planned = for_reason("nothing refers to it", steps)
    hooked = next((each.engine for each in facts.record.configs if is_hook(each)), "")
    if steps:
        reason = "containers and files may have changed since the plan was made"
        planned = ((ProveUnused(hooked), reason), *planned)
    return Part(PartId.TOOLKIT, planned, notes=tuple(notes), obstacles=obstacles)


def _list_foreign_files(row: ToolkitRow | None, facts: Facts) -> Iterator[PurePosixPath]:
    """Yield each file that others have put into the version in place, by its path below the toolkit."""
    if row is None or not row.files:  # the files of an adopted toolkit are not known
        return
    for path in list_foreign(row.files, facts.toolkit.versions.get(row.version, {})):
        is_stand_in = row.version == SpecialVersion.STAND_IN and str(path) not in row.files
        if str(path) not in facts.toolkit.restored and not is_stand_in:
            yield path


def _restore_name(facts: Facts) -> Iterator[Step]:
    """Restore the former link or directory at the toolkit's name."""
    row = facts.record.toolkit
    link = find_link(facts)
    if row is not None and link is not None and link.startswith(VERSIONS):
        if row.replaced:  # a directory was at the name
            yield SwitchToolkit(link, None)
        else:
            yield SwitchToolkit(link, row.linked or "")
    elif row is not None and row.version == SpecialVersion.ADOPTED and link is None:
        yield RemoveToolkit()
    elif row is not None and facts.toolkit.replaced and link == "":
        yield SwitchToolkit(link, None)
    else:
        yield from _remove_superseded(facts)


def _remove_superseded(facts: Facts) -> Iterator[Step]:
    """Remove the saved former directory if another installer has made a newer directory."""
    if facts.toolkit.superseded and find_link(facts) is None:
        yield SwitchToolkit(None, None)


def _leave_stand_ins(facts: Facts, toolkit: ToolkitRow) -> Part:
    """Plan links from the names of the running containers' runtimes to a low-level runtime."""
    if toolkit.version == SpecialVersion.STAND_IN:
        return Part(PartId.TOOLKIT, rows=Record(toolkit=toolkit))
    if facts.containers.low_level is None:
        error = InstallerError(
            "leave a low-level runtime in the place of ours (neither runc nor crun was found)",
            remedy=Remedy("use ", Option("in-use", "keep")),
            code="no-low-level-runtime",
        )
        return Part(PartId.TOOLKIT, rows=Record(toolkit=toolkit), obstacles=(error,))
    # The engine keeps all of our handlers for these containers, and a new pod may ask for any of them.
    names = set()
    for container in facts.containers.running:
        if not _is_of_owner(container.binary, facts, toolkit):
            names.add(container.binary.name)
    for engine in facts.record.engines:
        names.update(binary.name for binary in engine.runtimes.values())
    target = str(facts.containers.low_level)
    links = tuple(Symlink(PurePosixPath(name), target) for name in sorted(names))
    # An owner's runtime in the toolkit goes on, too.
    carried = []
    owners = set(list_carried(toolkit.files))
    owners.update(str(facts.in_toolkit.get(user.program)) for user in facts.users)
    for path, file in sorted(facts.portable.items()):
        if str(path) in owners and str(path) not in names:
            carried.append(file)
    steps: tuple[Step, ...] = (
        InstallVersion(SpecialVersion.STAND_IN, (*links, *carried)),
        SwitchToolkit(find_link(facts), f"{VERSIONS}{SpecialVersion.STAND_IN}"),
        *map(RemoveVersion, sorted(facts.toolkit.versions.keys() - {SpecialVersion.STAND_IN})),
    )
    reason = f"{names_of(facts.containers.running)} can be stopped and removed by it"
    left = replace(toolkit, version=SpecialVersion.STAND_IN, previous=None, files=make_manifest(carried))
    return Part(PartId.TOOLKIT, for_reason(reason, steps), Record(toolkit=left))


def _is_of_owner(program: PurePosixPath, facts: Facts, toolkit: ToolkitRow) -> bool:
    """Tell whether an owner has put a program into the toolkit; its name may begin like ours."""
    if not toolkit.files:  # the files of an adopted toolkit are not known
        return not program.name.startswith(OUR_PREFIX)
    path = facts.in_toolkit.get(str(program), PurePosixPath(program.name))
    return path in list_foreign(toolkit.files, facts.toolkit.versions.get(toolkit.version, {}))


def find_link(facts: Facts) -> str | None:
    """Return the target of the toolkit's link; "" for nothing at the path, None for a file or directory."""
    if facts.toolkit.kind is Kind.ABSENT:
        return ""
    if facts.toolkit.kind is Kind.LINK:
        return facts.toolkit.link
    return None


def _refuse_immutable(facts: Facts, verb: str) -> Iterator[InstallerError]:
    """Refuse to begin where a file of an owner cannot be removed."""
    path = facts.toolkit.immutable
    if path is not None:
        problem = f"{verb} the toolkit (an attribute of {path} forbids it: lsattr shows i or a)"
        remedy = f"remove the attribute: chattr -i -a {path}"
        yield InstallerError(problem, remedy=remedy, code="file-operation-failed")


def _find_lack_of_room(
    facts: Facts, options: Options, files: tuple[PayloadFile, ...]
) -> Iterator[InstallerError]:
    copies = [file for file in files if isinstance(file, Copy | Carried)]
    needed_bytes = ROOM_FOR * sum(file.size_bytes for file in copies)
    free_bytes = require(facts.payload).free_bytes
    if free_bytes is not None and free_bytes < needed_bytes:
        free = _format_size(free_bytes)
        needed = _format_size(needed_bytes)
        problem = f"install into {options.install_dir} ({free} are free, {needed} are needed)"
        remedy = Remedy("free some space there, or choose another ", Option("install-dir"))
        yield InstallerError(problem, remedy=remedy, code="no-space")


def _format_size(size_bytes: int) -> str:
    if size_bytes >= 1 << 20:
        return f"{size_bytes >> 20} MiB"
    return f"{size_bytes >> 10} KiB"
