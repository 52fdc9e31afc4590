"""A containerd that is not started: its real program says what its real files come to (``config dump``)."""

import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from installer.change.plan import Plan, entries_for, plan_install, plan_undo
from installer.change.transaction import refuse_obstacles
from installer.config_text import Syntax, WantedKey
from installer.config_text.change import apply, parse
from installer.engines import ENGINES
from installer.engines.comparison import compare_configs
from installer.engines.config_files import with_readable_configs
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN, read_dump
from installer.engines.dry_run import DryRuns
from installer.host.files import Host
from installer.model.effective import EffectiveConfig, find_disturbances
from installer.model.engine import EngineState
from installer.model.facts import Facts, Record
from installer.model.files import File
from installer.model.options import Options, RestartMode
from installer.model.steps import WriteConfig
from tests.change.golden import Case
from tests.engines.conftest import Containerd
from tests.support.waiting import HANGS_S

OURS = frozenset(entry.name for entry in entries_for(Options()))
HOST = Host.under(PurePosixPath("/"))


@dataclass
class Node:
    """A root file and what it imports, on a real disk, under one version of containerd; no daemon runs."""

    program: Path
    version: tuple[int, ...]
    directory: Path
    held: Record = field(default_factory=Record)
    saved: dict[str, File] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.directory / "etc/config.toml"

    def truth(self) -> EffectiveConfig:
        """Return what containerd itself makes of the real files."""
        done = self._config("dump")
        if done.returncode:
            return EffectiveConfig({}, "", broken=done.stderr.strip().splitlines()[-1])
        return read_dump(tomllib.loads(done.stdout))

    def _config(self, verb: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), "--config", str(self.config), "config", verb]
        return subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=HANGS_S, check=False)

    def files(self) -> dict[PurePosixPath, bytes]:
        return {PurePosixPath(path): path.read_bytes() for path in sorted(self.directory.rglob("*.toml"))}

    def names_us(self) -> bool:
        return any(b"/usr/local/nvidia/toolkit" in content for content in self.files().values())

    def facts(self, drop_in: PurePosixPath | None) -> tuple[Facts, DryRuns]:
        bare = EngineState(
            ENGINES["containerd"], PurePosixPath(self.config), drop_in, None, (), PurePosixPath("/nowhere"), "",
            version=self.version, exe=PurePosixPath(self.program), stopped=True,  # nothing is started here
        )  # fmt: skip
        engine = with_readable_configs(HOST, bare)
        paths = {*engine.files, *(row.path for row in self.held.configs), *([drop_in] if drop_in else [])}
        contents = {path: HOST.read(path) for path in paths}
        saved = {
            row.path: self.saved[row.original.digest] if row.original else None for row in self.held.configs
        }
        facts = Case("containerd", self.directory, {}).facts({}, self.held, saved)
        return replace(facts, engines=(engine,), contents=contents), DryRuns(HOST, contents)

    def carry_out(self, plan: Plan) -> None:
        """Write what a plan writes.

        Raises:
            InstallerError: refused; nothing was written.
        """
        refuse_obstacles(plan)
        self.saved |= {file.digest: file for file in plan.backups}
        for step in plan.steps:
            if isinstance(step, WriteConfig):
                path = Path(step.path)
                assert HOST.read(step.path) == step.before
                if step.after is None:
                    path.unlink()
                else:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(step.after.content)
        self.held = plan.final or Record()

    def edit(self, path: Path, *wants: WantedKey) -> None:
        """Do what an admin does with his editor."""
        text, _ = apply(path.read_text(), wants, Syntax.TOML, name=str(path))
        path.write_text(text)

    def cri(self, path: Path) -> tuple[str, ...]:
        """Return the key of the table of the runtimes in a file, where an admin would look for it."""
        tree = parse(path.read_text(), Syntax.TOML, name=str(path))
        plugins = tree.get("plugins")
        there = plugins if isinstance(plugins, Mapping) else {}
        named = next((name for name in (V3_PLUGIN, V2_PLUGIN, "cri") if name in there), "")
        schema = tree.get("version", 1)
        usual = {1: "cri", 2: V2_PLUGIN}.get(schema if isinstance(schema, int) else 2, V3_PLUGIN)
        return ("plugins", named or usual, "containerd")

    def install(self, *, default: bool = False, drop_in: str = "") -> Plan:
        """Install as with ``--restart-mode none``; ``drop_in`` is a path below the node's directory.

        Raises:
            InstallerError: refused; nothing was written.
        """
        facts, dry_runs = self.facts(PurePosixPath(self.directory, drop_in) if drop_in else None)
        options = Options(engines=("containerd",), set_as_default=default, restart_mode=RestartMode.NONE)
        plan = plan_install(facts, options, dry_runs)
        self.carry_out(plan)
        return plan

    def install_and_ask(self, before: EffectiveConfig, *, default: bool = False, drop_in: str = "") -> None:
        """Install: ours are there and like the default of ``before``, all else is as it was, an install has no more to do.

        Raises:
            InstallerError: refused; nothing was written.
        """
        self.install(default=default, drop_in=drop_in)
        served = self.truth()
        assert not served.broken
        assert not served.undefined
        assert [*find_disturbances(before, served, OURS)] == []
        assert served.handlers.keys() >= OURS
        assert served.default == ("nvidia" if default else before.default)
        like = "runc" if before.default == "nvidia" else before.default  # NVIDIA's own is like runc itself
        if like in {"runc", "crun", "mine"} & before.handlers.keys():
            assert {systemd(served, name) for name in OURS} == {systemd(before, like)}
        assert writes(self.install(default=default, drop_in=drop_in)) == []
        (row,) = self.held.engines
        assert compare_configs(HOST, row, self.held).is_as_installed

    def uninstall(self) -> Plan:
        """Undo as with ``--restart-mode none``."""
        facts, dry_runs = self.facts(None)
        plan = plan_undo(facts, Options(restart_mode=RestartMode.NONE), dry_runs)
        self.carry_out(plan)
        return plan

    def migrate(self) -> None:
        """Do what each start of 2.x advises: ``containerd config migrate``."""
        done = self._config("migrate")
        if done.returncode == 0 and "version" in done.stdout:
            self.config.write_text(done.stdout)


def a_node(containerd: Containerd, directory: Path, root: str | None = None, **files: str) -> Node:
    """Return a node with a root file and others; ``@`` stands for the directory of the configs."""
    node = Node(*containerd, directory)
    node.config.parent.mkdir(parents=True)
    for name, text in (files if root is None else {"config": root} | files).items():
        path = node.config.parent / f"{name.replace('__', '/')}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("@", str(node.config.parent)))
    return node


def systemd(effective: EffectiveConfig, name: str) -> bool:
    """Tell whether a runtime uses systemd's cgroup driver, as containerd itself has it."""
    options = effective.handlers[name].table.get("options")
    return isinstance(options, Mapping) and options.get("SystemdCgroup") is True


def writes(plan: Plan) -> list[WriteConfig]:
    return [step for step in plan.steps if isinstance(step, WriteConfig)]
