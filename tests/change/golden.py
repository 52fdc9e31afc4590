"""Golden cases: a host's configs before, what an install makes of them, and back again."""

import shutil
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from installer.change.plan import Plan, entries_for, plan_install
from installer.cli.flags import DEFAULT_HOOK
from installer.engines import ENGINES
from installer.engines.ask import parse_version
from installer.engines.config_texts import tree_of
from installer.model.effective import EffectiveConfig, Runtime
from installer.model.engine import Engine, EngineState
from installer.model.facts import CdiFacts, DriverFacts, Facts, PayloadFacts, Record, ToolkitFacts
from installer.model.files import Artifact, File, Kind
from installer.model.options import Options, RestartMode
from installer.model.steps import Reload, WriteConfig
from installer.payload.files import LIBRARIES, REQUIRED
from tests.support.golden import REWRITE, golden

GOLDEN = Path(__file__).parent.parent / "golden"
HEAD = b"\x7fELF\x02\x01" + bytes(12) + (62).to_bytes(2, "little")
Disk = dict[PurePosixPath, File | None]
NOTHING = Record()


class Case(Struct, frozen=True):
    """One directory below tests/golden/<engine>."""

    engine: str
    path: Path
    said: dict[str, Any]

    @property
    def before(self) -> Disk:
        return _tree(self.path / "before")

    @property
    def options(self) -> Options:
        return Options(
            engines=(self.engine,),
            runtime_name=self.said.get("runtime_name", "nvidia"),
            set_as_default=self.said.get("set_as_default", False),
            restart_mode=RestartMode.NONE,
        )

    def facts(self, disk: Disk | None = None, held: Record = NOTHING, originals: Disk | None = None) -> Facts:
        """Return the facts that a probe of ``disk`` would find; without one, of the node ahead of an install."""
        disk = self.before if disk is None else disk
        if originals is None:
            originals = {row.path: self.before.get(row.path) for row in held.configs}
        engine = ENGINES[self.engine]
        drop_in = PurePosixPath(self.said["drop_in"]) if "drop_in" in self.said else engine.drop_ins.usual
        found = EngineState(
            engine,
            engine.config,
            drop_in,
            DEFAULT_HOOK if self.said.get("hook") else None,
            tuple(_files(disk, engine, engine.config, drop_in)),
            engine.socket,
            engine.unit,
            version=parse_version(self.said["engine_version"]) if "engine_version" in self.said else None,
            rendered=disk.get(rendered)
            if (rendered := engine.find_generated_config(engine.config))
            else None,
        )
        paths = {*found.files, found.config, *(row.path for row in held.configs)}
        paths |= {path for path in (drop_in, found.hook) if path is not None}
        installed = Kind.LINK if held.toolkit else Kind.ABSENT
        return Facts(
            engines=(found,),
            contents={path: disk.get(path) for path in paths},
            originals=originals,
            missing=frozenset(),
            payload=PayloadFacts(artifacts()),
            driver=DriverFacts(),
            cdi=CdiFacts(),
            toolkit=ToolkitFacts(kind=installed),
            record=held,
        )


def cases(engine: str) -> list[Case]:
    return [
        Case(engine, path.parent, tomllib.loads(path.read_text()))
        for path in sorted((GOLDEN / engine).glob("*/case.toml"))
    ]


def case_of(engine: str, name: str = "") -> Case:
    """Return the case of that name; without one the first that an install takes."""
    known = {case.path.name: case for case in cases(engine) if name or not {"refused", "hook"} & {*case.said}}
    return known[name] if name else next(iter(known.values()))


def installed(
    case: Case, disk: Disk | None = None, held: Record = NOTHING, options: Options | None = None
) -> tuple[Plan, Disk, Record]:
    """Return the plan over ``disk``, the disk after it and what is held then; the case's first without one."""
    disk = case.before if disk is None else disk
    plan = accepted(plan_install(case.facts(disk, held), options or case.options))
    return plan, written(disk, plan), final_of(plan)


def final_of(plan: Plan) -> Record:
    """Return what is held after a plan, which is something."""
    assert plan.final is not None
    return plan.final


def undoing(case: Case, **engine: Any) -> Facts:
    """Return the facts for an undo of the case's first install, with changes to what was observed of its engine."""
    _, disk, held = installed(case)
    return with_engines(undo_facts(case, disk, held), **engine)


def writes_of(plan: Plan) -> list[WriteConfig]:
    return [step for step in plan.steps if isinstance(step, WriteConfig)]


def reloads_of(plan: Plan) -> list[Reload]:
    return [step for step in plan.steps if isinstance(step, Reload)]


def with_engines(facts: Facts, **changes: Any) -> Facts:
    """Return the facts with ``changes`` to what was observed of each engine; one that serves is not stopped."""
    if changes.get("serving") is not None:
        changes = {"stopped": False, **changes}
    return replace(facts, engines=tuple(replace(engine, **changes) for engine in facts.engines))


def served(binaries: Mapping[str, str], default: str, *, systemd_cgroup: bool = False) -> EffectiveConfig:
    """Return the effect of an engine that serves ``binaries``, all with the same cgroup driver."""
    table = {"options": {"SystemdCgroup": systemd_cgroup}}
    return EffectiveConfig({name: Runtime(binary, table) for name, binary in binaries.items()}, default)


def binaries_of(options: Options) -> dict[str, str]:
    """Return the runtimes that an install with ``options`` has an engine serve, with their programs."""
    return {entry.name: str(entry.binary) for entry in entries_for(options)}


def accepted(plan: Plan) -> Plan:
    """Return the plan; InstallerError: it has no text for one of the engines."""
    for part in plan.parts:
        if part.refused:
            raise part.obstacles[0]
    return plan


def written(disk: Disk, plan: Plan) -> Disk:
    """Return ``disk`` after the writes of ``plan``."""
    after = dict(disk)
    for step in writes_of(plan):
        assert after.get(step.path) == step.before
        after[step.path] = step.after
    return {path: file for path, file in after.items() if file is not None}


def undo_facts(case: Case, disk: Disk, held: Record) -> Facts:
    """Return the facts for an undo, as of an engine that is stopped: what its files say will be in force."""
    return with_engines(case.facts(disk, held), hook=None, stopped=True)


def _tree(root: Path) -> Disk:
    return {
        PurePosixPath("/", path.relative_to(root)): File(path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".gitkeep"
    }


def _files(
    disk: Disk, engine: Engine, config: PurePosixPath, drop_in: PurePosixPath | None
) -> Iterator[PurePosixPath]:
    yield config
    beside = {drop_in} if drop_in else set()
    if directory := engine.drop_ins.directory:
        names = engine.drop_ins.pattern
        beside |= {
            path
            for path in disk
            if (
                path.parent == directory and fnmatchcase(path.name, names)
                if names
                else directory in path.parents
            )
        }
    if engine.drop_ins.imports and disk.get(config):
        imports = tree_of(disk[config], config).get("imports")
        for pattern in imports if isinstance(imports, list) else ():
            full = config.parent / PurePosixPath(str(pattern))
            beside |= {
                path for path in disk if path.parent == full.parent and fnmatchcase(path.name, full.name)
            }
    yield from sorted(beside - {config, engine.find_generated_config(config)})


def artifacts() -> tuple[Artifact, ...]:
    """Return a payload with all that it takes."""
    files = {name: f"{name}.17" if name in LIBRARIES else name for name in REQUIRED}
    return tuple(
        Artifact(name, file, PurePosixPath("/artifacts", file), 100, 0o755, "0" * 64, HEAD)
        for name, file in files.items()
    )


def expected(case: Case, folder: str, found: Disk) -> Disk:
    """Return the golden files of ``folder``, rewritten from ``found`` where that is asked for."""
    root = case.path / folder
    if REWRITE:
        shutil.rmtree(root, ignore_errors=True)
        for path, file in found.items():
            target = root / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            assert file is not None
            target.write_bytes(file.content)
    return _tree(root)


def sentence(case: Case, said: str) -> str:
    """Return the golden sentence of a refusal."""
    return golden(case.path / "refused.txt", f"{said}\n").rstrip("\n")
