"""A plan as people read it: unified diffs, then what else would be done."""

from dataclasses import replace
from difflib import unified_diff
from pathlib import PurePosixPath

import click

from installer.decide.configs import text_of
from installer.decide.errors import Exit
from installer.decide.inode import File
from installer.decide.options import Options
from installer.decide.plan import Plan, plan_install
from installer.decide.rows import Holdings
from installer.decide.steps import WriteConfig, describe
from installer.host.files import Host
from installer.record.ledger import read_holdings
from installer.record.probe import probe_install
from installer.record.trial import Trials

COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def show_plan(options: Options) -> Exit:
    """Print what ``install`` would do; nothing is locked, written or signalled."""
    host = Host.under(options.host_root, options.mounts)
    held = read_holdings(host, options.layout) or Holdings()
    facts = probe_install(host, options, held)
    trials = Trials(host, facts.contents)
    plan = plan_install(facts, options, trials)
    plan = replace(plan, notes=(*plan.notes, *trials.unvalidated(plan.steps)))
    for line in lines_of(plan):
        click.echo(line)
    return Exit.WOULD_CHANGE if plan.steps else Exit.OK


def lines_of(plan: Plan) -> list[str]:
    """Return the plan as lines, coloured where the terminal takes it."""
    lines: list[str] = []
    for step in plan.steps:
        if isinstance(step, WriteConfig):
            lines += diff(step.path, step.before, step.after)
    lines += [click.style(f"* {describe(step)}", bold=True) for step in plan.steps]
    lines += [f"! note: {note}" for note in plan.notes]
    lines += [click.style(f"! install would stop: {error}", fg="yellow") for error in plan.obstacles]
    if plan.unproven:
        lines.append(f"! not asked whether they serve the runtimes: {', '.join(plan.unproven)}")
    return lines or ["nothing to do"]


def diff(path: PurePosixPath, before: File | None, after: File | None) -> list[str]:
    """Return the unified diff of one config."""
    old, new = (text_of(file, path).splitlines(keepends=True) for file in (before, after))
    names = [f"{side}{path}" if file else "/dev/null" for side, file in (("a", before), ("b", after))]
    lines = []
    for line in unified_diff(old, new, names[0], names[1]):
        lines.append(click.style(line.rstrip("\r\n"), fg=COLOURS.get(line[0])))
        if not line.endswith("\n"):
            lines.append("\\ No newline at end of file")
    return lines
