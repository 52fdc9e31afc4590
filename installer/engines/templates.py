"""The inputs of the config that k3s and RKE2 generate at each start: the owner's template, and settings.

The choice of the template, and the content of its ``base``: engine-facts.md#k3s-templates.
"""

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import PurePosixPath

from installer.engines.yaml_events import MOST_CHARACTERS, list_events
from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.engine import Engine, EngineState, TemplateFlaw, Version
from installer.model.files import Kind


def find_template(
    host: Host, kind: Engine, config: PurePosixPath, version: Version | None
) -> PurePosixPath | None:
    """Find the owner's template for the next start of an engine; None for the engine's own template."""
    for name, template in kind.templates.items():
        if version and version < template.since:
            continue
        path = config.with_name(name)
        if host.kind(path) is not Kind.ABSENT:
            return path
    return None


def find_template_flaw(
    host: Host, kind: Engine, config: PurePosixPath, version: Version | None
) -> TemplateFlaw | None:
    """Find the flaw of the template from which an engine will generate ``config``; None for no flaw."""
    path: PurePosixPath | None = None
    text = ""
    with suppress(InstallerError):  # an unreadable template counts as empty
        path = find_template(host, kind, config, version)
        if path is not None:
            text = _read_text(host, path)
    if path is None:
        return None
    return kind.find_template_flaw(path, text)


def _read_text(host: Host, path: PurePosixPath) -> str:
    """Return the text of a file, "" for a missing file; raise if the file cannot be read."""
    file = host.read(path)
    return file.content.decode(errors="replace") if file else ""


def explain_template(host: Host, engine: EngineState) -> Iterator[InstallerError]:
    """Yield the reason against a restart if the template keeps an engine from serving our runtime."""
    kind = engine.kind
    flaw = find_template_flaw(host, kind, engine.config, engine.version)
    if flaw is not None:
        problem = f"have {kind.title} serve {kind.built_in_runtime} by a restart ({flaw.reason})"
        remedy = f"{flaw.remedy}, then run again"
        yield InstallerError(problem, remedy=remedy, code="engine-generates-config")


def list_edited_inputs(host: Host, engine: EngineState) -> Iterator[PurePosixPath]:
    """Yield the inputs of an engine's generated config changed after the engine's start."""
    began_s = engine.started.began_s if engine.started else None
    if began_s is None:
        return
    for path in _list_inputs(engine):
        with suppress(InstallerError):
            if host.changed_s(path) > began_s:
                yield path


def explain_inputs(host: Host, engine: EngineState) -> Iterator[InstallerError]:
    """Yield the reasons against a restart: an engine does not start with invalid YAML in its inputs.

    Files unchanged since the engine's start are left out: the engine has started with these files.
    """
    is_start_known = engine.started is not None and engine.started.began_s is not None
    edited = [*list_edited_inputs(host, engine)]
    for path in engine.kind.inputs:
        if is_start_known and path not in edited:
            continue
        flaw = _find_yaml_flaw(host, path)
        if flaw:
            yield InstallerError(
                f"restart {engine.title} ({engine.unit} would not start it again: {path} is no YAML, {flaw})",
                remedy=f"correct {path}, then run again",
                code="unit-failed",
            )


def _find_yaml_flaw(host: Host, path: PurePosixPath) -> str:
    """Return the line in which a file is no YAML; "" for YAML, or for an unreadable or too long file."""
    text = ""
    with suppress(InstallerError):
        text = _read_text(host, path)
    if not text.strip() or len(text) > MOST_CHARACTERS:
        return ""
    import yaml  # few nodes have such a file

    try:
        for _ in list_events(text):
            pass
    except yaml.MarkedYAMLError as error:
        if error.problem_mark is None:
            return "as a whole"
        return f"line {error.problem_mark.line + 1}"
    except yaml.YAMLError:
        return "as a whole"
    return ""


def digest_inputs(host: Host, engine: EngineState) -> str:
    """Compute the digest of the inputs of an engine's generated config; "" without any file."""
    known: list[tuple[str, str]] = []
    for path in _list_inputs(engine):
        with suppress(InstallerError):
            file = host.read(path)
            if file is not None:
                known.append((str(path), file.digest))
    if not known:
        return ""
    return sha256(repr(known).encode()).hexdigest()


def _list_inputs(engine: EngineState) -> tuple[PurePosixPath, ...]:
    """Return the paths of all inputs of an engine's generated config, missing files included."""
    templates = [engine.config.with_name(name) for name in engine.kind.templates]
    return (*templates, *engine.kind.inputs)
