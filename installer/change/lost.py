"""What is ours on a node although no ledger in sight says so: engines' configs that name the toolkit."""

from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.cdi.mode import SPECIFICATION
from installer.change.adopted import find_leftovers
from installer.change.ledger import Ledger
from installer.change.observe import observe_adoption
from installer.change.search import find_toolkits
from installer.engines import ENGINES
from installer.errors import InstallerError, Option, Remedy
from installer.host.events import log
from installer.host.files import Host
from installer.model.files import Kind
from installer.model.options import Options
from installer.model.paths import DEFAULT_INSTALL_DIR, VERSIONS, Layout, cdi_hook
from installer.model.record import OWNER, CdiRow, ConfigRow, Record, ToolkitRow
from installer.model.steps import Part
from installer.payload.plan import ADOPTED

CDI: Final = b"/toolkit/nvidia-container-runtime.cdi"


def find_left_behind(host: Host, options: Options) -> dict[PurePosixPath, str]:
    """Return the configs that name our toolkit, by engine; none where NVIDIA's has its name.

    Where nothing has, those alone with the entries that each install of ours makes: an administrator may have
    written another ahead of the first.
    """
    kind = host.kind(options.layout.toolkit, last=False)
    named = find_toolkits(host, options.places).get(options.install_dir, {})
    return {
        path: engine
        for path, engine in (named.items() if kind is not Kind.DIRECTORY else ())
        if kind is not Kind.ABSENT or ((file := host.read(path)) and CDI in file.content)
    }


def find_install_dir(host: Host, options: Options, *, tell: bool = True) -> Options:
    """Return options with the install-dir that engines really name, where the usual one was not used.

    Raises:
        InstallerError: they name several, or another one than the operator did.
    """
    if options.adopt or host.exists(options.layout.home):
        return options
    named, asked = find_toolkits(host, options.places), options.install_dir
    found = sorted(place for place in named if host.exists(Layout(place).home))
    is_usual = asked == DEFAULT_INSTALL_DIR
    if not found or (not is_usual and asked in named):  # then its ledger is lost, or nothing is
        return options
    if not is_usual or len(found) > 1:
        problem = f"tell which installation is meant ({' and '.join(map(str, found))} are in use)"
        if not is_usual:
            configs = " and ".join(map(str, sorted(named[found[0]])))
            problem = f"find an installation in {asked} ({configs} names the one in {found[0]})"
        remedy = Remedy(f"name {'one' if is_usual else 'that one'}: ", Option("install-dir", str(found[0])))
        raise InstallerError(problem, remedy=remedy, code="installed-elsewhere")
    if tell:
        log.info("found by what engines name", install_dir=str(found[0]))
    return replace(options, install_dir=found[0])


def recover(host: Host, options: Options, ledger: Ledger) -> None:
    """Write down what configs show to be ours where the ledger that knew it is lost."""
    if not ledger.held.empty:
        return
    part, toolkit = find_lost(host, options), _toolkit(host, options.layout)
    held, found = (part.rows, part.notes) if part else (Record(), ())
    if toolkit is not None:
        held, found = replace(held, toolkit=toolkit), (*found, str(options.layout.toolkit))
    if specification := find_lost_specification(host, options.layout):
        held = replace(held, configs=(*held.configs, specification), cdi=CdiRow(()))
        found = (*found, str(specification.path))
    if not held.empty:
        remedy = "what was there before us is not known"
        log.warning("ledger lost", found=list(found), remedy=remedy)
        for row in held.configs:
            if any(edit.key[-1] == ENGINES[row.engine].default_key for edit in row.edits):
                remedy = "set the default runtime that it had before us, if it was another"
                log.warning("default not known", engine=row.engine, path=str(row.path), remedy=remedy)
        known = ledger.held
        ledger.write(replace(held, directories=known.directories, published=known.published))


def find_lost_specification(host: Host, layout: Layout) -> ConfigRow | None:
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


def find_lost(host: Host, options: Options) -> Part | None:
    """Return rows for what configs show to be ours without a ledger that says so; None where nothing is.

    A real directory at the toolkit's name is NVIDIA's, and only removed with ``--adopt``.

    Raises:
        InstallerError: a config that names us cannot be read.
    """
    named = find_left_behind(host, options)
    if not named:
        return None
    # Named, an engine that is stopped is looked at as well: it will read its config when it starts.
    options = replace(options, engines=tuple(dict.fromkeys(named.values())))
    facts = observe_adoption(host, options)
    found = find_leftovers(facts, options, ours=True)
    return found if found.rows.configs else None
