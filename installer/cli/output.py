"""A plan as people read it: unified diffs, then what else would be done; and as programs do."""

from collections.abc import Sequence
from difflib import unified_diff
from io import StringIO
from pathlib import PurePosixPath
from typing import Annotated, Final, TypeAlias

import click
from msgspec import Struct
from msgspec.structs import replace

from installer.change.ledger import read_record
from installer.change.observe import observe_install
from installer.change.plan import NODE, Plan, plan_install
from installer.config_text.masked import mask
from installer.engines.config_edits import syntax_of, text_of
from installer.engines.dry_run import Trials
from installer.errors import Exit, InstallerError
from installer.host.files import Host
from installer.lifecycle import installation_report
from installer.model.facts import Record
from installer.model.files import File, dumps, says
from installer.model.options import Options
from installer.model.steps import Part, WriteConfig, describe

Diffs: TypeAlias = Sequence[tuple[PurePosixPath, list[str]]]
COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}
OfPart: TypeAlias = Annotated[str, says("The part of the plan, such as engine-containerd, toolkit or cdi.")]


class PlannedStep(Struct, frozen=True):
    """One step of install."""

    part: OfPart
    does: Annotated[str, says("The step, in the imperative.")]
    why: Annotated[str, says("Why it is taken.")]


class PlannedConfig(Struct, frozen=True):
    """One config as it would be."""

    path: Annotated[str, says("The file, as the host sees it.")]
    diff: Annotated[str, says("A unified diff; what is not about runtimes is masked unless asked for.")]


class Obstacle(Struct, frozen=True):
    """One reason why install would stop."""

    part: OfPart
    code: Annotated[str, says("What kind of problem it is: docs/troubleshooting.md lists the codes.")]
    problem: Annotated[str, says("What cannot be done: cannot ... (reason).")]
    remedy: Annotated[str, says("What to do about it.")]


class PlanDocument(Struct, frozen=True):
    """What install would do."""

    would_change: Annotated[bool, says("Whether install would change anything: exit code 10, else 0.")]
    steps: Annotated[tuple[PlannedStep, ...], says("What install would do, in its order.")]
    configs: Annotated[tuple[PlannedConfig, ...], says("The engine configs that it would write.")]
    notes: Annotated[tuple[str, ...], says("What is worth knowing and stops nothing.")]
    obstacles: Annotated[tuple[Obstacle, ...], says("Why install would stop, all reasons.")]
    unproven: Annotated[tuple[str, ...], says("Engines that would not be asked what they serve.")]


def show_plan(options: Options, *, show_secrets: bool, as_json: bool) -> Exit:
    """Print what ``install`` would do, secrets masked as ``diff`` does; nothing is locked or written."""
    host = Host.under(options.host_root, options.mounts)
    ledger = read_record(host, options.layout)
    record = ledger or Record()
    try:
        facts = observe_install(host, options, record, options.timeout_s)
    except InstallerError as error:
        if as_json:
            nothing = Plan((Part(NODE, obstacles=(error,)),), record, record, {})
            click.echo(dumps(document_of(nothing, (), changes=False), indent=2), nl=False)
        raise
    trials = Trials(host, facts.contents)
    plan = plan_install(facts, options, trials)
    found = (*installation_report.list_files(host, options, ledger, deep=False, ignores=False),)
    later = [each for each in found if each.later and each.what in plan.engines]
    # What an install does without a step: it saves copies anew, restores access, goes on without the ledger.
    repaired = [each for each in found if not plan.steps and installation_report.REPAIR in each.state]
    acts = [*found] if ledger is None else repaired
    acts += [] if plan.steps or record.empty else installation_report.list_last_act(record)
    notes = (f"{each.what}: {each.state}" for each in (*later, *acts))
    validation = Part("validation", notes=(*trials.unvalidated(plan.steps), *notes))
    plan = replace(plan, parts=(*plan.parts, validation))
    changes = bool(plan.steps or plan.pending or acts)
    diffs = [
        (step.path, diff(step.path, step.before, step.after, show_secrets=show_secrets))
        for step in plan.steps
        if isinstance(step, WriteConfig)
    ]
    if as_json:
        click.echo(dumps(document_of(plan, diffs, changes=changes), indent=2), nl=False)
    else:
        for line in lines_of(plan, diffs):
            click.echo(line)
    for refused in (part for part in plan.parts if part.refused):
        raise refused.obstacles[0]  # what install would change is not known
    as_install = Exit.FAILED if plan.obstacles else Exit.OK
    return Exit.WOULD_CHANGE if changes and not plan.obstacles else as_install


def lines_of(plan: Plan, diffs: Diffs) -> list[str]:
    """Return the plan as lines, coloured where the terminal takes it."""
    lines = [line for _, each in diffs for line in each]
    lines += [
        f"{click.style(f'* {describe(step).text}', bold=True)}: {reason}" for step, reason in plan.planned
    ]
    lines += [f"! note: {note}" for note in plan.notes]
    lines += [click.style(f"! install would stop: {error}", fg="yellow") for error in plan.obstacles]
    if unasked := [name for name in plan.unproven if name not in plan.pending]:
        lines.append(f"! not verified to serve the runtimes: {', '.join(unasked)}")
    return lines or ["nothing to do"]


def document_of(plan: Plan, diffs: Diffs, *, changes: bool) -> PlanDocument:
    """Return the plan for programs: docs/plan.schema.json is made of its type."""
    return PlanDocument(
        changes,
        tuple(
            PlannedStep(part.id, describe(step).text, reason)
            for part in plan.parts
            for step, reason in part.planned
        ),
        tuple(
            PlannedConfig(str(path), "".join(f"{click.unstyle(line)}\n" for line in lines))
            for path, lines in diffs
        ),
        plan.notes,
        tuple(
            Obstacle(part.id, each.code, f"cannot {each.problem}", str(each.remedy))
            for part in plan.parts
            for each in part.obstacles
        ),
        plan.unproven,
    )


def diff(
    path: PurePosixPath, before: File | None, after: File | None, *, show_secrets: bool = False
) -> list[str]:
    """Return the unified diff of one config, its secrets masked unless ``show_secrets``."""
    texts = [text_of(file, path) for file in (before, after)]
    shown = texts if show_secrets else [mask(text, syntax_of(path, text)) for text in texts]
    one, other = f"a{path}" if before else "/dev/null", f"b{path}" if after else "/dev/null"
    lines: list[str] = []
    old, new = (list(StringIO(text, newline="\n")) for text in shown)
    for line in unified_diff(old, new, one, other):
        lines.append(click.style(line.rstrip("\r\n"), fg=COLOURS.get(line[0])))
        if line[0] in "+- " and not line.endswith("\n"):
            lines.append("\\ No newline at end of file")
    return lines
