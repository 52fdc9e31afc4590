"""The host as it is: reads only."""

from collections.abc import Collection, Iterable, Iterator
from math import inf
from pathlib import PurePosixPath

from msgspec.structs import replace

from installer.cdi.device_nodes import absent_nodes, held_node
from installer.cdi.generate import gpu_specification, management_specification
from installer.cdi.mode import SPECIFICATION, mode_of
from installer.change.ledger import is_lost, original_of
from installer.change.lost import TOOLKITS
from installer.change.search import links_named, loops, with_references
from installer.engines import ENGINES
from installer.engines.command_line import path_of
from installer.engines.config_edits import holds_ours, text_of
from installer.engines.config_files import contents_of, copies_of, usual_configs
from installer.engines.containers import find_substitute_runtime, in_use, list_hooks
from installer.engines.dependencies import driver_root, is_suse, served_by_image
from installer.engines.observe import find_engines, observe_row, without_unused
from installer.engines.restart import ASK_S, with_creating
from installer.engines.restart_checks import unit_obstacles
from installer.engines.write_config import (
    led_elsewhere,
    linked_since,
    missing_above,
    targets_of,
    unwritable,
)
from installer.errors import InstallerError
from installer.host import units
from installer.host.files import Host, entries
from installer.host.kernel import machine
from installer.host.trees import digests_below, sums_of
from installer.model.engine_spec import ReloadMethod
from installer.model.facts import EngineState, Facts, ToolkitFacts
from installer.model.files import File, Kind
from installer.model.options import Options, RestartMode
from installer.model.paths import VERSIONS, Layout
from installer.model.record import ConfigRow, DeviceNode, Record
from installer.payload.installed import (
    former_defaults,
    install_dir_obstacles,
    is_theirs,
    noted_digests,
    still_ours,
    unusable,
)
from installer.payload.source import ask_version, read_artifacts


def probe_install(host: Host, options: Options, record: Record, patience_s: float = 0.0) -> Facts:
    """Return everything that an install depends on; an engine that has crashed is waited for ``patience_s``.

    Raises:
        InstallerError: no engine runs here, or a config cannot be read or replaced.
    """
    told, record = record, _by_now(host, options, record)
    sums, version_in_place = sums_of(options.toolkit_source), in_place(host, options.layout)
    # Hashing the payload and asking the engines wait for different things.
    with (
        read_artifacts(options.toolkit_source, sums) as artifacts,
        ask_version(options.toolkit_source, sums) as version,
        digests_below(host, version_in_place, noted_digests(host, version_in_place)) as digests,
    ):
        found = find_engines(host, options, record, patience_s)
        engines, left = without_unused(host, record, found.engines) if options.auto else (found.engines, ())
        if options.restart_mode is RestartMode.WHEN_IDLE:
            engines = with_creating(host, engines)
        facts = _with_taken_over(_facts(host, options, record, engines), told)
        facts = _with_specifications(host, options, facts)
        targets = _targets(options, facts)
        facts = _with_node(host, options, facts, targets)
        overruled = found.overruled if facts.gpus is None else ()
        obstacles = (*_obstacles(host, options, facts, targets), *overruled)
        running = in_use(host, options.layout, record, engines)[0]
        payload = artifacts()
        scripts = {artifact.interpreter for artifact in payload if artifact.interpreter is not None}
        return replace(
            facts,
            artifacts=payload,
            absent_interpreters=frozenset(path for path in scripts if host.kind(path) is not Kind.FILE),
            obstacles=(*obstacles, *loops(host, options, payload)),
            refused=found.refused,
            notes=(*found.notes, *left, *facts.notes),
            running=running,
            version=version(),
            toolkit=replace(facts.toolkit, digests=digests()),
        )


def _with_node(host: Host, options: Options, facts: Facts, targets: Collection[PurePosixPath]) -> Facts:
    """Return the facts with what the node is, and where the configs are that may be written."""
    driver, notes = driver_root(host, options)
    linked = {host.resolve(path) for path in targets if host.link_target(path) is not None}
    return replace(
        facts,
        missing=frozenset(missing_above(host, {*targets, *linked})),
        unwritable=unwritable(host, targets),
        targets=led_elsewhere(host, {*targets, *(path for engine in facts.engines for path in engine.files)}),
        machine=machine(),
        driver_root=driver,
        ldconfig_real=host.kind(PurePosixPath(driver, "sbin/ldconfig.real")) is Kind.FILE,
        suse=is_suse(host),
        free_bytes=host.free_bytes(options.install_dir),
        notes=notes,
    )


def _obstacles(
    host: Host, options: Options, facts: Facts, targets: Iterable[PurePosixPath]
) -> Iterator[InstallerError]:
    """Yield what stands against any install on this node."""
    if facts.engines:
        yield from served_by_image(host)
    yield from unusable(host, options.install_dir)
    yield from install_dir_obstacles(host, options.install_dir)
    if facts.gpus is None:
        yield from unit_obstacles(host, options, facts.engines)
    yield from moved(host, options, facts.contents.values())
    yield from _unreplaceable(host, targets)


def _targets(options: Options, facts: Facts) -> set[PurePosixPath]:
    """Return the files that may be written."""
    changed = facts.engines if facts.gpus is None else ()
    targets = {path for engine in changed for path in targets_of(engine)}
    targets |= {options.cdi.path} if options.cdi is not None else set()
    return targets | ({facts.gpus.path} if facts.gpus is not None else set())


def _unreplaceable(host: Host, targets: Iterable[PurePosixPath]) -> Iterator[InstallerError]:
    """Yield why a config that may be written could not be replaced."""
    for path in sorted(targets):
        try:
            host.refuse_unreplaceable(path)
        except InstallerError as error:
            yield error


def _with_specifications(host: Host, options: Options, facts: Facts) -> Facts:
    """Return the facts with all that the CDI specifications depend on which are asked for."""
    contents, cdi = dict(facts.contents), options.cdi
    absent: tuple[DeviceNode, ...] = ()
    text, gpus = None, None
    if cdi is not None:  # it names the device nodes that are there
        absent = absent_nodes(host, cdi)
        contents[cdi.path] = host.read(cdi.path)
        text = None if absent else management_specification(options.toolkit_source, options.layout, cdi)
    if mode_of(facts.engines, facts.held, options)[0].by_cdi:
        # Read once: whose it is and what is replaced are the same text, also where somebody writes meanwhile.
        contents[SPECIFICATION] = now = host.read(SPECIFICATION)
        gpus = gpu_specification(host, options, facts.engines, facts.held, now)
    return replace(facts, contents=contents, cdi_spec=text, absent_nodes=absent, gpus=gpus)


def probe_adoption(host: Host, options: Options) -> Facts:
    """Return everything that tells what NVIDIA's own installer left.

    Raises:
        InstallerError: no engine runs here, or a config cannot be read.
    """
    found = find_engines(host, options, Record())
    for error in found.refused.values():
        raise error
    engines = tuple(replace(engine, hooks=tuple(list_hooks(host, engine))) for engine in found.engines)
    return replace(_facts(host, options, Record(), engines), notes=found.notes)


def probe_undo(host: Host, options: Options, record: Record, *, awaits_s: float = inf) -> Facts:
    """Return everything that an undo depends on: what the ledger names, and nothing else.

    An engine that is between two lives is waited for as long as it takes, ``awaits_s`` at most.

    Raises:
        InstallerError: a config or a saved copy cannot be read.
    """
    told, record = record, _by_now(host, options, record)
    engines = []
    for row in record.engines:
        if ENGINES[row.name].reload is ReloadMethod.RESTART and not record.finished:
            # A restart that was asked for before a crash, or before a stop, may be going on.
            units.await_no_job(host, row.unit, timeout_s=ASK_S)
        paths = (config.path for config in record.configs if config.engine == row.name)
        engines.append(observe_row(host, row, paths, options, awaits_s=awaits_s))
    named = {path for engine in ENGINES.values() for path in usual_configs(host, engine)}
    named |= {path for places in options.places.values() for path in (places.config, places.drop_in) if path}
    named |= {
        path for each in engines if (path := path_of(each.next_words, ENGINES[each.name].cmdline.config))
    }
    facts = _with_taken_over(_facts(host, options, record, tuple(engines), named), told)
    facts = with_references(host, facts, options.layout)
    restarts = options.restart_mode is not RestartMode.NONE
    used, idle = in_use(host, options.layout, record, engines, restarts=restarts)
    return replace(
        facts, running=used, idle=idle, low_level=find_substitute_runtime(host, record) if used else None
    )


def _with_taken_over(facts: Facts, told: Record) -> Facts:
    """Return the facts with what the ledger ``told`` of a node that is another installer's by now."""
    aside = facts.toolkit.replaced and told.toolkit is not None and told.toolkit.replaced
    taken = replace(facts.toolkit, superseded=aside, defaults=former_defaults(told))
    return replace(facts, toolkit=taken) if facts.toolkit.theirs else facts


def _by_now(host: Host, options: Options, told: Record) -> Record:
    """Return the rows that are ours by now, and those of copies, and of places that links led to."""
    held = still_ours(host, options.layout, told)
    configs, known = [], {row.path for row in held.configs}
    for row in held.configs:
        led = {row.target} - {None, host.resolve(row.path)}
        others = sorted({*filter(None, led), *_copies(host, row)} - known)
        configs += [row, *(replace(row, path=path, target=None) for path in others)]
    return replace(held, configs=tuple(configs))


def _copies(host: Host, row: ConfigRow) -> Iterator[PurePosixPath]:
    engine = ENGINES.get(row.engine)
    if engine is not None and row.path == engine.config and row.written:
        copies = contents_of(host, copies_of(host, engine))
        yield from (path for path, now in copies.items() if now is not None and holds_ours(row, now))


def _facts(
    host: Host,
    options: Options,
    record: Record,
    engines: tuple[EngineState, ...],
    more: Collection[PurePosixPath] = (),
) -> Facts:
    paths = {
        *more,
        *(path for engine in engines for path in (*engine.files, *engine.hooks, *targets_of(engine))),
    }
    paths |= {row.path for row in record.configs}
    layout = options.layout
    relinked = linked_since(host, record.configs)
    link = host.link_target(layout.toolkit)
    config = host.read(layout.config)
    versions = (name for name in host.names(layout.versions) if not name.startswith("."))
    facts = Facts(
        # Such a link goes with our file.
        engines=tuple(replace(each, unreadable=each.unreadable - relinked.keys()) for each in engines),
        contents=contents_of(host, paths),
        originals={row.path: original_of(host, layout, row) for row in record.configs},
        lost=frozenset(row.path for row in record.configs if is_lost(host, layout, row)),
        missing=frozenset(missing_above(host, {row.path for row in record.configs})),
        artifacts=(),
        toolkit=ToolkitFacts(
            kind=host.kind(layout.toolkit, last=False),
            link=link or "",
            versions={name: entries(host, layout.version(name)) for name in versions},
            config=text_of(config, layout.config) if config else None,
            replaced=host.kind(layout.replaced, last=False) is Kind.DIRECTORY,
            theirs=record.toolkit is None and is_theirs(host, layout),
        ),
        held=record,
        held_nodes=tuple(now for node in record.nodes if (now := held_node(host, node)) is not None),
        relinked=relinked,
    )
    return replace(facts, links=links_named(host, facts, layout))


def moved(host: Host, options: Options, contents: Iterable[File | None]) -> Iterator[InstallerError]:
    """Yield why an install-dir cannot move: an engine still names the toolkit in another one of ours."""
    files = [file for file in contents if file is not None]
    found = {place for file in files for place in TOOLKITS.findall(file.content)}
    for place in sorted(PurePosixPath(path.decode(errors="surrogateescape")) for path in found):
        if place != options.install_dir and host.exists(Layout(place).ledger):
            yield InstallerError(
                f"install into {options.install_dir} (the toolkit in {place} is still in use)",
                remedy=f"free that first: toolkit-installer uninstall --install-dir {place}",
                code="installed-elsewhere",
            )


def in_place(host: Host, layout: Layout) -> PurePosixPath | None:
    """Return the directory of the version of ours that the toolkit's name leads to."""
    link = host.link_target(layout.toolkit) or ""
    return layout.install_dir / link if link.startswith(VERSIONS) else None
