"""The next start of an engine, compared with what the engine has in force: why it may not be restarted.

A restart of ours brings into force whatever others have edited since the engine's start. ``explain_refusals``
yields the reasons against that: a missing file, a moved place, a lost runtime, a lost container. It gets the
config that the engine's own program printed for the texts of the next start. What a restart brings into force
without a loss is a note for the owner: ``reload_notes.py``.
"""

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Final

from msgspec.structs import replace

from installer.engines.config_texts import toolkit_runtimes
from installer.errors import InstallerError, Option, Remedy
from installer.model.effective import NAMELESS, EffectiveConfig, is_ours
from installer.model.engine import EngineState, LiveContainer
from installer.model.facts import Facts

FIRST_MERGING: Final = 2  # the first release of containerd whose dump has another schema
LAST_SCHEMA_OF_1: Final = 2
OCI_RUNTIMES: Final = ("crun", "runc")  # neither reads the state of the other's containers


def explain_refusals(
    engine: EngineState,
    after: EffectiveConfig | None,
    facts: Facts,
    ours: Collection[str],
    *,
    accepts_pending: bool = False,
) -> Iterator[InstallerError]:
    """Yield the reasons why we may not restart an engine.

    Args:
        engine: the engine, as it runs.
        after: the config in force after the restart; None if unknown.
        facts: the facts about the node.
        ours: the names of our runtimes, changed by the restart.
        accepts_pending: accept the changed values of others (``explain_accepted``).
    """
    if engine.kind.needs_root_file and facts.contents.get(engine.config) is None:
        yield InstallerError(
            f"restart {engine.title} ({engine.unit} would not start it again: {engine.config} is not there)",
            remedy=f"correct {engine.unit}, or what it needs, then run again",
            code="unit-failed",
        )
    if engine.not_restarted is not None:
        yield engine.not_restarted
    elif after is not None:
        yield from explain_moved_places(engine, after)
        yield from explain_losses(engine, after, ours, accepts_pending=accepts_pending)
        yield from explain_lost_containers(engine, after, facts)


def explain_moved_places(engine: EngineState, after: EffectiveConfig) -> Iterator[InstallerError]:
    """Yield an error for each directory or socket moved at a restart by edits since the engine's start."""
    places = engine.served.places
    for name in sorted(engine.places_by_files & places.keys() & after.places.keys()):
        present = places[name]
        wanted = after.places[name]
        # containerd reports root and state without a slash at the end, and prints them as they are written.
        if wanted.startswith("/") and normpath(present) != normpath(wanted):
            yield InstallerError(
                f"restart {engine.title} (at its next start its config gives it the {name} {wanted}, and it "
                f"runs with {present})",
                remedy=f"restart {engine.unit} at a time of your choice, or take that out of its config, "
                "then run again",
                code="restart-moves-engine",
            )


def explain_losses(
    engine: EngineState, after: EffectiveConfig, ours: Collection[str], *, accepts_pending: bool = False
) -> Iterator[InstallerError]:
    """Yield the edits of others since an engine's start by which a restart of ours would break a runtime.

    Settings beside the runtimes, and additions, do no harm to the present runtimes.

    Args:
        engine: the engine, as it runs.
        after: the config in force after the restart.
        ours: the names of our runtimes, changed by the restart.
        accepts_pending: yield nothing about changed values. A moved storage, a missing program and another
            major version are yielded all the same.
    """
    serving = engine.serving
    if serving is None or after.broken:
        return
    for name in sorted(serving.handlers.keys() & {*after.ignored} - {*ours}):
        yield InstallerError(
            f"restart {engine.title} (its next start leaves out the runtime {name}, which it serves, for its "
            "program is not there)",
            remedy=f"install that program, or restart {engine.unit} at a time of your choice, then run again",
            code="pending-by-others",
        )
    if not after.is_printed:
        return
    in_force = read_in_force(engine, serving)
    losses = [*_find_moved_storage(in_force, after)]
    other_major = explain_other_major(engine, after)
    is_acceptable = not losses and other_major is None
    if not accepts_pending:
        losses += _find_losses(in_force, after, ours)
    if losses:
        restart = f"restart {engine.unit} at a time of your choice"
        remedy = Remedy(restart, ", or undo that edit, then run again")
        if is_acceptable:
            flag = Option("accept-pending")
            remedy = Remedy(restart, ", undo that edit, or accept it with ", flag, ", then run again")
        yield InstallerError(
            f"restart {engine.title} (its configs were edited after its start, and {'; '.join(losses)})",
            remedy=remedy,
            code="pending-by-others",
        )
    if other_major is not None:
        yield other_major


def read_in_force(engine: EngineState, serving: EffectiveConfig) -> EffectiveConfig:
    """Complete the answer of an engine with settings known only from the record of its start."""
    seen = engine.seen_start
    if seen is None:
        return serving
    nri = seen.nri if serving.nri is None else serving.nri
    return replace(serving, storage_driver=serving.storage_driver or seen.storage_driver, nri=nri)


def _find_losses(now: EffectiveConfig, after: EffectiveConfig, ours: Collection[str]) -> Iterator[str]:
    """Yield the runtimes of others removed or changed by the next start, and a change of the default."""
    for name in sorted(now.handlers.keys() - {*ours, NAMELESS}):
        defined = after.handlers.get(name)
        if defined is None:
            yield f"its next start takes away the runtime {name}, which it serves"
            continue
        driver = "systemdcgroup"
        present = bool(now.handlers[name].options.get(driver))
        wanted = bool(defined.options.get(driver))
        if present != wanted:
            change = f"SystemdCgroup = {str(wanted).lower()}, and it runs with {str(present).lower()}"
            yield f"its next start gives the runtime {name} {change}"
    if now.cgroup_driver and after.cgroup_driver and now.cgroup_driver != after.cgroup_driver:
        drivers = f"{after.cgroup_driver} in the place of {now.cgroup_driver}"
        yield f"its next start uses the cgroup driver {drivers}"
    if now.nri and after.nri is False:
        yield "its next start switches NRI off"
    if now.default and after.default != now.default and not {now.default, after.default} & {*ours}:
        yield f"its next start makes {after.default} the default runtime in the place of {now.default}"


def _find_moved_storage(now: EffectiveConfig, after: EffectiveConfig) -> Iterator[str]:
    """Yield a loss if the next start keeps images elsewhere: the present containers would not be found."""
    if now.storage_driver and after.storage_driver and now.storage_driver != after.storage_driver:
        drivers = f"{after.storage_driver} in the place of {now.storage_driver}"
        yield f"its next start keeps images and containers with {drivers}"


def explain_accepted(
    engine: EngineState, after: EffectiveConfig | None, ours: Collection[str]
) -> Iterator[str]:
    """Yield the changed values of others that a restart with --accept-pending brings into force."""
    if engine.serving is None or after is None or after.broken or not after.is_printed:
        return
    for loss in _find_losses(read_in_force(engine, engine.serving), after, ours):
        yield f"the restart of {engine.title} brings into force, by --accept-pending: {loss}"


def explain_lost_containers(
    engine: EngineState, after: EffectiveConfig, facts: Facts
) -> Iterator[InstallerError]:
    """Yield the error for the first running container that the engine would not find after a restart.

    CRI-O finds a running container by the handler of the container: the handler's runtime has a program and a
    directory of state, its runtime_root. A container without a handler is found by the runtime that is the
    default at that moment. While a runtime of ours is the default, an edit of the owner's default has no
    effect, at a restart neither: it comes into force only with our undo.

    Args:
        engine: the running engine, with its running containers.
        after: the config in force after the restart.
        facts: the facts about the node.
    """
    if not engine.kind.finds_by_handler or engine.serving is None or after.broken:
        return
    for container in engine.live:
        error = _explain_lost_container(engine, container, after, facts)
        if error is not None:
            yield error
            return


def _explain_lost_container(
    engine: EngineState, container: LiveContainer, after: EffectiveConfig, facts: Facts
) -> InstallerError | None:
    """Explain why the engine would not find a container with ``after`` in force; None if it would.

    None also for a container that the engine does not find with its present config: such a container is lost
    already.
    """
    name = container.handler or after.default
    if name in engine.next_flags.runtimes:  # a flag of the next start defines the runtime, no file does
        return None
    if name not in after.handlers:
        return _explain_undefined(engine, container, after, name)
    next_root = engine.kind.find_runtime_root(after, container.handler, engine.version)
    if next_root != container.runtime_root:
        return _explain_moved_root(engine, container, name, next_root)
    return _explain_other_program(engine, container, after, name, facts)


def _explain_undefined(
    engine: EngineState, container: LiveContainer, after: EffectiveConfig, name: str
) -> InstallerError | None:
    """Explain that the next start does not define ``name``, the runtime of a container.

    None if the runtime is not defined now either, or may be built into an engine whose program was not asked.
    """
    may_be_built_in = not after.is_printed and not is_ours(container.program)
    may_be_defined_now = name in engine.served.handlers or _reports_next_start(engine)
    if may_be_built_in or not may_be_defined_now:
        return None
    return InstallerError(
        f"restart {engine.title} (the container {container.name} runs on {name}, which the next start of "
        f"{engine.title} does not define)",
        remedy="delete that pod, then run again",
        code="pending-by-others",
    )


def _explain_moved_root(
    engine: EngineState, container: LiveContainer, name: str, next_root: str
) -> InstallerError | None:
    """Explain that the engine would look for a container under another runtime_root; None if it does now."""
    root_now = engine.kind.find_runtime_root(engine.served, container.handler, engine.version)
    may_be_found_now = root_now == container.runtime_root
    if _reports_next_start(engine) and root_now == next_root:
        may_be_found_now = True
    if not may_be_found_now:
        return None
    present = f"runs under the runtime_root {container.runtime_root}"
    return _refuse_lost(engine, container, name, present, wanted=f"under {next_root}")


def _explain_other_program(
    engine: EngineState, container: LiveContainer, after: EffectiveConfig, name: str, facts: Facts
) -> InstallerError | None:
    """Explain that another OCI runtime would look for a container; None if it is the same, or unknown."""
    present = _find_oci_runtime(container.program, facts)
    wanted = _find_oci_runtime(after.handlers[name].binary or name, facts)
    if not present or not wanted or present == wanted:
        return None
    return _refuse_lost(engine, container, name, f"runs with {present}", wanted=f"with {wanted}")


def _reports_next_start(engine: EngineState) -> bool:
    """Tell whether an engine reports the config of its next start, as a CRI-O does after a reload.

    The config in force is unknown then.
    """
    return bool(engine.kind.reload_misreports and engine.changed)


def _refuse_lost(
    engine: EngineState, container: LiveContainer, name: str, present: str, *, wanted: str
) -> InstallerError:
    """Refuse a restart after which the engine would look for a container elsewhere, or by another program.

    Args:
        engine: the engine.
        container: the running container.
        name: the runtime by which the engine would look for the container.
        present: how the container runs, as part of a sentence.
        wanted: how the engine would look for the container, as part of a sentence.
    """
    changed = f"the runtime {name}" if container.handler else "the default runtime"
    return InstallerError(
        f"restart {engine.title} (the container {container.name} {present}, and after a restart "
        f"{engine.title} looks for it {wanted}, by the runtime {name})",
        remedy=f"delete that pod, or undo the change of {changed}, then run again",
        code="pending-by-others",
    )


def _find_oci_runtime(program: str, facts: Facts) -> str:
    """Return the name of the OCI runtime behind a program, such as crun; "" if unknown.

    A program of ours wraps the first runtime in the toolkit's config.toml.
    """
    if is_ours(program):
        rendered = facts.record.toolkit.rendered if facts.record.toolkit is not None else ""
        wrapped = toolkit_runtimes(rendered)
        program = wrapped[0] if wrapped else ""
    name = PurePosixPath(program).name
    return next((runtime for runtime in OCI_RUNTIMES if runtime in name), name)


def explain_other_major(engine: EngineState, found: EffectiveConfig) -> InstallerError | None:
    """Refuse to restart an engine with a program of another major version on disk.

    ``found`` is any config as printed by this program.
    """
    if engine.serving is None or not engine.version or not found.schema:
        return None
    runs_new = engine.version[0] >= FIRST_MERGING
    starts_new = found.schema > LAST_SCHEMA_OF_1
    if runs_new == starts_new:
        return None
    version = ".".join(map(str, engine.version))
    reason = f"it runs {version}, and its program was replaced by one of another major version"
    return InstallerError(
        f"restart {engine.title} ({reason})",
        remedy=f"restart {engine.unit} at a time of your choice, then run again",
        code="pending-by-others",
    )
