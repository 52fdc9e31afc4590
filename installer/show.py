"""A plan as people read it: unified diffs, then what else would be done; and as programs do."""

import json
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import PurePosixPath
from typing import Any, Final

import click

from installer.decide.configs import syntax_of, text_of
from installer.decide.edits.masked import masked
from installer.decide.errors import Exit, InstallerError
from installer.decide.inode import File
from installer.decide.options import Options
from installer.decide.part import Part
from installer.decide.parts import node
from installer.decide.plan import Plan, plan_install
from installer.decide.rows import Record
from installer.decide.steps import WriteConfig, describe
from installer.host.files import Host
from installer.record.ledger import ledger_lost, read_record
from installer.record.probe import probe_install
from installer.record.published import obstacles
from installer.record.trial import Trials

COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


def show_plan(options: Options, *, show_secrets: bool = False, as_json: bool = False) -> Exit:
    """Print what ``install`` would do; nothing is locked, written or signalled.

    What looks like a secret in a config is masked unless ``show_secrets``.
    """
    host = Host.under(options.host_root, options.mounts)
    held = read_record(host, options.layout) or Record()
    try:
        facts = probe_install(host, options, held)
    except InstallerError as error:
        if as_json:
            nothing = Plan((Part(node.ID, obstacles=(error,)),), held, held, {})
            click.echo(json.dumps(document_of(nothing), indent=2))
        raise
    trials = Trials(host, facts.contents)
    plan = plan_install(facts, options, trials)
    plan = plan.and_part(Part("validation", notes=tuple(trials.unvalidated(plan.steps))))
    if ledger_lost(host, options.layout):
        gone = f"{options.layout.ledger} is gone: install goes on by what configs show to be ours"
        plan = plan.and_part(Part("ledger", notes=(gone,)))
    if options.published:
        plan = plan.and_part(
            Part("figures", obstacles=tuple(obstacles(host, options.published, held.published)))
        )
    if as_json:
        click.echo(json.dumps(document_of(plan, show_secrets=show_secrets), indent=2))
    else:
        for line in lines_of(plan, show_secrets=show_secrets):
            click.echo(line)
    for refused in (part for part in plan.parts if part.refused):
        raise refused.obstacles[0]  # nobody can tell what install would change
    if plan.obstacles:
        return Exit.FAILED  # as install would end
    return Exit.WOULD_CHANGE if plan.steps or plan.pending else Exit.OK


def lines_of(plan: Plan, *, show_secrets: bool = False) -> list[str]:
    """Return the plan as lines, coloured where the terminal takes it."""
    lines: list[str] = []
    for step in plan.steps:
        if isinstance(step, WriteConfig):
            lines += diff(step.path, step.before, step.after, show_secrets=show_secrets)
    lines += [
        f"{click.style(f'* {describe(step)}', bold=True)}: {why}"
        for step, why in zip(plan.steps, plan.why, strict=True)
    ]
    lines += [f"! note: {note}" for note in plan.notes]
    lines += [click.style(f"! install would stop: {error}", fg="yellow") for error in plan.obstacles]
    if unasked := [name for name in plan.unproven if name not in plan.pending]:
        lines.append(f"! not proven to serve the runtimes: {', '.join(unasked)}")
    return lines or ["nothing to do"]


def document_of(plan: Plan, *, show_secrets: bool = False) -> dict[str, Any]:
    """Return the plan as docs/plan.schema.json describes it."""
    configs = [
        {
            "path": str(step.path),
            "diff": "".join(
                f"{click.unstyle(line)}\n"
                for line in diff(step.path, step.before, step.after, show_secrets=show_secrets)
            ),
        }
        for step in plan.steps
        if isinstance(step, WriteConfig)
    ]
    return {
        "would_change": bool(plan.steps),
        "steps": [
            {"part": part.id, "does": describe(step), "why": why}
            for part in plan.parts
            for step, why in part.reasons
        ],
        "configs": configs,
        "notes": list(plan.notes),
        "obstacles": [
            {"part": part.id, "code": each.code, "problem": each.problem, "remedy": each.remedy}
            for part in plan.parts
            for each in part.obstacles
        ],
        "unproven": list(plan.unproven),
    }


def diff(
    path: PurePosixPath, before: File | None, after: File | None, *, show_secrets: bool = False
) -> list[str]:
    """Return the unified diff of one config, its secrets masked unless ``show_secrets``."""
    texts = [text_of(file, path) for file in (before, after)]
    shown = texts if show_secrets else [masked(text, syntax_of(path, text)) for text in texts]
    names = [f"{side}{path}" if file else "/dev/null" for side, file in (("a", before), ("b", after))]
    lines: list[str] = []
    for line in _unified(*map(_lines, texts), *map(_lines, shown)):
        lines.append(click.style(line.rstrip("\r\n"), fg=COLOURS.get(line[0])))
        if line[0] in "+- " and not line.endswith("\n"):
            lines.append("\\ No newline at end of file")
    heads = (f"--- {names[0]}", f"+++ {names[1]}")
    return [*(click.style(head, fg=COLOURS[head[0]]) for head in heads), *lines] if lines else []


def _unified(old: list[str], new: list[str], shown_old: list[str], shown_new: list[str]) -> Iterator[str]:
    """Yield the hunks of a unified diff of ``old`` and ``new`` in other words for the same lines."""
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes():
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@"
        for tag, start, end, new_start, new_end in group:
            yield from (f"{' ' if tag == 'equal' else '-'}{line}" for line in shown_old[start:end])
            yield from (f"+{line}" for line in shown_new[new_start:new_end] if tag != "equal")


def _range(start: int, end: int) -> str:
    """Return lines as a hunk's head counts them: from 1, and the one before where there are none."""
    return f"{start + 1}" if end == start + 1 else f"{start + (end > start)},{end - start}"


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)
