"""The owner's own template of the config that k3s and RKE2 write at each start, and its other sources.

Which template they take and what its ``base`` has: engine-facts.md#k3s-templates.
"""

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.engine import Engine, EngineState, TemplateFlaw, Version
from installer.model.files import Kind

MOST_YAML: Final = 1 << 20  # of the owner's settings; they have some lines


def find_template(
    host: Host, spec: Engine, config: PurePosixPath, version: Version | None
) -> PurePosixPath | None:
    """Return the template that takes the place of an engine's own at its next start; None for none."""
    for name, template in spec.templates.items():
        if version and version < template.since:
            continue
        path = config.with_name(name)
        if host.kind(path) is not Kind.ABSENT:
            return path
    return None


def find_template_flaw(
    host: Host, spec: Engine, config: PurePosixPath, version: Version | None
) -> TemplateFlaw | None:
    """Return what a template lacks by which an engine will make ``config``; None where that is nothing."""
    path: PurePosixPath | None = None
    text = ""
    with suppress(InstallerError):  # what cannot be read is no reason
        path = find_template(host, spec, config, version)
        file = host.read(path) if path else None
        text = file.content.decode(errors="replace") if file else ""
    if path is None:
        return None
    return spec.find_template_flaw(path, text)


def explain_template(host: Host, engine: EngineState) -> Iterator[InstallerError]:
    """Yield why an engine is not restarted: it would not serve our runtime because of its template."""
    spec = engine.spec
    flaw = find_template_flaw(host, spec, engine.config, engine.version)
    if flaw is not None:
        problem = f"have {spec.title} serve {spec.built_in_runtime} by a restart ({flaw.reason})"
        remedy = f"{flaw.remedy}, then run again"
        yield InstallerError(problem, remedy=remedy, code="engine-generates-config")


def list_edited_inputs(host: Host, engine: EngineState) -> Iterator[PurePosixPath]:
    """Yield the files that an engine makes its config of and that were changed after its start."""
    began_s = engine.started.began_s if engine.started else None
    if began_s is None:
        return
    for path in _list_inputs(engine):
        with suppress(InstallerError):
            if host.changed_s(path) > began_s:
                yield path


def explain_inputs(host: Host, engine: EngineState) -> Iterator[InstallerError]:
    """Yield why an engine is not restarted: it ends at its next start because of a file that is no YAML.

    A file that was not changed since its start is not looked at: it has started with that.
    """
    is_known = engine.started is not None and engine.started.began_s is not None
    edited = [*list_edited_inputs(host, engine)]
    for path in engine.spec.inputs:
        flaw = "" if is_known and path not in edited else _find_yaml_flaw(host, path)
        if flaw:
            yield InstallerError(
                f"restart {engine.title} ({engine.unit} would not start it again: {path} is no YAML, {flaw})",
                remedy=f"correct {path}, then run again",
                code="unit-failed",
            )


def _find_yaml_flaw(host: Host, path: PurePosixPath) -> str:
    """Return where a file is no YAML; "" where it is, or cannot be told."""
    text = ""
    with suppress(InstallerError):
        file = host.read(path)
        text = file.content.decode(errors="replace") if file else ""
    if not text.strip() or len(text) > MOST_YAML:
        return ""
    import yaml  # few nodes have such a file

    try:
        for _ in yaml.parse(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            pass
    except yaml.MarkedYAMLError as error:
        return f"line {error.problem_mark.line + 1}" if error.problem_mark else "as a whole"
    except yaml.YAMLError:
        return "as a whole"
    return ""


def digest_inputs(host: Host, engine: EngineState) -> str:
    """Return the digest of the files that an engine makes its config of at its next start; "" for none."""
    known: list[tuple[str, str]] = []
    for path in _list_inputs(engine):
        with suppress(InstallerError):
            if file := host.read(path):
                known.append((str(path), file.digest))
    return sha256(repr(known).encode()).hexdigest() if known else ""


def _list_inputs(engine: EngineState) -> tuple[PurePosixPath, ...]:
    return (*map(engine.config.with_name, engine.spec.templates), *engine.spec.inputs)
