"""Print a plan: for people as unified diffs and the other steps, for programs as JSON."""

from collections.abc import Sequence
from difflib import unified_diff
from io import StringIO
from pathlib import PurePosixPath
from typing import Annotated, Final, TypeAlias

import click
from msgspec import Struct
from msgspec.structs import replace

from installer.change.ledger import read_record
from installer.change.lost_ledger import find_lost_record
from installer.change.observe import observe_install
from installer.change.plan import Plan, plan_install
from installer.cli.log import say_failed
from installer.config_text.masked import mask
from installer.engines.config_texts import syntax_of, text_of
from installer.engines.dry_run import DryRuns
from installer.errors import Exit, InstallerError
from installer.host.files import Host
from installer.lifecycle import installation_report
from installer.lifecycle.installation_report import Line
from installer.lifecycle.mounts import refuse_other_mounts
from installer.model.facts import Record
from installer.model.files import File, dumps, says
from installer.model.options import Options
from installer.model.steps import Part, PartId, Reload, WriteConfig, describe

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
    """Print the plan of ``install``, secrets masked as by ``diff``; nothing is locked or written."""
    plan, changes = _show(options, show_secrets=show_secrets, as_json=as_json)
    return _conclude(plan, changes=changes)


def show_plan_and_summary(options: Options, *, show_secrets: bool) -> Exit:
    """Print the plan of ``install``, and end with one line, which a list of all nodes is made of."""
    try:
        plan, changes = _show(options, show_secrets=show_secrets, as_json=False)
        code = _conclude(plan, changes=changes)
        summary = summarize(plan, changes=changes)
    except InstallerError as error:
        say_failed(error)
        code = error.exit
        summary = f"refused: {error}"
    one_line = " ".join(summary.split())
    click.echo(f"{options.node_name or 'this node'}: {one_line}")
    return code


def summarize(plan: Plan, *, changes: bool) -> str:
    """Return in a few words what ``install`` would do, the same words for nodes with the same outcome."""
    if plan.obstacles:
        return f"refused: {plan.obstacles[0]}"
    if not changes:
        return "nothing to do"
    acts: list[str] = []
    files = {step.path for step in plan.steps if isinstance(step, WriteConfig)}
    if files:
        acts.append(f"edit {len(files)} {'file' if len(files) == 1 else 'files'}")
    acts += [step.engine_kind.describe_reload() for step in plan.steps if isinstance(step, Reload)]
    if not acts:
        acts.append("change files of the toolkit alone")
    acts += [f"leave the restart of {name} for later" for name in plan.pending]
    return f"would {' and '.join(acts)}"


def _show(options: Options, *, show_secrets: bool, as_json: bool) -> tuple[Plan, bool]:
    """Print the plan; return the plan, and whether ``install`` would change anything."""
    host = Host.under(options.host_root, options.mounts)
    ledger = read_record(host, options.layout)
    record = ledger or Record()
    try:
        refuse_other_mounts(host, options, record)
        if record.empty:  # an install goes on by what the node shows
            found, _ = find_lost_record(host, options)
            record = replace(
                found, directories=record.directories, published=record.published, turn=record.turn
            )
        facts = observe_install(host, options, record, options.timeout_s)
    except InstallerError as error:
        if as_json:
            nothing = Plan((Part(PartId.NODE, obstacles=(error,)),), record, record, {})
            click.echo(dumps(document_of(nothing, (), changes=False), indent=2), nl=False)
        raise
    dry_runs = DryRuns(host, facts.contents)
    plan = plan_install(facts, options, dry_runs)

    files = list(installation_report.list_files(host, options, ledger, deep=False, ignores=False))
    later = [line for line in files if line.later and line.subject in plan.engines]
    acts = _acts_without_step(plan, ledger, files)
    notes = [f"{line.subject}: {line.state}" for line in (*later, *acts)]
    validation = Part(PartId.VALIDATION, notes=(*dry_runs.explain_unvalidated(plan.steps), *notes))
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
        if not changes and not plan.obstacles:
            click.echo("nothing to do")
        for line in lines_of(plan, diffs):
            click.echo(line)
    return plan, changes


def _conclude(plan: Plan, *, changes: bool) -> Exit:
    """Return the exit code for a plan that was printed; raise the error of a refused part."""
    refused = next((part for part in plan.parts if part.refused), None)
    if refused is not None:
        raise refused.obstacles[0]  # the changes of an install are not known
    if plan.obstacles:
        return Exit.FAILED
    return Exit.WOULD_CHANGE if changes else Exit.OK


def _acts_without_step(plan: Plan, ledger: Record | None, files: Sequence[Line]) -> list[Line]:
    """Return what an install repairs without a step: saved copies, access rights, a lost ledger."""
    if ledger is None:
        return list(files)
    if plan.steps:
        return []
    acts = [line for line in files if installation_report.REPAIR in line.state]
    if not ledger.empty:
        acts += installation_report.list_last_act(ledger)
    return acts


def lines_of(plan: Plan, diffs: Diffs) -> list[str]:
    """Return the plan as lines, with colours for a terminal."""
    lines: list[str] = []
    for _, diff_lines in diffs:
        lines += diff_lines
    for step, reason in plan.planned:
        act = click.style(f"* {describe(step).text}", bold=True)
        lines.append(f"{act}: {reason}")
    lines += [f"! note: {note}" for note in plan.notes]
    lines += [click.style(f"! install would stop: {error}", fg="yellow") for error in plan.obstacles]
    unasked = [name for name in plan.unverified_engines if name not in plan.pending]
    if unasked:
        lines.append(f"! not verified to serve the runtimes: {', '.join(unasked)}")
    return lines


def document_of(plan: Plan, diffs: Diffs, *, changes: bool) -> PlanDocument:
    """Return the plan for programs; docs/plan.schema.json is made from its type."""
    steps: list[PlannedStep] = []
    obstacles: list[Obstacle] = []
    for part in plan.parts:
        steps += [PlannedStep(part.id, describe(step).text, reason) for step, reason in part.planned]
        obstacles += [_obstacle(part, error) for error in part.obstacles]
    configs = []
    for path, lines in diffs:
        text = "".join(f"{click.unstyle(line)}\n" for line in lines)
        configs.append(PlannedConfig(str(path), text))
    return PlanDocument(
        would_change=changes,
        steps=tuple(steps),
        configs=tuple(configs),
        notes=plan.notes,
        obstacles=tuple(obstacles),
        unproven=plan.unverified_engines,
    )


def _obstacle(part: Part, error: InstallerError) -> Obstacle:
    return Obstacle(part.id, error.code, f"cannot {error.problem}", str(error.remedy))


def diff(
    path: PurePosixPath, before: File | None, after: File | None, *, show_secrets: bool = False
) -> list[str]:
    """Return the unified diff of one config, its secrets masked unless ``show_secrets``."""
    old_text = text_of(before, path)
    new_text = text_of(after, path)
    if not show_secrets:
        old_text = mask(old_text, syntax_of(path, old_text))
        new_text = mask(new_text, syntax_of(path, new_text))
    old_lines = list(StringIO(old_text, newline="\n"))
    new_lines = list(StringIO(new_text, newline="\n"))
    old_name = f"a{path}" if before else "/dev/null"
    new_name = f"b{path}" if after else "/dev/null"

    lines: list[str] = []
    for line in unified_diff(old_lines, new_lines, old_name, new_name):
        lines.append(click.style(line.rstrip("\r\n"), fg=COLOURS.get(line[0])))
        if line[0] in "+- " and not line.endswith("\n"):
            lines.append("\\ No newline at end of file")
    return lines
