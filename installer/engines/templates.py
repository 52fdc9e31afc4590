"""The owner's own template of the config that k3s and RKE2 write at each start, and its other sources.

Which template they take and what its ``base`` has: engine-facts.md#k3s-templates.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.engines.containerd.effective import V3_PLUGIN
from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.engine import Engine, EngineState, Version
from installer.model.files import DEFAULT_INSTALL_DIR, Kind, Layout

# Their own text lists the runtimes that they found; so does a template that includes it or lists them.
BASE: Final = re.compile(r"""\{\{-?\s{0,9}template\s{1,9}["`]base["`]""")
FOUND_RUNTIMES: Final = ".ExtraRuntimes"
IMPORTS: Final = re.compile(r"(?m)^[ \t]{0,99}imports[ \t]{0,9}=")
BEGINS: Final = "{{/*"
ENDS: Final = "*/}}"
MOST_YAML: Final = 1 << 20  # of the owner's settings; they have some lines
PROGRAM: Final = Layout(DEFAULT_INSTALL_DIR).toolkit / "nvidia-container-runtime"  # they look nowhere else


def find_template(
    host: Host, spec: Engine, config: PurePosixPath, version: Version | None
) -> PurePosixPath | None:
    """Return the template that takes the place of an engine's own at its next start; None for none."""
    for name, plugin in spec.templates.items():
        if plugin == V3_PLUGIN and version and version < (2,):
            continue  # such a release does not know that name
        path = config.with_name(name)
        if host.kind(path) is not Kind.ABSENT:
            return path
    return None


class TemplateFlaw(Struct, frozen=True):
    """Why an engine does not serve our runtime after its next start, and what its owner can do."""

    reason: str
    remedy: str


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
    if path is None or may_define_ours(text):
        return None
    table = f'plugins."{spec.templates[path.name]}".containerd.runtimes.{spec.built_in_runtime}'
    lines = f'[{table}] with runtime_type = "io.containerd.runc.v2"'
    lines += f' and [{table}.options] with BinaryName = "{PROGRAM}"'
    return TemplateFlaw(
        f"its template {path} defines no runtime {spec.built_in_runtime} that starts {PROGRAM}",
        f'add {lines} there, or put {{{{ template "base" . }}}} in the place of its own copy of that',
    )


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


def may_define_ours(template: str) -> bool:
    """Tell whether a template defines our runtime, or says too little to deny it."""
    text = _drop_comments(template)
    if BASE.search(text) or FOUND_RUNTIMES in text or IMPORTS.search(text):
        return True
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(str(PROGRAM) in line for line in lines)


def _drop_comments(template: str) -> str:
    """Return a template without its comments, which may hold lines that are not in force."""
    kept: list[str] = []
    for part in template.replace("{{- /*", BEGINS).replace("*/ -}}", ENDS).split(BEGINS):
        _, ends, rest = part.partition(ENDS)
        kept.append(rest if ends and kept else part)
    return "".join(kept)


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
