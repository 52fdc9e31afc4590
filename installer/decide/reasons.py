"""Why an engine's configs are written and read anew, in words for its owner."""

from collections.abc import Iterator, Sequence
from typing import Final

from installer.decide.choice import Choice
from installer.decide.configs import ConfigChange, group_of
from installer.decide.facts import EngineFacts
from installer.decide.rows import ConfigRow, Record
from installer.decide.steps import Reload, Step, WriteConfig

PASSING: Final = "dockerd keeps what its file leaves out, so this text names both keys until it is reloaded"
PASSED: Final = "the text that named both keys for the reload has done its part"


def of_install(choice: Choice, held: Record) -> Iterator[str]:
    """Yield why each step of an install is taken."""
    changes = {change.step.path: change for change in choice.changes if change.step is not None}
    for step, last in _with_last(choice.steps):
        if isinstance(step, WriteConfig):
            change = changes.get(step.path)
            written = _written(change, held.config(step.path)) if change is not None else PASSED
            yield written if last else PASSING
        elif isinstance(step, Reload):
            yield _reloaded(step, choice.engine) or "its config changes"


def of_undo(steps: Sequence[Step], found: EngineFacts | None) -> Iterator[str]:
    """Yield why each step of an undo is taken."""
    for step, last in _with_last(steps):
        if isinstance(step, WriteConfig):
            ours = "an install made it" if step.after is None else "an install changed it"
            yield ours if last else PASSING
        elif isinstance(step, Reload):
            yield _reloaded(step, found) or "its config is restored"


def _with_last(steps: Sequence[Step]) -> Iterator[tuple[Step, bool]]:
    """Yield each step, and whether no later one writes the same file."""
    last = {step.path: step for step in steps if isinstance(step, WriteConfig)}
    for step in steps:
        yield step, not isinstance(step, WriteConfig) or step is last[step.path]


def _written(change: ConfigChange, held: ConfigRow | None) -> str:
    """Return why a file is written: what it does not hold yet, or holds still."""
    if change.row is None:
        return "an earlier install wrote it, and this one has no part for it"
    engine, now = change.row.engine, {edit.key: edit.after for edit in change.row.edits}
    before = {edit.key: edit.after for edit in held.edits} if held else {}
    wanted = {group_of(key, engine) for key, text in now.items() if text != "{}" and before.get(key) != text}
    gone = {group_of(key, engine) for key in before.keys() - now.keys()} - wanted - {""}
    if wanted:
        return f"it does not hold {', '.join(sorted(wanted))} as asked for"
    return f"it still holds {', '.join(sorted(gone))}" if gone else "somebody has changed what we wrote there"


def _reloaded(reload: Reload, engine: EngineFacts | None) -> str:
    """Return what a running engine serves otherwise than it should; "" where that is nothing."""
    serving = engine.serving if engine else None
    if engine is None or serving is None:
        return f"nobody knows what it serves ({engine.silence})" if engine else "nobody knows what it serves"
    wrong = reload.wrong_in(serving)
    missing = sorted(name for name in wrong if name not in serving.handlers)
    other = sorted(name for name in wrong if name in serving.handlers)
    still = [each.name for each in reload.absent if serving.binaries.get(each.name) == str(each.binary)]
    said = (
        (engine.outdated, "its config was changed after its start"),
        (missing, f"it does not serve {', '.join(missing)}"),
        (other, f"it serves {', '.join(other)} otherwise than asked for"),
        (still, f"it still serves {', '.join(still)}"),
        (serving.default in reload.demoted, f"its default runtime is {serving.default}"),
        (reload.cdi and serving.cdi is False, "it does not serve CDI devices"),
    )
    return " and ".join(words for holds, words in said if holds)
