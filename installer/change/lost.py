"""What is ours on a node although no ledger in sight says so: engines' configs that name the toolkit."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.cdi.mode import SPECIFICATION
from installer.change.adopted import adoption, without_nvidias
from installer.change.ledger import Ledger
from installer.engines import ENGINES
from installer.engines.config_files import copies_of
from installer.errors import InstallerError, Option, Remedy
from installer.host.files import Host
from installer.model.files import Kind
from installer.model.options import Options, Places
from installer.model.paths import DEFAULT_INSTALL_DIR, VERSIONS, Layout, cdi_hook
from installer.model.record import OWNER, CdiRow, ConfigRow, Record, ToolkitRow
from installer.model.steps import Part
from installer.payload.plan import ADOPTED

TOOLKITS: Final = re.compile(rb"""["'](/[^"'\n]*)/toolkit/nvidia-container-runtime["'.]""")
COMMENT: Final = re.compile(rb"(?m)^[ \t]*#.*$")
CDI: Final = b"/toolkit/nvidia-container-runtime.cdi"
READ: Final = frozenset({".json", ".toml", ".conf"})  # of what lies there; not config.toml.bak and the like

# By install-dir: the configs that name its toolkit, and whose they are.
Named = Mapping[PurePosixPath, Mapping[PurePosixPath, str]]


def named_toolkits(host: Host, places: Mapping[str, Places]) -> Named:
    """Return the install-dirs that the configs of engines name, by file and engine; no engine is asked."""
    named: dict[PurePosixPath, dict[PurePosixPath, str]] = {}
    for name, path in _configs(host, places):
        with suppress(InstallerError):  # what cannot be read names nothing that could be undone
            file = host.read(path)
            for place in TOOLKITS.findall(COMMENT.sub(b"", file.content)) if file else ():
                directory = PurePosixPath(place.decode(errors="surrogateescape"))
                named.setdefault(directory, {})[path] = name
    return named


def _configs(host: Host, places: Mapping[str, Places]) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the configs that an engine may read: its own, and what lies where drop-ins do."""
    for engine in ENGINES.values():
        if engine.finds:
            continue
        place = places.get(engine.name, Places())
        config, drop_in = place.config or engine.config, place.drop_in or engine.drop_ins.usual
        directories = {config.parent, config.parent / "conf.d", engine.drop_ins.directory}
        for path in dict.fromkeys((config, *([drop_in] if drop_in else ()), *copies_of(host, engine))):
            yield engine.name, path
        for directory in sorted(each for each in directories if each is not None):
            with suppress(InstallerError):
                for name in host.names(directory):
                    if PurePosixPath(name).suffix in READ and directory / name not in {config, drop_in}:
                        yield engine.name, directory / name


def left_behind(host: Host, options: Options) -> dict[PurePosixPath, str]:
    """Return the configs that name our toolkit, by engine; none where NVIDIA's has its name.

    Where nothing has, those alone with the entries that each install of ours makes: an administrator may have
    written another ahead of the first.
    """
    kind = host.kind(options.layout.toolkit, last=False)
    named = named_toolkits(host, options.places).get(options.install_dir, {})
    return {
        path: engine
        for path, engine in (named.items() if kind is not Kind.DIRECTORY else ())
        if kind is not Kind.ABSENT or ((file := host.read(path)) and CDI in file.content)
    }


def elsewhere(host: Host, options: Options, *, tell: bool = True) -> Options:
    """Return options with the install-dir that engines really name, where the usual one was not used.

    Raises:
        InstallerError: they name several, or another one than the operator did.
    """
    if options.adopt or host.exists(options.layout.home):
        return options
    named = named_toolkits(host, options.places)
    found = sorted(place for place in named if host.exists(Layout(place).home))
    if options.install_dir != DEFAULT_INSTALL_DIR:
        if options.install_dir in named or not found:  # then its ledger is lost, or nothing is
            return options
        configs = " and ".join(map(str, sorted(named[found[0]])))
        raise InstallerError(
            f"find an installation in {options.install_dir} ({configs} names the one in {found[0]})",
            remedy=Remedy("name that one: ", Option("install-dir", str(found[0]))),
            code="installed-elsewhere",
        )
    if len(found) > 1:
        raise InstallerError(
            f"tell which installation is meant ({' and '.join(map(str, found))} are in use)",
            remedy=Remedy("name one: ", Option("install-dir", str(found[0]))),
            code="installed-elsewhere",
        )
    if not found:
        return options
    if tell:
        from installer.host.events import log

        log.info("found by what engines name", install_dir=str(found[0]))
    return replace(options, install_dir=found[0])


def recover(host: Host, options: Options, ledger: Ledger) -> None:
    """Write down what configs show to be ours where the ledger that knew it is lost."""
    if not ledger.held.empty:
        return
    part, toolkit = lost(host, options), _toolkit(host, options.layout)
    held, found = (part.rows, part.notes) if part else (Record(), ())
    if toolkit is not None:
        held, found = replace(held, toolkit=toolkit), (*found, str(options.layout.toolkit))
    if specification := lost_specification(host, options.layout):
        held = replace(held, configs=(*held.configs, specification), cdi=CdiRow(()))
        found = (*found, str(specification.path))
    if not held.empty:
        from installer.host.events import log

        remedy = "what was there before us is not known"
        log.warning("ledger lost", found=list(found), remedy=remedy)
        for row in held.configs:
            if any(edit.key[-1] == ENGINES[row.engine].default_key for edit in row.edits):
                remedy = "set the default runtime that it had before us, if it was another"
                log.warning("default not known", engine=row.engine, path=str(row.path), remedy=remedy)
        known = ledger.held
        ledger.write(replace(held, directories=known.directories, published=known.published))


def lost_specification(host: Host, layout: Layout) -> ConfigRow | None:
    """Return the row of a CDI specification that no ledger knows: it names the hook of our toolkit."""
    file = host.read(SPECIFICATION)
    if file is None or f'"{cdi_hook(layout)}"'.encode() not in file.content:
        return None
    if host.kind(layout.toolkit, last=False) is Kind.DIRECTORY:  # NVIDIA's
        return None
    return ConfigRow(OWNER, SPECIFICATION, None, None, (file.digest,), ())


def _toolkit(host: Host, layout: Layout) -> ToolkitRow | None:
    """Return the row of a toolkit that is ours by where its name leads, or that stands in another's place."""
    aside = host.kind(layout.replaced, last=False) is Kind.DIRECTORY
    link = host.link_target(layout.toolkit) or ""
    if link.startswith(VERSIONS) or (aside and not host.exists(layout.toolkit)):
        return ToolkitRow(ADOPTED, None, "", replaced=aside)
    return None


def lost(host: Host, options: Options) -> Part | None:
    """Return rows for what configs show to be ours without a ledger that says so; None where nothing is.

    A real directory at the toolkit's name is NVIDIA's, and only removed with ``--adopt``.

    Raises:
        InstallerError: a config that names us cannot be read.
    """
    named = left_behind(host, options)
    if not named:
        return None
    from installer.change.observe import probe_adoption

    # Named, an engine that is stopped is looked at as well: it will read its config when it starts.
    options = replace(options, engines=tuple(dict.fromkeys(named.values())))
    facts = probe_adoption(host, options)
    if host.kind(options.layout.toolkit, last=False) is Kind.ABSENT:
        facts = without_nvidias(facts, options)  # not even our link is left to tell whose they are
    found = adoption(facts, options, ours=True)
    return found if found.rows.configs else None
