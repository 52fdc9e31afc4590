"""Something fails after each part of a plan with CDI: the node is as it was, by every entry point; the code is true."""

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.change import transaction
from installer.cli import log as logging
from installer.cli import nvidia as compat
from installer.errors import InstallerError
from installer.host import supervision
from installer.lifecycle import install as daemon
from installer.lifecycle.uninstall import uninstall
from installer.model.facts import OWNER
from installer.model.options import Cdi, Options, RestartMode
from installer.model.steps import (
    InstallVersion,
    MakeDeviceNodes,
    MakeDirectory,
    Step,
    SwitchToolkit,
    WriteConfig,
)
from tests.crash import faults
from tests.crash.faults import Fault, effects
from tests.crash.nodes import LEDGER
from tests.support.stand_in import CONFIGS, stand_in_payload
from tests.support.tree import tree

CONFIG = {"docker": "etc/docker/daemon.json", "containerd": "etc/containerd/config.toml"}
KIND = "management.nvidia.com/gpu"
SPECIFICATION = "run/cdi/management.nvidia.com-gpu.yaml"
# It makes files in the place of device nodes, for which root is needed, and prints what it was asked.
NVIDIA_CTK = """\
#!/bin/sh
for word; do case $word in --dev-root=*) root=${word#*=};; esac; done
case "$1 $2" in
"system create-device-nodes") cd "$root/dev" && touch nvidiactl nvidia-modeset nvidia-uvm nvidia-uvm-tools;;
"cdi generate") [ -e "$root/dev/nvidiactl" ] || { echo "no NVIDIA device nodes found" >&2; exit 1; }
    echo "kind: $*";;
"cdi transform") cat;;
esac
"""

Part = Callable[[Step], bool]
PARTS: dict[str, Part] = {
    "the toolkit": lambda step: isinstance(step, InstallVersion),
    "the toolkit's name": lambda step: isinstance(step, SwitchToolkit),
    "the engine's config": lambda step: isinstance(step, WriteConfig) and step.engine != OWNER,
    "device nodes": lambda step: isinstance(step, MakeDeviceNodes),
    "the specification's directory": lambda step: isinstance(step, MakeDirectory) and step.path.name == "cdi",
    "the specification": lambda step: isinstance(step, WriteConfig) and step.engine == OWNER,
}
# What happens behind a part: an exception of ours once, or from then on; the disk is full from then on.
KINDS = ("an exception", "an exception, in the roll-back too", "a full disk", "a read-only disk")


@dataclass
class Site:
    """One node with one engine, to be installed on by either entry point."""

    directory: Path
    engine: str

    def __post_init__(self) -> None:
        self.root, self.source = self.directory / "node", self.directory / "artifacts"
        config = self.root / CONFIG[self.engine]
        config.parent.mkdir(parents=True)
        config.write_text(CONFIGS[CONFIG[self.engine]])
        for path in ("run/nvidia/driver/dev", "bin", "run/nvidia/toolkit"):
            (self.root / path).mkdir(parents=True)
        (self.root / "bin/sh").touch(0o755)
        stand_in_payload(self.source)
        tool = next(self.source.rglob("nvidia-ctk"))
        tool.write_text(NVIDIA_CTK)

    @property
    def options(self) -> Options:
        there, here = "/run/nvidia/driver", str(self.root / "run/nvidia/driver")
        cdi = Cdi(PurePosixPath("/run/cdi"), KIND, there, here, there, here, nodes=True)
        return Options(
            engines=(self.engine,),
            toolkit_source=PurePosixPath(self.source),
            host_root=PurePosixPath(self.root),
            restart_mode=RestartMode.NONE,
            cdi=cdi,
        )

    def ours(self) -> int:
        """Install by our own entry point, which has no flag for CDI: its verb is called."""
        logging.configure(logging.LogFormat.AUTO)
        try:
            return int(daemon.install(self.options))
        except InstallerError as error:
            logging.say_failed(error)
            return error.exit

    def nvidias(self) -> int:
        environment = {
            "NO_DAEMON": "true",
            "RUNTIME": self.engine,
            "HOST_ROOT_MOUNT": str(self.root),
            "TOOLKIT_SOURCE_ROOT": str(self.source),
            "RUNTIME_RESTART_MODE": "none",
            "CDI_ENABLED": "true",
            "CDI_OUTPUT_DIR": str(self.root / "run/cdi"),
            "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
            "DRIVER_ROOT_CTR_PATH": str(self.root / "run/nvidia/driver"),
        }
        return compat.run([], environment)


# Each entry point with one engine: what follows them is the same.
ENTRIES: dict[str, tuple[Callable[[Site], int], str]] = {
    "toolkit-installer": (Site.ours, "docker"),
    "nvidia-toolkit": (Site.nvidias, "containerd"),
}


def _failing(part: Part, kind: str) -> None:
    """Let what is done after the first step that is this part fail, in this process."""
    do, met = transaction._do, list[Step]()  # noqa: SLF001 - in a child that ends with it

    def failing(context: Any, plan: Any, step: Any, check: Any) -> bool:
        happened = do(context, plan, step, check)
        if met and kind == "an exception, in the roll-back too":
            raise RuntimeError("hunter2")
        if met or not part(step):
            return happened
        met.append(step)
        if kind.startswith("an exception"):
            raise RuntimeError("hunter2")
        number = errno.EROFS if kind == "a read-only disk" else errno.ENOSPC
        faults.begin(Fault(effects(), number, stays=number == errno.ENOSPC))
        return happened

    transaction._do = failing  # noqa: SLF001


def _call(entry: Callable[[Site], int], site: Site, prepare: Callable[[], None]) -> tuple[int, str]:
    """Call an entry point in a child; return its exit code and what it said."""
    log = site.directory / "log"
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), log.read_text()
    code = 99
    try:
        told = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(told, 1)
        os.dup2(told, 2)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        supervision.block_signals()
        faults.watch_writes()
        prepare()
        code = entry(site)
    finally:
        faults.begin(None)
        os._exit(code)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", PARTS)
def test_what_fails_behind_a_part_is_rolled_back_with_all_before_it(
    tmp_path: Path, part: str, kind: str, entry: str
) -> None:
    call, engine = ENTRIES[entry]
    site = Site(tmp_path, engine)
    before = tree(site.root)

    code, said = _call(call, site, lambda: _failing(PARTS[part], kind))

    last = said.splitlines()[-1]
    # No config can be written on a disk that is still full.
    if "roll-back" in kind or (kind, part) == ("a full disk", "the engine's config"):
        assert code == (4 if entry == "toolkit-installer" else 1), said
        assert (site.root / LEDGER).exists()
        assert "roll back after a failure" in last
    else:
        assert code == 1, said
        assert tree(site.root) == before
    if kind.startswith("an exception"):
        assert "internal error: RuntimeError in crash/test_parts.py" in last
        assert "report it with this log" in last
    assert "Traceback" not in said
    assert "hunter2" not in said
    assert uninstall(site.options) == 0
    assert tree(site.root) == before


def _dying(part: Part) -> None:
    """Let this process be killed behind the first step that is this part."""
    do = transaction._do  # noqa: SLF001 - in a child that ends with it

    def dying(context: Any, plan: Any, step: Any, check: Any) -> bool:
        happened = do(context, plan, step, check)
        if part(step):
            os._exit(faults.KILLED)
        return happened

    transaction._do = dying  # noqa: SLF001


@pytest.mark.parametrize("goes_on", [True, False], ids=["installed again", "uninstalled"])
@pytest.mark.parametrize("part", PARTS)
def test_what_is_killed_behind_a_part_is_known_to_the_next_run(
    tmp_path: Path, part: str, *, goes_on: bool
) -> None:
    site = Site(tmp_path, "containerd")
    before = tree(site.root)
    assert _call(Site.nvidias, site, lambda: _dying(PARTS[part]))[0] == faults.KILLED

    if goes_on:
        assert daemon.install(site.options) == 0
        assert (site.root / SPECIFICATION).exists()

    assert uninstall(replace(site.options, cdi=None)) == 0
    assert tree(site.root) == before


def test_a_specification_that_somebody_has_edited_since_stays_and_theirs_comes_back_in_a_roll_back(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, "docker")
    theirs = site.root / SPECIFICATION
    theirs.parent.mkdir()
    theirs.write_text("kind: theirs\n")
    before = tree(site.root)

    assert _call(Site.ours, site, lambda: _failing(PARTS["the engine's config"], KINDS[0]))[0] == 1
    assert tree(site.root) == before
    assert daemon.install(site.options) == 0
    theirs.write_text("kind: theirs now\n")
    assert uninstall(site.options) == 0
    assert theirs.read_text() == "kind: theirs now\n"


@pytest.mark.parametrize("entry", ENTRIES)
def test_without_a_failure_all_of_it_is_installed_and_undone(tmp_path: Path, entry: str) -> None:
    call, engine = ENTRIES[entry]
    site = Site(tmp_path, engine)
    before = tree(site.root)

    assert _call(call, site, lambda: None)[0] == 0
    assert (site.root / SPECIFICATION).exists()
    assert len(list((site.root / "run/nvidia/driver/dev").iterdir())) == 4
    installed = (site.root / LEDGER).read_bytes()
    assert "nothing changed" in _call(call, site, lambda: None)[1]
    assert (site.root / LEDGER).read_bytes() == installed

    assert uninstall(replace(site.options, cdi=None)) == 0
    assert tree(site.root) == before
