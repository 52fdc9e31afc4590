"""The reason of each step of an engine, for people: what the step is good for."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from installer.config_text import EMPTY
from installer.config_text.change import list_missing
from installer.engines.config_edits import ConfigChange
from installer.engines.config_keys import group_of
from installer.engines.config_texts import syntax_of, text_of
from installer.model.engine import EngineState
from installer.model.facts import ConfigRow, Record
from installer.model.steps import Planned, Reload, Step, WriteConfig

PASSING: Final = "an intermediate text for one reload: dockerd would keep a key that the new text leaves out"
PASSED: Final = "the reload that needed the intermediate text is done"


def explain_install(
    steps: Sequence[Step], written: Iterable[ConfigChange], engine: EngineState, record: Record
) -> Planned:
    """Add a reason to each step of an install."""
    reasons = {}
    for change in written:
        step = change.step
        if step is not None:
            reasons[step.path] = _explain_write(step, change.row, record.config(step.path))
    return _explain_steps(steps, engine, reasons, "its config changes")


def explain_undo(steps: Sequence[Step], engine: EngineState) -> Planned:
    """Add a reason to each step of an undo."""
    reasons = {}
    for step in steps:
        if isinstance(step, WriteConfig):
            verb = "changed" if step.after else "made"
            reasons[step.path] = f"reverts what install {verb}"
    return _explain_steps(steps, engine, reasons, "its config is restored")


def _explain_steps(
    steps: Sequence[Step], engine: EngineState, reasons: Mapping[PurePosixPath, str], otherwise: str
) -> Planned:
    """Add the reason to each step.

    Args:
        steps: the steps of the engine.
        engine: the engine as it runs.
        reasons: the reason of the last write of each file, by path.
        otherwise: the reason of a reload if the engine serves all runtimes.
    """
    last = {step.path: step for step in steps if isinstance(step, WriteConfig)}
    planned: list[tuple[Step, str]] = []
    for step in steps:
        if isinstance(step, WriteConfig):
            reason = PASSING
            if step is last[step.path]:
                reason = reasons.get(step.path, PASSED)
            planned.append((step, reason))
        elif isinstance(step, Reload):
            planned.append((step, _explain_reload(step, engine) or otherwise))
    return tuple(planned)


def _explain_write(step: WriteConfig, row: ConfigRow | None, former_row: ConfigRow | None) -> str:
    """Return the reason of a write: missing keys of the file, or keys to remove."""
    if row is None:
        return "an earlier install wrote it, and this one does not use it"

    present = text_of(step.before, step.path)
    edits = [edit for edit in row.edits if edit.after is not None]
    syntax = syntax_of(step.path, present, row.engine)
    missing = list_missing(present, edits, syntax, name=str(step.path))
    wanted = {group_of(edit.key, row.engine) for edit in missing}
    if wanted:
        return f"missing or different: {', '.join(sorted(wanted))}"

    earlier_edits = former_row.edits if former_row else ()
    unwanted = set()
    for edit in earlier_edits:
        if edit.after != EMPTY:
            unwanted.add(group_of(edit.key, row.engine))
    for edit in row.edits:
        unwanted.discard(group_of(edit.key, row.engine))
    unwanted.discard("")
    if unwanted:
        return f"it still has {', '.join(sorted(unwanted))}, which this install does not ask for"
    return "our keys there differ from what this install wants"


def _explain_reload(reload: Reload, engine: EngineState) -> str:
    """Return the difference between the served runtimes and the runtimes to serve; "" for none."""
    serving = engine.serving
    if serving is None:
        return f"it is not known what it serves ({engine.silence_reason})"
    wrong = reload.wrong_in(serving)
    missing = sorted(name for name in wrong if name not in serving.handlers)
    other = sorted(name for name in wrong if name in serving.handlers)
    still = []
    for each in reload.absent:
        if serving.binaries.get(each.name) == str(each.binary):
            still.append(each.name)
    reasons = (
        (engine.outdated, "its config was changed after its start"),
        (missing, f"it does not serve {', '.join(missing)}"),
        (other, f"it serves {', '.join(other)} with other settings than this install wants"),
        (still, f"it still serves {', '.join(still)}"),
        (serving.default in reload.unwanted_defaults, f"its default runtime is {serving.default}"),
        (reload.cdi and serving.cdi is False, "it does not serve CDI devices"),
    )
    return " and ".join(reason for applies, reason in reasons if applies)
