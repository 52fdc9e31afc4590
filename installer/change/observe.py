"""The host as it is: reads only."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from pathlib import PurePosixPath
from platform import machine
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from installer.cdi.generate import absent_nodes, gpu_specification, held_node, management_specification
from installer.cdi.plan import SPECIFICATION, mode_of
from installer.change.ledger import read_saved
from installer.change.search import Search, find_loops, find_moved
from installer.engines import ENGINES, config_files
from installer.engines.config_edits import holds_ours, text_of
from installer.engines.containers import find_in_use, find_substitute_runtime, list_hooks
from installer.engines.dependencies import driver_root, is_suse, served_by_image
from installer.engines.observe import drop_unused, explain_absence, find_engines, observe_row
from installer.engines.restart import ASK_S, with_creating
from installer.engines.startup import path_of, unit_obstacles
from installer.errors import InstallerError
from installer.host import unit_jobs
from installer.host.files import Host, entries
from installer.host.trees import digests_below, sums_of
from installer.model.engine_spec import ReloadMethod
from installer.model.facts import (
    CdiFacts,
    ContainerFacts,
    DriverFacts,
    EngineState,
    Facts,
    PayloadFacts,
    ToolkitFacts,
)
from installer.model.files import VERSIONS, File, Kind
from installer.model.options import Options, RestartMode
from installer.model.record import Record
from installer.payload import installed


class _Node(Struct, frozen=True):
    """What was read of the node; ``former`` is the ledger of a node that may be another installer's now."""

    host: Host
    options: Options
    former: Record
    record: Record
    engines: tuple[EngineState, ...]
    contents: Mapping[PurePosixPath, File | None]

    def facts(
        self,
        *,
        writes: Collection[PurePosixPath] = (),
        deep: bool = False,
        seeks_references: bool = False,
        **of_verb: Any,
    ) -> Facts:
        """Return the facts: what every verb depends on, and what is ``of_verb`` alone.

        ``deep`` hashes the payload in place; ``writes`` are files besides the ledger's that may be written.
        """
        host, layout, rows = self.host, self.options.layout, self.record.configs
        relinked = config_files.find_new_links(host, rows)
        search = Search(host, layout, self.engines, self.contents, self.record)
        references = tuple(search.find_references()) if seeks_references else ()
        links, returning = search.follow_links(references)
        originals = {row.path: read_saved(host, layout, row.original) for row in rows}
        return Facts(
            # Such a link goes with our file.
            tuple(replace(each, unreadable=each.unreadable - relinked.keys()) for each in self.engines),
            self.contents,
            originals,
            frozenset(config_files.list_missing_directories(host, writes or {row.path for row in rows})),
            self._read_toolkit(deep=deep),
            self.record,
            lost=frozenset(row.path for row in rows if row.original and originals[row.path] is None),
            relinked=relinked,
            links=links,
            references=references,
            returning=returning,
            **of_verb,
        )

    def _read_toolkit(self, *, deep: bool) -> ToolkitFacts:
        host, layout, former = self.host, self.options.layout, self.former
        link, config = host.link_target(layout.toolkit) or "", host.read(layout.config)
        replaced = host.kind(layout.replaced, last=False) is Kind.DIRECTORY
        theirs = self.record.toolkit is None and installed.is_foreign_toolkit(host, layout)
        versions = (name for name in host.names(layout.versions) if not name.startswith("."))
        return ToolkitFacts(
            host.kind(layout.toolkit, last=False),
            link,
            {name: entries(host, layout.version(name)) for name in versions},
            text_of(config, layout.config) if config else None,
            replaced,
            theirs,
            superseded=theirs and replaced and former.toolkit is not None and former.toolkit.replaced,
            defaults=installed.list_former_defaults(former) if theirs else {},
            digests=digests_below(host, layout.install_dir / link)
            if deep and link.startswith(VERSIONS)
            else {},
        )

    def find_obstacles(self, targets: Iterable[PurePosixPath], *, by_cdi: bool) -> Iterator[InstallerError]:
        """Yield what stands against any install on this node."""
        host, options = self.host, self.options
        if self.engines:
            yield from served_by_image(host)
        yield from installed.find_mount_flaws(host, options.install_dir)
        yield from installed.install_dir_obstacles(host, options.install_dir)
        if not by_cdi:
            yield from unit_obstacles(host, options, self.engines)
        yield from find_moved(host, options, self.contents.values())
        for path in sorted(targets):
            try:
                host.refuse_unreplaceable(path)
            except InstallerError as error:
                yield error


def observe_install(host: Host, options: Options, record: Record, patience_s: float = 0.0) -> Facts:
    """Return what an install depends on; an engine that has crashed is waited for ``patience_s``."""
    former, record = record, _list_held(host, options, record)
    found = find_engines(host, options, record, patience_s)
    engines, unused = drop_unused(host, record, found.engines) if options.auto else (found.engines, ())
    if unused and not engines:
        raise explain_absence(host, options, unused)
    if options.restart_mode is RestartMode.WHEN_IDLE:
        engines = with_creating(host, engines)
    # Read once: whose it is and what is replaced are the same text, also where it is written meanwhile.
    by_cdi = mode_of(engines, record, options)[0].by_cdi
    gpu_file = {SPECIFICATION: host.read(SPECIFICATION)} if by_cdi else {}
    cdi = _read_cdi(host, options, engines, record, gpu_file)
    specifications = {options.cdi.path} if options.cdi is not None else set()
    targets = specifications | gpu_file.keys()
    for engine in engines if not by_cdi else ():
        targets |= {*config_files.list_targets(engine)}
    contents = _read_configs(host, record, engines, specifications) | gpu_file
    node = _Node(host, options, former, record, engines, contents)
    obstacles = (*node.find_obstacles(targets, by_cdi=by_cdi),)
    running = find_in_use(host, options.layout, record, engines)[0]
    source = options.toolkit_source
    artifacts = installed.read_artifacts(source, sums := sums_of(source))
    scripts = {artifact.interpreter for artifact in artifacts if artifact.interpreter is not None}
    absent = frozenset(path for path in scripts if host.kind(path) is not Kind.FILE)
    version, free_bytes = installed.ask_version(source, sums), host.free_bytes(options.install_dir)
    driver, notes = driver_root(host, options)
    ldconfig_real = host.kind(PurePosixPath(driver, "sbin/ldconfig.real")) is Kind.FILE
    loops = find_loops(host, options, artifacts)
    read = targets.union(*(engine.files for engine in engines))
    return node.facts(
        writes=targets | {host.resolve(path) for path in targets if host.link_target(path) is not None},
        deep=True,
        payload=PayloadFacts(artifacts, absent, version, free_bytes, machine()),
        driver=DriverFacts(driver, ldconfig_real, is_suse(host)),
        cdi=cdi,
        containers=ContainerFacts(running),
        targets={path: real for path in read if (real := host.resolve(path)) != path},
        refused=found.refused,
        unwritable=config_files.explain_unwritable(host, targets),
        obstacles=(*obstacles, *(() if by_cdi else found.overruled), *loops),
        notes=(*found.notes, *unused, *notes),
    )


def _read_cdi(
    host: Host,
    options: Options,
    engines: tuple[EngineState, ...],
    record: Record,
    gpu_file: Mapping[PurePosixPath, File | None],
) -> CdiFacts:
    wanted = options.cdi
    absent = absent_nodes(host, wanted) if wanted is not None else ()
    return CdiFacts(
        # It names the device nodes that are there.
        management_specification(options.toolkit_source, options.layout, wanted)
        if wanted is not None and not absent
        else None,
        absent,
        tuple(now for node in record.nodes if (now := held_node(host, node)) is not None),
        gpu_specification(host, options, engines, record, gpu_file[SPECIFICATION]) if gpu_file else None,
    )


def observe_adoption(host: Host, options: Options) -> Facts:
    """Return what NVIDIA's own installer left; InstallerError: no engine runs, or a config cannot be read."""
    found, record = find_engines(host, options, Record()), Record()
    for error in found.refused.values():
        raise error
    engines = tuple(replace(engine, hooks=tuple(list_hooks(host, engine))) for engine in found.engines)
    contents = _read_configs(host, record, engines)
    return _Node(host, options, record, record, engines, contents).facts(notes=found.notes)


def observe_undo(host: Host, options: Options, record: Record, *, awaits_s: float = inf) -> Facts:
    """Return what an undo depends on; an engine between two lives is waited for, ``awaits_s`` at most."""
    former, record = record, _list_held(host, options, record)
    engines = []
    for row in record.engines:
        if row.spec.reload is ReloadMethod.RESTART and not record.finished:
            # A restart that was asked for before a crash, or before a stop, may be going on.
            unit_jobs.await_no_job(host, row.unit, timeout_s=ASK_S)
        paths = (config.path for config in record.configs if config.engine == row.name)
        engines.append(observe_row(host, row, paths, options, awaits_s=awaits_s))
    more = {path for engine in ENGINES.values() for path in config_files.usual_configs(host, engine)}
    more |= {path for places in options.places.values() for path in (places.config, places.drop_in) if path}
    more |= {path for each in engines if (path := path_of(each.next_words, each.spec.cmdline.config))}
    contents = _read_configs(host, record, engines, more)
    running, idle = find_in_use(
        host, options.layout, record, engines, restarts=options.restart_mode is not RestartMode.NONE
    )
    low_level = find_substitute_runtime(host, record) if running else None
    node = _Node(host, options, former, record, tuple(engines), contents)
    return node.facts(seeks_references=True, containers=ContainerFacts(running, idle, low_level))


def _list_held(host: Host, options: Options, former: Record) -> Record:
    """Return the rows that are ours still, and those of copies, and of places that links led to."""
    held = installed.drop_foreign(host, options.layout, former)
    configs, known = [], {row.path for row in held.configs}
    for row in held.configs:
        others = {row.target} - {None, host.resolve(row.path)}
        engine = ENGINES.get(row.engine)
        if engine is not None and row.path == engine.config and row.written:
            copies = config_files.contents_of(host, config_files.copies_of(host, engine))
            others |= {path for path, now in copies.items() if now is not None and holds_ours(row, now)}
        more = sorted({*filter(None, others)} - known)
        configs += [row, *(replace(row, path=path, target=None) for path in more)]
    return replace(held, configs=tuple(configs))


def _read_configs(
    host: Host, record: Record, engines: Iterable[EngineState], more: Iterable[PurePosixPath] = ()
) -> dict[PurePosixPath, File | None]:
    """Return all configs that engines read or that are held, and those that may be written."""
    paths = {*more, *(row.path for row in record.configs)}
    for each in engines:
        paths |= {*each.files, *each.hooks, *config_files.list_targets(each)}
    return config_files.contents_of(host, paths)
