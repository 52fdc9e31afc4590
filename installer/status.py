"""What is installed, drifted or pending: from the ledger and the files alone, cheap enough for a probe."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from installer import looked
from installer.decide.configs import relocated, text_of
from installer.decide.data import dataclass, replace
from installer.decide.edits import unheld
from installer.decide.errors import Exit, InstallerError
from installer.decide.inode import Kind
from installer.decide.layout import Layout, cdi_hook
from installer.decide.nri.wishes import DEFAULT_SOCKET
from installer.decide.options import GPU_KIND, Options
from installer.decide.parts.toolkit import VERSIONS
from installer.decide.rows import ConfigRow, EngineRow, Record
from installer.decide.toolkit_config import edited_keys
from installer.flags import FLAGS, PID_FILE, options_from
from installer.host.files import Host
from installer.host.glance import is_held_pidfile
from installer.record import own_toolkit
from installer.record.access import exposed
from installer.record.configs import with_put_back
from installer.record.in_force import lacking
from installer.record.ledger import is_lost, ledger_lost, read_record
from installer.record.lost import elsewhere, lost_specification, named_toolkits
from installer.record.nri_seen import lines as nri_lines
from installer.record.ready import is_ready
from installer.record.seen import Seen
from installer.record.seen import read as read_seen

USED: Final = frozenset({"install_dir", "host_root", "mount", "pid_file", "nri_socket"})
# Under a host root, a default is a path of the host's; what somebody gives is one as this process sees it.
DEFAULTS: Final = {"pid_file": str(PID_FILE), "nri_socket": str(DEFAULT_SOCKET)}
REPAIR: Final = "install puts it right"
RECONCILE_REPAIRS: Final = f"{looked.RECONCILE} puts it right"
IN_FORCE: Final = ", our keys in force"
BEFORE: Final = "as it was before the install, which was cut short, or its undo was"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that is held; ``good`` says whether it is as it should be."""

    what: str
    state: str
    good: bool = True
    later: bool = False  # only from an engine's next start on: the node is ready until then


def main(argv: Sequence[str]) -> int:
    """Print what is held on this host; return 0 where all is good, 1 where not, 3 where nothing is held."""
    arguments = _parser().parse_args(argv[1:])
    try:
        values = {flag.field: getattr(arguments, flag.field, flag.default) for flag in FLAGS}
        options = options_from(values, frozenset(name for name in DEFAULTS if values[name] != DEFAULTS[name]))
        host = Host.under(options.host_root, options.mounts)
        if arguments.alive:
            return Exit.OK if is_held_pidfile(str(host.local_path(options.pid_file))) else Exit.FAILED
        options = elsewhere(host, options, tell=False)
        held = _held(host, options.layout)
        ready = is_ready(host, options.ready_file)
        seen = read_seen(host, options.state_file)
        found = _lines(host, options.layout, held, deep=arguments.deep) if held else _without(host, options)
        lines = [*_seen(seen, held), *(_to_ask(line, seen) for line in found)] if held else [*found]
        why = next((f"{line.what}: {line.state}" for line in lines if not (line.good or line.later)), "")
        if not (why or ready):
            why = looked.not_proven(host, options.pid_file, held, seen)
        # Beside all that makes a node ready: what the plugin has missed stays missed.
        lines += [Line(*each) for each in nri_lines(host, options.nri)]
    except InstallerError as error:
        sys.stderr.write(f"toolkit-installer: {error}\n")
        return error.exit
    if arguments.ready:
        sys.stdout.write(f"{why}\n" if why else "")  # Kubernetes shows it in the event of a failed probe
        return Exit.FAILED if why else Exit.OK
    _print(lines, held, seen, why, as_json=arguments.json)
    if held is None and not lines:
        return Exit.NOTHING_INSTALLED
    return Exit.OK if all(line.good for line in lines) else Exit.FAILED


def _held(host: Host, layout: Layout) -> Record | None:
    held = read_record(host, layout)
    return held and with_put_back(host, held)


def _seen(seen: Seen | None, held: Record) -> Iterator[Line]:
    """Yield what ``run`` saw: it knows more than the files tell."""
    yield from (Line(*each) for each in looked.lines(seen, by_cdi=held.cdi is not None))


def _to_ask(line: Line, seen: Seen | None) -> Line:
    """Return a line whose remedy is to ask the ``run`` that waits, where one does: it keeps others out."""
    waits = seen is not None and seen.current
    return replace(line, state=line.state.replace(REPAIR, RECONCILE_REPAIRS)) if waits else line


def _lines(host: Host, layout: Layout, held: Record, *, deep: bool) -> Iterator[Line]:
    yield from _last_act(held)
    if held.toolkit is not None:
        link = host.link_target(layout.toolkit)
        runtime = cdi_hook(layout) if held.cdi else layout.toolkit / "nvidia-container-runtime"
        good = link == f"{VERSIONS}{held.toolkit.version}" and host.exists(runtime)
        yield Line(str(layout.toolkit), f"toolkit {held.toolkit.version}" if good else "not ours", good)
        yield from (Line(*each) for each in own_toolkit.lines(host, held.toolkit))
        for name, flaw in own_toolkit.damaged(host, layout, held.toolkit, deep=deep):
            yield Line(str(layout.toolkit / name), f"{flaw}: {REPAIR}", good=False)
        file = host.read(layout.config)
        if file is not None:
            for key in edited_keys(
                held.toolkit.rendered, text_of(file, layout.config), name=str(layout.config)
            ):
                yield Line(str(layout.config), f"{key} edited by an administrator")
    if unclaimed := host.names(layout.unclaimed):
        state = f"{len(unclaimed)} configs as they were before an install whose ledger is lost: see uninstall"
        yield Line(str(layout.unclaimed), state)
    for path, _, flaw in exposed(host, layout, held):
        yield Line(str(path), f"{flaw}: {REPAIR}", good=False)
    yield from _config_lines(host, layout, held)
    if held.cdi is not None:
        yield Line(
            ", ".join(held.cdi.engines) or "no engine", "takes devices by CDI, as it was asked: not changed"
        )
        if held.cdi.lacking:
            yield Line(GPU_KIND, f"no CDI specification: {held.cdi.lacking}")
    for engine in held.engines:
        if state := engine.pending and f"pending since the last install: {engine.pending}":
            yield Line(engine.name, state, good=not engine.restart_due)


def _last_act(held: Record) -> Iterator[Line]:
    """Yield what the last install or undo has left unfinished, or could not do."""
    if held.published and replace(held, failed=None).empty:
        yield Line(
            ", ".join(map(str, held.published)),
            "told of an install that failed; nothing is installed",
            good=False,
        )
    # What is told of an install that failed holds nothing of the node.
    rolled_back = (held.failed is not None or bool(held.published)) and replace(held, failed=None).empty
    if not held.finished and not rolled_back:
        state = "the last install or undo was cut short; run install or uninstall again"
        yield Line("unfinished", state, good=False)
    if held.left and held.finished:
        state = f"did not give everything back ({held.left}): run uninstall again, or install"
        yield Line("last undo", state, good=False)
    if held.failed is not None:
        yield Line("last plan", f"failed and is not tried again as it is: {held.failed.problem}", good=False)


def _without(host: Host, options: Options) -> Iterator[Line]:
    """Yield what is left of an installation without its ledger, and the configs that name our toolkit."""
    if ledger_lost(host, options.layout):
        state = "somebody has removed it: install or uninstall goes on by what configs show to be ours"
        yield Line(str(options.layout.ledger), state, good=False)
    if host.kind(options.layout.toolkit, last=False) is not Kind.DIRECTORY:  # else NVIDIA's
        row = lost_specification(host, options.layout)
        named = named_toolkits(host, options.places).get(options.install_dir, ())
        state = f"names {options.layout.toolkit}, but there is no ledger: install or uninstall puts it right"
        for path in (*named, *((row.path,) if row else ())):
            yield Line(str(path), state, good=False)


def _config_lines(host: Host, layout: Layout, held: Record) -> Iterator[Line]:
    """Yield each config, and before those of an engine what they do not come to any more."""
    engines = {engine.name: engine for engine in held.engines} if held.finished else {}
    lacks: dict[str, tuple[str, ...]] = {}
    for row in held.configs:
        if row.engine in engines and row.engine not in lacks:
            lacks[row.engine] = _lacking(host, engines[row.engine], held)
            for lack in lacks[row.engine]:
                yield Line(row.engine, f"drifted: {lack} in its configs: {REPAIR}", good=False)
        line = _config_line(host, layout, row, finished=held.finished)
        told = line.good and lacks.get(row.engine)
        yield replace(line, state=line.state.removesuffix(IN_FORCE)) if told else line


def _lacking(host: Host, engine: EngineRow, held: Record) -> tuple[str, ...]:
    try:
        return lacking(host, engine, [row for row in held.configs if row.engine == engine.name])
    except InstallerError:
        return ()  # told where the config is


def _config_line(host: Host, layout: Layout, row: ConfigRow, *, finished: bool) -> Line:
    try:
        file = host.read(row.path)
        if file is None and row.original is None and not finished:
            return Line(str(row.path), BEFORE, good=False)
        if file is None:
            return Line(str(row.path), "removed by somebody else", good=False)
        ours = file.digest in row.ours
        if (ours or row.syntax) and row.original and is_lost(host, layout, row):
            copy = layout.backups / row.original.digest
            remedy = REPAIR if row.syntax else "put back by hand what stood there before, then uninstall"
            return Line(str(row.path), f"its saved copy {copy} is missing or damaged: {remedy}", good=False)
        if ours:
            return Line(str(row.path), "as we wrote it")
        if row.syntax is None:
            return Line(str(row.path), "replaced by somebody else", good=False)
        edits = relocated(row, file)
        lost = unheld(text_of(file, row.path), edits, row.syntax, name=str(row.path))
    except InstallerError as error:
        return Line(str(row.path), error.problem, good=False)
    if not finished and row.original and file.digest == row.original.digest:
        return Line(str(row.path), BEFORE, good=False)
    if not finished:  # nobody knows which of them we have taken out ourselves
        state = "left between two texts by what was cut short, and edited by somebody else since"
        return Line(str(row.path), state, good=False)
    if lost:
        keys = ", ".join(dict.fromkeys(".".join(edit.key) for edit in lost))
        return Line(str(row.path), f"drifted: {keys} changed by somebody else", good=False)
    return Line(str(row.path), f"edited by somebody else{IN_FORCE if row.edits else ''}")


def _print(lines: Sequence[Line], held: Record | None, seen: Seen | None, why: str, *, as_json: bool) -> None:
    if as_json:
        document = {
            "installed": held is not None,
            "ready": not why,
            "why": why,
            "engines": list(held.served) if held else [],
            "held": [{"what": line.what, "state": line.state, "good": line.good} for line in lines],
            "look": looked.document(seen),
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    if held is None and not lines:
        sys.stdout.write("nothing is installed\n")
        return
    width = max((len(line.what) for line in lines), default=0)
    for line in lines:
        sys.stdout.write(f"{'ok ' if line.good else 'BAD'} {line.what:<{width}}  {line.state}\n")
    sys.stdout.write(f"engines: {', '.join(held.served if held else ()) or 'none'}\n")
    told = why and all(line.good or line.later for line in lines)  # else it stands above
    sys.stdout.write(f"ready: {f'no ({why})' if told else 'no' if why else 'yes'}\n")


def _default(field: str, environment: Mapping[str, str] = os.environ) -> Any:
    flag = next(flag for flag in FLAGS if flag.field == field)
    value = environment.get(flag.variable)
    if not value:
        return list(flag.default) if isinstance(flag.default, tuple) else flag.default
    return value.split(",") if isinstance(flag.default, tuple) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="toolkit-installer status", description="Tell what is installed, drifted or pending."
    )
    probes = parser.add_mutually_exclusive_group()
    probes.add_argument(
        "--ready",
        action="store_true",
        help="Only tell, by exit code 0 or 1, whether run is ready, and why not.",
    )
    probes.add_argument(
        "--alive", action="store_true", help="Only tell, by exit code 0 or 1, whether run holds its pidfile."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument(
        "--deep", action="store_true", help="Read the installed programs, and compare their digests."
    )
    for flag in FLAGS:
        if flag.field in USED:
            action = "append" if isinstance(flag.default, tuple) else "store"
            parser.add_argument(
                flag.name,
                action=action,
                default=_default(flag.field),
                metavar=flag.metavar,
                help=f"{flag.help} [env: {flag.variable}]",
            )
    return parser


def told(host: Host, options: Options) -> tuple[Line, ...]:
    """Return the lines that ``status`` prints; none where nothing is installed.

    Raises:
        InstallerError: the ledger cannot be read, or it is not plain which installation is meant.
    """
    options = elsewhere(host, options, tell=False)
    held = _held(host, options.layout)
    return tuple(_lines(host, options.layout, held, deep=False) if held else _without(host, options))
