"""The golden cases of an engine: a host as it was found, and what was asked for."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from installer.decide.configs import tree_of
from installer.decide.engines import ENGINES
from installer.decide.engines.model import Serving
from installer.decide.facts import EngineFacts, Facts, ToolkitFacts
from installer.decide.inode import File
from installer.decide.options import Options, Places, RestartMode
from installer.decide.plan import Plan
from installer.decide.rows import Holdings
from installer.decide.steps import WriteConfig
from installer.decide.toolkit import REQUIRED, Artifact

GOLDEN = Path(__file__).parents[2] / "golden"
HOOK = PurePosixPath("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json")
KEEP = ".gitkeep"  # an empty host is a directory with nothing else in it
ELF = b"\x7fELF\x02\x01" + bytes(12) + b"\x3e\x00"
ARTIFACTS = tuple(
    Artifact(name, name, PurePosixPath("/artifacts", name), 1, 0o755, name, ELF) for name in REQUIRED
)

Files = Mapping[PurePosixPath, bytes]


@dataclass(frozen=True)
class Case:
    directory: Path
    options: Options
    version: tuple[int, ...] | None
    refused: bool
    asked: Mapping[str, Any] = field(repr=False)

    @property
    def engine(self) -> str:
        return self.directory.parent.name

    @property
    def before(self) -> Files:
        return read_tree(self.directory / "before")


def read_tree(directory: Path) -> Files:
    """Return the files below ``directory`` by the path that they have on the host."""
    return {
        PurePosixPath("/", path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != KEEP
    }


def case_at(directory: Path) -> Case:
    asked = tomllib.loads((directory / "case.toml").read_text())
    engine = directory.parent.name
    drop_in = PurePosixPath(asked["drop_in"]) if "drop_in" in asked else None
    version = asked.get("engine_version")
    options = Options(
        runtimes=(engine,),
        runtime_name=asked.get("runtime_name", "nvidia"),
        set_as_default=asked.get("set_as_default", False),
        places={engine: Places(drop_in=drop_in)},
        crio_hook=HOOK if asked.get("hook") else None,
        restart_mode=RestartMode.NONE,
    )
    numbers = tuple(int(part) for part in version.split(".")) if version else None
    asked = {name: value for name, value in asked.items() if name not in {"why", "refused"}}
    return Case(directory, options, numbers, asked.get("refused", False), asked)


def cases_of(engine: str) -> list[Case]:
    return [case_at(path) for path in sorted((GOLDEN / engine).iterdir())]


def facts_of(case: Case, files: Files, held: Holdings, *, serving: Serving | None = None) -> Facts:
    """Return what the host of ``case`` looks like with ``files`` on it."""
    engine = ENGINES[case.engine]
    facts = EngineFacts(
        name=engine.name,
        config=engine.config,
        drop_in=case.options.places[engine.name].drop_in or engine.drop_in,
        hook=case.options.crio_hook,
        files=(),
        socket=engine.socket,
        unit=engine.unit,
        version=case.version,
        serving=serving,
        silence="nobody listens",
    )
    facts = replace(facts, files=tuple(_files(facts, files)))
    targets = {path for path in (facts.config, facts.drop_in, facts.hook) if path is not None}
    before = case.before
    there = {parent for path in (*before, PurePosixPath("/etc")) for parent in (path, *path.parents)}
    return Facts(
        engines=(EngineFacts(**{name: getattr(facts, name) for name in facts.__slots__} | {"files": read}),),
        contents={
            path: _file(files, path) for path in {*read, *targets, *(row.path for row in held.configs)}
        },
        originals={row.path: _file(before, row.path) for row in held.configs},
        missing=frozenset({parent for path in targets for parent in path.parents} - there),
        artifacts=ARTIFACTS,
        toolkit=ToolkitFacts(),
        held=held,
    )


def written(plan: Plan, files: Files, *, last: int | None = None) -> Files:
    """Return ``files`` after the config steps of ``plan``, or only the first ``last`` of them."""
    result = dict(files)
    for step in [step for step in plan.steps if isinstance(step, WriteConfig)][:last]:
        assert (step.before.content if step.before else None) == result.pop(step.path, None)
        if step.after is not None:
            result[step.path] = step.after.content
    return result


def _file(files: Files, path: PurePosixPath) -> File | None:
    return File(files[path]) if path in files else None


def _files(engine: EngineFacts, files: Files) -> Iterator[PurePosixPath]:
    """Yield what the engine reads, in the order of installer/record/probe.py."""
    yield engine.config
    beside = {engine.drop_in} if engine.drop_in is not None else set()
    if engine.name == "containerd":
        beside |= set(_imports(engine.config, files))
    if engine.name == "crio" and engine.drop_in is not None:
        beside |= {path for path in files if engine.drop_in.parent in path.parents}
    yield from sorted(beside - {engine.config})


def _imports(config: PurePosixPath, files: Files) -> Iterator[PurePosixPath]:
    imports = tree_of(_file(files, config), config).get("imports")
    for pattern in imports if isinstance(imports, list) else ():
        wanted = config.parent / PurePosixPath(str(pattern))
        for path in files:
            if path.parent == wanted.parent and fnmatchcase(path.name, wanted.name):
                yield path
