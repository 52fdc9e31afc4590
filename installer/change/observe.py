"""Observe the node for a verb, reading only: the facts of an install, of an undo, and of an adoption."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from pathlib import PurePosixPath
from platform import machine
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from installer.cdi.generate import absent_nodes, gpu_specification, held_node, management_specification
from installer.cdi.plan import SPECIFICATION, mode_of
from installer.change.ledger import read_saved
from installer.change.reference_search import ReferenceSearch
from installer.engines import ENGINES, config_files
from installer.engines.ask import ASK_S
from installer.engines.config_edits import holds_ours
from installer.engines.config_texts import text_of
from installer.engines.container_records import with_live_containers
from installer.engines.containers import find_in_use, find_programs_in_use, list_hooks
from installer.engines.dependencies import driver_root, is_suse, served_by_image
from installer.engines.low_level import find_substitute_runtime
from installer.engines.observe import RunningEngines, drop_unused, explain_absence, find_engines, observe_row
from installer.engines.reload import with_creating
from installer.engines.restarted_units import list_down
from installer.engines.startup import find_unit_obstacles, path_of
from installer.engines.toolkit_paths import COMMENT, comes_back, leads_to
from installer.engines.used_configs import list_configs_of_next_starts
from installer.errors import InstallerError, Option, Remedy
from installer.host import unit_jobs
from installer.host.files import Host, entries, is_immutable, text
from installer.host.trees import digests_below, sums_of
from installer.model.engine import EngineState
from installer.model.facts import (
    CdiFacts,
    ContainerFacts,
    DeviceNode,
    DriverFacts,
    Facts,
    PayloadFacts,
    Record,
    Reference,
    SpecialVersion,
    ToolkitFacts,
)
from installer.model.files import VERSIONS, Artifact, Entry, File, Kind, Layout, host_path
from installer.model.options import Options, Places, RestartMode
from installer.payload import access
from installer.payload.config_toml import HOST_CONFIG
from installer.payload.files import REQUIRED, list_carried, list_foreign

TOOLKITS: Final = re.compile(rb"""["'](/[^"'\n]*)/toolkit/nvidia-container-runtime(?:-hook)?["'.]""")


class Node(Struct, frozen=True):
    """The node as it was read.

    ``former`` is the ledger as it was written; ``record`` leaves out the rows that now belong to
    another installer.
    """

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
        """Return the facts of a verb.

        Args:
            writes: the files that may be written; by default the configs of the ledger.
            deep: whether to hash the installed payload.
            seeks_references: whether to search the node for references to the toolkit.
            of_verb: the facts of this verb alone, as fields of ``Facts``.
        """
        host = self.host
        layout = self.options.layout
        rows = self.record.configs
        relinked = config_files.find_new_links(host, rows)
        search = ReferenceSearch(host, layout, self.record, self.engines, self.contents)
        references: tuple[Reference, ...] = ()
        if seeks_references:
            references = tuple(search.search())
        users = tuple(find_programs_in_use(host, layout, self.record, self.engines))
        named = search.follow_links((*references, *users))
        originals = {row.path: read_saved(host, layout, row.original) for row in rows}
        # A link in the place of our file goes with the file, so it counts as readable.
        engines = [replace(each, unreadable=each.unreadable - relinked.keys()) for each in self.engines]
        if not writes:
            writes = {row.path for row in rows}
        missing = config_files.list_missing_directories(host, writes)
        lost = set()
        for row in rows:
            if row.original and originals[row.path] is None:
                lost.add(row.path)
        return Facts(
            engines=tuple(engines),
            contents=self.contents,
            originals=originals,
            missing=frozenset(missing),
            toolkit=self._read_toolkit(deep=deep),
            record=self.record,
            lost=frozenset(lost),
            relinked=relinked,
            links=named.links,
            references=references,
            users=users,
            returning=named.returning,
            in_toolkit=named.in_toolkit,
            portable=named.portable,
            **of_verb,
        )

    def holds_files_of_others(self) -> bool:
        """Tell whether the toolkit's directory has files that are not ours; any text may name these."""
        layout = self.options.layout
        link = self.host.link_target(layout.toolkit)
        if link is None:
            return self.host.exists(layout.toolkit)
        row = self.record.toolkit
        if row is None or link != f"{VERSIONS}{row.version}":
            return True
        return any(list_foreign(row.files, entries(self.host, layout.toolkit)))

    def _read_toolkit(self, *, deep: bool) -> ToolkitFacts:
        host = self.host
        layout = self.options.layout
        former_row = self.former.toolkit
        link = host.link_target(layout.toolkit) or ""
        config = host.read(layout.config)
        replaced = host.kind(layout.replaced, last=False) is Kind.DIRECTORY
        theirs = self.record.toolkit is None and access.is_foreign_toolkit(host, layout)
        version_names = host.names(layout.versions)
        kind = host.kind(layout.toolkit, last=False)
        versions = {}
        for name in version_names:
            if not name.startswith("."):
                versions[name] = entries(host, layout.version(name))
        restored = set()
        for name in list_carried(self.record.toolkit.files if self.record.toolkit else {}):
            if comes_back(host, layout, layout.toolkit / name):
                restored.add(name)
        config_text = text_of(config, layout.config) if config else None
        digests: Mapping[PurePosixPath, str] = {}
        if deep and link.startswith(VERSIONS):
            digests = digests_below(host, layout.install_dir / link)
        return ToolkitFacts(
            kind,
            link,
            versions,
            config_text,
            replaced,
            theirs,
            superseded=theirs and replaced and former_row is not None and former_row.replaced,
            digests=digests,
            restored=frozenset(restored),
            immutable=self._find_immutable(versions),
        )

    def _find_immutable(self, versions: Mapping[str, Mapping[PurePosixPath, Entry]]) -> PurePosixPath | None:
        """Return the first file or directory that root cannot remove or change.

        Looked at are the directories of the installation, the toolkit's place and the versions.
        """
        layout = self.options.layout
        paths = [layout.install_dir, layout.home, layout.versions, layout.backups]
        if self.host.kind(layout.toolkit, last=False) is Kind.DIRECTORY:
            paths.append(layout.toolkit)
        for name, version in versions.items():
            paths += [layout.version(name) / path for path, entry in version.items() if not entry.link]
        return next((path for path in paths if is_immutable(self.host, path)), None)

    def find_obstacles(self, targets: Iterable[PurePosixPath], *, by_cdi: bool) -> Iterator[InstallerError]:
        """Yield the obstacles of any install on this node."""
        host = self.host
        options = self.options
        if self.engines:
            yield from served_by_image(host)
        yield from access.install_dir_obstacles(host, options.install_dir)
        if not by_cdi:
            yield from find_unit_obstacles(host, options, self.engines)
        yield from find_moved(host, options, self.contents.values())
        for path in sorted(targets):
            try:
                host.refuse_hard_linked(path)
            except InstallerError as error:
                yield error


# For a config of an engine that this install does not touch.
LEFT: Final = "{} of an earlier install cannot be replaced here: a stop has systemd undo it on the host"


def observe_install(host: Host, options: Options, record: Record, patience_s: float = 0.0) -> Facts:
    """Return the facts of an install.

    Args:
        host: the node.
        options: the options of the install.
        record: the ledger.
        patience_s: how long to wait for a crashed engine.
    """
    former = record
    record = _complete_record(host, options, record)
    found = find_engines(host, options, record, patience_s)
    engines, unused = _select_engines(host, options, record, found)
    mode, _ = mode_of(engines, record, options)
    by_cdi = mode.by_cdi

    # The specification is read once: others may write it before the plan compares and replaces it.
    gpu_file: dict[PurePosixPath, File | None] = {}
    if by_cdi:
        gpu_file = {SPECIFICATION: host.read(SPECIFICATION)}
    cdi = _read_cdi(host, options, engines, record, gpu_file)
    specifications = {options.cdi.path} if options.cdi is not None else set()
    targets = specifications | gpu_file.keys()
    if not by_cdi:
        for engine in engines:
            targets |= {*config_files.list_targets(engine)}
    contents = _read_configs(host, record, engines, specifications) | gpu_file
    node = Node(host, options, former, record, engines, contents)

    payload = _read_payload(host, options)
    driver, notes = _read_driver(host, options)
    obstacles = [*node.find_obstacles(targets, by_cdi=by_cdi)]
    if not by_cdi:
        obstacles += found.overruled
    obstacles += find_loops(host, options, payload.artifacts)
    running, _ = find_in_use(host, options.layout, record, engines)
    untouched = {row.path for row in record.configs} - targets
    read_only = config_files.explain_unwritable(host, untouched)
    read = set(targets)
    for engine in engines:
        read.update(engine.files)
    return node.facts(
        writes=targets | _list_link_targets(host, targets),
        deep=True,
        seeks_references=node.holds_files_of_others(),
        payload=payload,
        driver=driver,
        cdi=cdi,
        containers=ContainerFacts(running),
        targets=_find_real_paths(host, read),
        refused=found.refused,
        unwritable=config_files.explain_unwritable(host, targets),
        obstacles=tuple(obstacles),
        notes=(*found.notes, *unused, *notes, *map(LEFT.format, sorted(read_only))),
    )


def _select_engines(
    host: Host, options: Options, record: Record, found: RunningEngines
) -> tuple[tuple[EngineState, ...], tuple[str, ...]]:
    """Return the engines to install for, with their containers, and notes about the other engines.

    Raises:
        InstallerError: no engine is used.
    """
    engines = found.engines
    unused: tuple[str, ...] = ()
    if options.auto:
        engines, unused = drop_unused(host, record, found.engines)
    if unused and not engines:
        raise explain_absence(host, options, unused)
    if options.restart_mode is RestartMode.WHEN_IDLE:
        engines = with_creating(host, engines)
    return tuple(with_live_containers(host, engine) for engine in engines), unused


def _read_driver(host: Host, options: Options) -> tuple[DriverFacts, tuple[str, ...]]:
    """Return the facts of NVIDIA's driver, and notes about the driver."""
    root, notes = driver_root(host, options)
    ldconfig_real = host.kind(PurePosixPath(root, "sbin/ldconfig.real")) is Kind.FILE
    host_config = ""
    if host.resolve(HOST_CONFIG) != host.resolve(options.layout.config):
        host_config = text(host, HOST_CONFIG)
    return DriverFacts(root, ldconfig_real, is_suse(host), host_config), notes


def _list_link_targets(host: Host, paths: Iterable[PurePosixPath]) -> set[PurePosixPath]:
    """Return the files behind those paths that are symbolic links."""
    real_paths = set()
    for path in paths:
        if host.link_target(path) is not None:
            real_paths.add(host.resolve(path))
    return real_paths


def _read_payload(host: Host, options: Options) -> PayloadFacts:
    """Return the facts of the toolkit to install, and of the free space."""
    source = options.toolkit_source
    sums = sums_of(source)
    artifacts = access.read_artifacts(source, sums)
    interpreters = {artifact.interpreter for artifact in artifacts if artifact.interpreter is not None}
    absent = set()
    for path in interpreters:
        if host.kind(path) is not Kind.FILE:
            absent.add(path)
    version = access.ask_version(source, sums)
    free_bytes = host.free_bytes(options.install_dir)
    complete_root = None
    if len(artifacts) < len(REQUIRED):
        complete_root = access.find_complete_root(source)
    return PayloadFacts(
        artifacts,
        frozenset(absent),
        version,
        free_bytes,
        machine(),
        source_flaw=access.explain_source(source),
        complete_root=complete_root,
    )


def _find_real_paths(host: Host, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, PurePosixPath]:
    """Return the real path of each path with a link in it."""
    real_paths = {}
    for path in paths:
        real = host.resolve(path)
        if real != path:
            real_paths[path] = real
    return real_paths


def _read_cdi(
    host: Host,
    options: Options,
    engines: tuple[EngineState, ...],
    record: Record,
    gpu_file: Mapping[PurePosixPath, File | None],
) -> CdiFacts:
    """Return the facts of CDI; ``gpu_file`` holds the present specification of the GPUs, in CDI mode."""
    wanted = options.cdi
    absent: tuple[DeviceNode, ...] = ()
    management = None
    if wanted is not None:
        absent = absent_nodes(host, wanted)
        # The specification names the device nodes, so it is generated after all of them exist.
        if not absent:
            management = management_specification(options.toolkit_source, options.layout, wanted)
    nodes = []
    for row in record.nodes:
        node = held_node(host, row)
        if node is not None:
            nodes.append(node)
    gpus = None
    if gpu_file:
        gpus = gpu_specification(host, options, engines, record, gpu_file[SPECIFICATION])
    return CdiFacts(management, absent, tuple(nodes), gpus)


def observe_adoption(host: Host, options: Options, more: Iterable[PurePosixPath] = ()) -> Facts:
    """Observe the edits of NVIDIA's own installer; engines may not read the configs of ``more``.

    Raises:
        InstallerError: no engine runs, or a config cannot be read.
    """
    record = Record()
    found = find_engines(host, options, record)
    refusal = next(iter(found.refused.values()), None)
    if refusal is not None:
        raise refusal
    engines = []
    for engine in found.engines:
        hooks = tuple(list_hooks(host, engine))
        places = options.places.get(engine.name, Places())
        engines.append(replace(_with_next_configs(host, engine, places), hooks=hooks))
    contents = _read_configs(host, record, engines, more)
    return Node(host, options, record, record, tuple(engines), contents).facts(notes=found.notes)


def _with_next_configs(host: Host, engine: EngineState, places: Places) -> EngineState:
    """Fill in the configs that a stopped engine will read: its unit may name an unusual place.

    Raises:
        InstallerError: the root file is not valid.
    """
    if not engine.stopped or engine.next_start is None or engine.kind.built_in_runtime:
        return engine
    started = config_files.with_places(host, replace(engine, started=engine.next_start), places)
    return config_files.with_configs(host, replace(started, started=engine.started))


def observe_undo(host: Host, options: Options, record: Record, *, awaits_s: float = inf) -> Facts:
    """Return the facts of an undo.

    Args:
        host: the node.
        options: the options of the undo.
        record: the ledger.
        awaits_s: how long to wait, at most, for the end of an engine's restart.
    """
    former = record
    record = _complete_record(host, options, record)
    engines = []
    for row in record.engines:
        if ENGINES[row.name].is_restarted and not record.finished:
            # A restart that was begun before a crash or a stop of ours may be going on.
            unit_jobs.await_no_job(host, row.unit, timeout_s=ASK_S)
        paths = [config.path for config in record.configs if config.engine == row.name]
        engine = observe_row(host, row, paths, options, awaits_s=awaits_s)
        engines.append(with_live_containers(host, engine))
    more: set[PurePosixPath] = set()
    for kind in ENGINES.values():
        more.update(config_files.usual_configs(host, kind))
    for places in options.places.values():
        if places.config:
            more.add(places.config)
        if places.drop_in:
            more.add(places.drop_in)
    for engine in engines:
        next_config = path_of(engine.next_words, engine.kind.cmdline.config)
        if next_config:
            more.add(next_config)
    if record.toolkit is not None and record.toolkit.version == SpecialVersion.ADOPTED:
        # The ledger was lost: a stopped engine may have a config that no row names.
        more.update(path for _, path in list_configs_of_next_starts(host))
    contents = _read_configs(host, record, engines, more)
    running, idle = find_in_use(
        host, options.layout, record, engines, restarts=options.restart_mode is not RestartMode.NONE
    )
    low_level = find_substitute_runtime(host, record) if running else None
    node = Node(host, options, former, record, tuple(engines), contents)
    return node.facts(
        seeks_references=options.thorough,
        containers=ContainerFacts(running, idle, low_level),
        unwritable=config_files.explain_unwritable(host, [row.path for row in record.configs]),
        units_down=list_down(host, record.units_down),
    )


def _complete_record(host: Host, options: Options, former: Record) -> Record:
    """Return the ledger without the rows of another installer, and with a row for each copy of a config.

    Engines copy their root configs, and a link may have led to another path when the config was written.
    """
    record = access.drop_foreign(host, options.layout, former)
    known = {row.path for row in record.configs}
    configs = []
    for row in record.configs:
        copies: set[PurePosixPath] = set()
        real = host.resolve(row.path)
        if row.target is not None and row.target != real:
            copies.add(row.target)
        engine = ENGINES.get(row.engine)
        if engine is not None and row.path == engine.config and row.written:
            for path, file in config_files.contents_of(host, config_files.copies_of(host, engine)).items():
                if file is not None and holds_ours(row, file):
                    copies.add(path)
        configs.append(row)
        for path in sorted(copies - known):
            configs.append(replace(row, path=path, target=None))
    return replace(record, configs=tuple(configs))


def _read_configs(
    host: Host, record: Record, engines: Iterable[EngineState], more: Iterable[PurePosixPath] = ()
) -> dict[PurePosixPath, File | None]:
    """Read the configs of the engines, of the ledger and of an install, and ``more``."""
    paths = {*more, *(row.path for row in record.configs)}
    for each in engines:
        paths |= {*each.files, *each.hooks, *config_files.list_targets(each)}
    return config_files.contents_of(host, paths)


def find_loops(host: Host, options: Options, artifacts: Iterable[Artifact]) -> Iterator[InstallerError]:
    """Refuse a packaged program of the host with a link into our toolkit: the program would start itself."""
    if not options.in_place:
        return
    for artifact in artifacts:
        if leads_to(host, artifact.own_path, options.layout) is not None:
            yield InstallerError(
                f"use {artifact.own_path} in place (it leads into {options.layout.toolkit}: to itself)",
                remedy=Remedy("install the package again, or choose another ", Option("toolkit-source")),
                code="payload-unusable",
            )


def find_moved(host: Host, options: Options, contents: Iterable[File | None]) -> Iterator[InstallerError]:
    """Refuse an engine's config with the toolkit of another install-dir."""
    toolkits: set[PurePosixPath] = set()
    for file in contents:
        toolkits |= list_toolkits(file)
    for place in sorted(toolkits):
        if place != options.install_dir and host.exists(Layout(place).ledger):
            yield InstallerError(
                f"install into {options.install_dir} (an engine's config still names the toolkit in {place})",
                remedy=f"uninstall that first: toolkit-installer uninstall --install-dir {place}",
                code="installed-elsewhere",
            )


def list_toolkits(file: File | None) -> set[PurePosixPath]:
    """Find the install-dirs in a config."""
    if file is None:
        return set()
    content = re.sub(COMMENT.pattern.encode(), b"", file.content)
    toolkits = set()
    for place in TOOLKITS.findall(content):
        toolkits.add(host_path(place.decode(errors="surrogateescape")))
    return toolkits
