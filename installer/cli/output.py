"""A plan as people read it: unified diffs, then what else would be done; and as programs do."""

import re
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from itertools import islice
from pathlib import PurePosixPath
from typing import Annotated, Final, TypeAlias

import click
from msgspec import Meta, Struct
from msgspec.structs import replace

from installer.change.ledger import ledger_lost, read_record
from installer.change.observe import probe_install
from installer.change.plan import NODE, Plan, plan_install
from installer.config_text.masked import mask
from installer.engines import ENGINES
from installer.engines.config_edits import syntax_of, text_of
from installer.engines.dry_run import Trials
from installer.errors import Exit, InstallerError
from installer.host.events import log
from installer.host.files import Host
from installer.lifecycle import installed
from installer.model.engine_spec import Api
from installer.model.files import File
from installer.model.options import Options
from installer.model.record import Record
from installer.model.steps import Part, WriteConfig, describe
from installer.model.typed_json import dumps

Diffs: TypeAlias = Sequence[tuple[PurePosixPath, list[str]]]
HUNK: Final = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")
COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}
OfPart: TypeAlias = Annotated[
    str, Meta(description="The part of the plan, such as engine-containerd, toolkit, cdi or device-nodes.")
]


class PlannedStep(Struct, frozen=True):
    """One step of install."""

    part: OfPart
    does: Annotated[str, Meta(description="The step, in the imperative.")]
    why: Annotated[str, Meta(description="Why it is taken.")]


class PlannedConfig(Struct, frozen=True):
    """One config as it would be."""

    path: Annotated[str, Meta(description="The file, as the host sees it.")]
    diff: Annotated[
        str,
        Meta(
            description="A unified diff; what looks like a secret is mask, unless --show-secrets was given."
        ),
    ]


class Obstacle(Struct, frozen=True):
    """One reason why install would stop."""

    part: OfPart
    code: Annotated[
        str, Meta(description="What kind of problem it is: docs/troubleshooting.md lists the codes.")
    ]
    problem: Annotated[str, Meta(description="What cannot be done, after the word cannot.")]
    remedy: Annotated[str, Meta(description="What to do about it.")]


class PlanDocument(Struct, frozen=True):
    """What install would do."""

    would_change: Annotated[
        bool, Meta(description="Whether install would change anything: then the exit code is 10, else 0.")
    ]
    steps: Annotated[tuple[PlannedStep, ...], Meta(description="What install would do, in its order.")]
    configs: Annotated[tuple[PlannedConfig, ...], Meta(description="The engine configs that it would write.")]
    notes: Annotated[tuple[str, ...], Meta(description="What is worth knowing and stops nothing.")]
    obstacles: Annotated[tuple[Obstacle, ...], Meta(description="Why install would stop, all reasons.")]
    unproven: Annotated[
        tuple[str, ...],
        Meta(description="Engines that would not be asked whether they serve the runtimes."),
    ]


def show_plan(options: Options, *, show_secrets: bool, as_json: bool) -> Exit:
    """Print what ``install`` would do; nothing is locked, written or signalled.

    What looks like a secret in a config is masked unless ``show_secrets``.
    """
    host = Host.under(options.host_root, options.mounts)
    record = read_record(host, options.layout) or Record()
    try:
        facts = probe_install(host, options, record, options.timeout_s)
    except InstallerError as error:
        if as_json:
            nothing = Plan((Part(NODE, obstacles=(error,)),), record, record, {})
            click.echo(dumps(document_of(nothing, ()), indent=2), nl=False)
        raise
    trials = Trials(host, facts.contents)
    plan = plan_install(facts, options, trials)
    found = installed.file_lines(host, options.layout, record, deep=False, ignores=False)
    later = (f"{each.what}: {each.state}" for each in found if each.later and each.what in plan.engines)
    plan = plan.and_part(Part("validation", notes=(*trials.unvalidated(plan.steps), *later)))
    if ledger_lost(host, options.layout):
        gone = f"{options.layout.ledger} is gone: install goes on by what configs show to be ours"
        plan = plan.and_part(Part("ledger", notes=(gone,)))
    unsettled = () if plan.steps or record.empty else tuple(installed.last_act(record))
    acts = tuple(f"{line.what}: {line.state}" for line in unsettled)
    plan = plan.and_part(Part("last act", notes=acts))
    changes = bool(plan.steps or plan.pending or acts)
    diffs = [
        (step.path, diff(step.path, step.before, step.after, show_secrets=show_secrets))
        for step in plan.steps
        if isinstance(step, WriteConfig)
    ]
    if as_json:
        click.echo(dumps(replace(document_of(plan, diffs), would_change=changes), indent=2), nl=False)
    else:
        for line in lines_of(plan, diffs):
            click.echo(line)
    for refused in (part for part in plan.parts if part.refused):
        raise refused.obstacles[0]  # nobody can tell what install would change
    as_install = Exit.FAILED if plan.obstacles else Exit.OK
    return Exit.WOULD_CHANGE if changes and not plan.obstacles else as_install


def lines_of(plan: Plan, diffs: Diffs) -> list[str]:
    """Return the plan as lines, coloured where the terminal takes it."""
    lines = [line for _, each in diffs for line in each]
    lines += [
        f"{click.style(f'* {describe(step)}', bold=True)}: {why}"
        for step, why in zip(plan.steps, plan.why, strict=True)
    ]
    lines += [f"! note: {note}" for note in plan.notes]
    lines += [click.style(f"! install would stop: {error}", fg="yellow") for error in plan.obstacles]
    if unasked := [name for name in plan.unproven if name not in plan.pending]:
        lines.append(f"! not proven to serve the runtimes: {', '.join(unasked)}")
    return lines or ["nothing to do"]


def document_of(plan: Plan, diffs: Diffs) -> PlanDocument:
    """Return the plan for programs: docs/plan.schema.json is made of its type."""
    return PlanDocument(
        bool(plan.steps),
        tuple(PlannedStep(part.id, describe(step), why) for part in plan.parts for step, why in part.reasons),
        tuple(
            PlannedConfig(str(path), "".join(f"{click.unstyle(line)}\n" for line in lines))
            for path, lines in diffs
        ),
        plan.notes,
        tuple(
            Obstacle(part.id, each.code, each.problem, str(each.remedy))
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
    old_at = new_at = 0
    for line in islice(unified_diff(old, new), 2, None):
        if head := HUNK.match(line):
            # A side without lines is counted from the line before it.
            old_at, new_at = int(head[1]) - (head[2] != ",0"), int(head[3]) - (head[4] != ",0")
            yield line.rstrip()
        elif line[0] == "+":
            yield f"+{shown_new[new_at]}"
            new_at += 1
        else:
            yield f"{line[0]}{shown_old[old_at]}"
            old_at, new_at = old_at + 1, new_at + (line[0] == " ")


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def tell_found(plan: Plan) -> None:
    """Tell what was found, before anything is done about it."""
    for engine in plan.engines.values():
        version = ".".join(map(str, engine.version or ())) or "unknown"
        log.info(
            "engine found", engine=engine.name, version=version, unit=engine.unit, config=str(engine.config)
        )
    for note in plan.notes:
        log.info("install note", note=note)


def tell_done(plan: Plan) -> None:
    """Tell what was done, and what is still to come."""
    if not plan.steps:
        log.info("nothing changed", engines=sorted(plan.engines))
    else:
        log.info("installed", engines=sorted(plan.engines), steps=len(plan.steps))
    for name, reason in plan.pending.items():
        log.warning("restart pending", engine=name, problem=reason.problem, remedy=reason.remedy)
    if unasked := [name for name in plan.unproven if name not in plan.pending]:
        log.warning("not proven", engines=unasked, reason="they have not said that they serve our runtimes")


def tell_next_step(options: Options, record: Record) -> None:
    """Tell the command that shows that it works."""
    command = "toolkit-installer status"
    if any(ENGINES[engine.name].api is Api.DOCKER for engine in record.engines):
        name = options.runtime_name
        command = f"docker run --rm --runtime={name} --env NVIDIA_VISIBLE_DEVICES=all ubuntu nvidia-smi"
    log.info("next step", command=command)
