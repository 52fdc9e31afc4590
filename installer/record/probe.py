"""The host as it is: reads only."""

from collections.abc import Collection, Iterable, Iterator
from math import inf
from pathlib import PurePosixPath

from installer.decide.configs import text_of
from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts, ToolkitFacts
from installer.decide.former import holds_ours
from installer.decide.inode import Kind
from installer.decide.mode import SPECIFICATION, mode_of
from installer.decide.options import Cdi, Options, Places, RestartMode
from installer.decide.rows import ConfigRow, Record
from installer.host.artifacts import asked_version, found_artifacts, machine
from installer.host.digests import digests_below, sums_of
from installer.host.entries import entries
from installer.host.files import Host
from installer.record import reads, units
from installer.record.access import install_dir_obstacles, unusable
from installer.record.await_idle import with_creating
from installer.record.cdi import absent_nodes, specification
from installer.record.cmdline import path_of
from installer.record.configs import (
    contents_of,
    copies_of,
    usual_configs,
    with_put_back,
    with_readable_configs,
)
from installer.record.device_nodes import held_node
from installer.record.engines import ASK_S
from installer.record.found import answered, ask_for, running_engines
from installer.record.gpus import gpu_specification
from installer.record.handed import with_handed, with_unnamed
from installer.record.hints import (
    driver_root,
    in_place,
    is_suse,
    moved,
    served_by_image,
    without_unused,
)
from installer.record.hooks import hook_files
from installer.record.ledger import is_lost, original_of
from installer.record.links import links_named, loops
from installer.record.located import located
from installer.record.other_engines import with_other_engines
from installer.record.own_toolkit import noted_digests
from installer.record.reloadable import unit_obstacles
from installer.record.running import in_use, low_level_runtime
from installer.record.targets import led_elsewhere, missing_above, targets_of, unwritable
from installer.record.theirs import former_defaults, is_theirs, still_ours
from installer.record.write import linked_since


def probe_install(host: Host, options: Options, held: Record) -> Facts:
    """Return everything that an install depends on.

    Raises:
        InstallerError: no engine runs here, or a config cannot be read or replaced.
    """
    told, held = held, _by_now(host, options, held)
    sums, version_in_place = sums_of(options.toolkit_source), in_place(host, options.layout)
    # Hashing the payload and asking the engines wait for different things.
    with (
        found_artifacts(options.toolkit_source, sums) as artifacts,
        asked_version(options.toolkit_source, sums) as version,
        digests_below(host, version_in_place, noted_digests(host, version_in_place)) as digests,
    ):
        found = running_engines(host, options, held)
        engines, left = without_unused(host, held, found.engines) if options.auto else (found.engines, ())
        if options.restart_mode is RestartMode.WHEN_IDLE:
            engines = with_creating(host, engines)
        facts = _with_taken_over(_facts(host, options, held, engines), told)
        facts = _with_specifications(host, options, facts)
        targets = _targets(options, facts)
        facts = _with_node(host, options, _with_targets(host, facts, targets))
        overruled = found.overruled if facts.gpus is None else ()
        facts = replace(
            facts,
            obstacles=(*_obstacles(host, options, facts, targets), *overruled),
            refused=found.refused,
            notes=(*found.notes, *left, *facts.notes),
            running=in_use(host, options.layout, held, engines)[0],
            version=version(),
            toolkit=replace(facts.toolkit, digests=digests()),
        )
        payload = artifacts()
        scripts = {artifact.interpreter for artifact in payload if artifact.interpreter is not None}
        absent = frozenset(path for path in scripts if host.kind(path) is not Kind.FILE)
        obstacles = (*facts.obstacles, *loops(host, options, payload))
        return replace(facts, artifacts=payload, absent_interpreters=absent, obstacles=obstacles)


def _with_targets(host: Host, facts: Facts, targets: Collection[PurePosixPath]) -> Facts:
    """Return the facts with where the configs that may be written are, and what is missing above them."""
    linked = {host.resolve(path) for path in targets if host.link_target(path) is not None}
    return replace(
        facts,
        missing=frozenset(missing_above(host, {*targets, *linked})),
        unwritable=unwritable(host, targets),
        targets=led_elsewhere(host, {*targets, *(path for engine in facts.engines for path in engine.files)}),
    )


def _with_node(host: Host, options: Options, facts: Facts) -> Facts:
    """Return the facts with what the node is: its machine, family, driver, space."""
    driver, notes = driver_root(host, options)
    return replace(
        facts,
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
    if options.cdi is not None:
        facts = _with_cdi(host, options, options.cdi, facts)
    if not mode_of(facts.engines, facts.held, options)[0].by_cdi:
        return facts
    # Read once: whose it is and what is replaced are the same text, also where somebody writes meanwhile.
    now = host.read(SPECIFICATION)
    found = gpu_specification(host, options, facts.engines, facts.held, now)
    return replace(facts, contents={**facts.contents, SPECIFICATION: now}, gpus=found)


def _with_cdi(host: Host, options: Options, cdi: Cdi, facts: Facts) -> Facts:
    """Return the facts with all that CDI depends on: the specification names the nodes that are there."""
    absent = absent_nodes(host, cdi)
    return replace(
        facts,
        contents={**facts.contents, cdi.path: host.read(cdi.path)},
        cdi_spec=None if absent else specification(options.toolkit_source, options.layout, cdi),
        absent_nodes=absent,
    )


def probe_adoption(host: Host, options: Options) -> Facts:
    """Return everything that tells what NVIDIA's own installer left.

    Raises:
        InstallerError: no engine runs here, or a config cannot be read.
    """
    found = running_engines(host, options, Record())
    for error in found.refused.values():
        raise error
    engines = tuple(replace(engine, hooks=tuple(hook_files(host, engine))) for engine in found.engines)
    return replace(_facts(host, options, Record(), engines), notes=found.notes)


def probe_undo(host: Host, options: Options, held: Record, *, awaits_s: float = inf) -> Facts:
    """Return everything that an undo depends on: what the ledger names, and nothing else.

    An engine that is between two lives is waited for as long as it takes, ``awaits_s`` at most.

    Raises:
        InstallerError: a config or a saved copy cannot be read.
    """
    told, held = held, _by_now(host, options, held)
    engines = []
    for row in held.engines:
        engine = ENGINES[row.name]
        paths = tuple(config.path for config in held.configs if config.engine == row.name)
        found = EngineFacts(row.name, engine.config, engine.drop_in, None, (), row.socket, row.unit)
        if engine.reload is ReloadMethod.RESTART and not held.finished:
            # A restart that was asked for before a crash, or before a stop, may be going on.
            units.await_no_job(host, row.unit, timeout_s=ASK_S)
        found, answer = located(host, found, ask_for(host, engine, found, options, awaits_s), row, options)
        process = reads.process_of(host, found, answer.peer)
        found = reads.with_places(host, found, process.cmdline, Places())
        found = answered(host, found, answer)
        found = replace(found, outdated=reads.outdated(host, engine, process.at_s, paths))
        found = with_readable_configs(host, engine, found)
        engines.append(replace(found, files=tuple(dict.fromkeys((*found.files, *paths)))))
    named = {path for engine in ENGINES.values() for path in usual_configs(host, engine)}
    named |= {path for places in options.places.values() for path in (places.config, places.drop_in) if path}
    named |= {
        path for each in engines if (path := path_of(each.next_words, ENGINES[each.name].cmdline.config))
    }
    facts = _with_taken_over(_facts(host, options, held, tuple(engines), named), told)
    facts = with_handed(host, facts, options.layout)
    facts = with_other_engines(host, with_unnamed(host, facts, options.layout), options.layout)
    restarts = options.restart_mode is not RestartMode.NONE
    used, idle = in_use(host, options.layout, held, engines, restarts=restarts)
    return replace(facts, running=used, idle=idle, low_level=low_level_runtime(host, held) if used else None)


def _with_taken_over(facts: Facts, told: Record) -> Facts:
    """Return the facts with what the ledger ``told`` of a node that is another installer's by now."""
    aside = facts.toolkit.replaced and told.toolkit is not None and told.toolkit.replaced
    taken = replace(facts.toolkit, superseded=aside, defaults=former_defaults(told))
    return replace(facts, toolkit=taken) if facts.toolkit.theirs else facts


def _by_now(host: Host, options: Options, told: Record) -> Record:
    """Return the rows that are ours by now, and those of copies, and of places that links led to."""
    held = with_put_back(host, still_ours(host, options.layout, told))
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
    held: Record,
    engines: tuple[EngineFacts, ...],
    more: Collection[PurePosixPath] = (),
) -> Facts:
    paths = {
        *more,
        *(path for engine in engines for path in (*engine.files, *engine.hooks, *targets_of(engine))),
    }
    paths |= {row.path for row in held.configs}
    layout = options.layout
    relinked = linked_since(host, held.configs)
    link = host.link_target(layout.toolkit)
    config = host.read(layout.config)
    versions = (name for name in host.names(layout.versions) if not name.startswith("."))
    facts = Facts(
        # Such a link goes with our file.
        engines=tuple(replace(each, unreadable=each.unreadable - relinked.keys()) for each in engines),
        contents=contents_of(host, paths),
        originals={row.path: original_of(host, layout, row) for row in held.configs},
        lost=frozenset(row.path for row in held.configs if is_lost(host, layout, row)),
        missing=frozenset(missing_above(host, {row.path for row in held.configs})),
        artifacts=(),
        toolkit=ToolkitFacts(
            kind=host.kind(layout.toolkit, last=False),
            link=link or "",
            versions={name: entries(host, layout.version(name)) for name in versions},
            config=text_of(config, layout.config) if config else None,
            replaced=host.kind(layout.replaced, last=False) is Kind.DIRECTORY,
            theirs=held.toolkit is None and is_theirs(host, layout),
        ),
        held=held,
        held_nodes=tuple(now for node in held.nodes if (now := held_node(host, node)) is not None),
        relinked=relinked,
    )
    return replace(facts, links=links_named(host, facts, layout))
