"""Something fails behind each part of a plan with CDI, which NVIDIA's entry point makes: the node is as it was."""

import errno
import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from installer.change import transaction
from installer.cli import nvidia as compat
from installer.host import supervision
from installer.model.facts import Owner
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
from tests.support.site import Site

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
    "the engine's config": lambda step: isinstance(step, WriteConfig) and step.engine != Owner.CDI,
    "device nodes": lambda step: isinstance(step, MakeDeviceNodes),
    "the specification's directory": lambda step: isinstance(step, MakeDirectory) and step.path.name == "cdi",
    "the specification": lambda step: isinstance(step, WriteConfig) and step.engine == Owner.CDI,
}
# What happens behind a part: an exception of ours once, or from then on; the disk is full from then on.
KINDS = ("an exception", "an exception, in the roll-back too", "a full disk", "a read-only disk")


class Node(Site):
    """A node with a driver, to be installed on by NVIDIA's entry point."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.log = directory / "log"
        for path in ("run/nvidia/driver/dev", "bin", "run/nvidia/toolkit"):
            (self.root / path).mkdir(parents=True)
        (self.root / "bin/sh").touch(0o755)
        next(self.source.rglob("nvidia-ctk")).write_text(NVIDIA_CTK)

    def install_in_child(self, prepare: Callable[[], None] = lambda: None) -> tuple[int, str]:
        """Install in a child that is prepared; return its exit code and what it said."""
        environment = {
            "NO_DAEMON": "true",
            "RUNTIME": "containerd",
            "HOST_ROOT_MOUNT": str(self.root),
            "TOOLKIT_SOURCE_ROOT": str(self.source),
            "RUNTIME_RESTART_MODE": "none",
            "CDI_ENABLED": "true",
            "CDI_OUTPUT_DIR": str(self.root / "run/cdi"),
            "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
            "DRIVER_ROOT_CTR_PATH": str(self.root / "run/nvidia/driver"),
        }

        def act() -> int:
            sys.stderr = os.fdopen(2, "w", closefd=False)
            supervision.block_signals()
            return compat.run([], environment)

        return faults.forked(act, prepare, str(self.log)), self.log.read_text()

    def undone(self) -> dict[str, str]:
        """Return what stands there once our own command line has undone all."""
        assert faults.call(["uninstall", "--host-root", str(self.root), "--restart-mode", "none"]) == 0
        return self.tree()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def _behind(part: Part, happens: Callable[[int], None]) -> None:
    """Let something happen in this process behind the first step that is this part, and behind each after it."""
    do, numbers = transaction._do, count()  # noqa: SLF001 - in a child that ends with it
    met = False

    def disturbed(context: Any, plan: Any, step: Any, check: Any, done: Any) -> bool:
        nonlocal met
        happened = do(context, plan, step, check, done)
        met = met or part(step)
        if met:
            happens(next(numbers))
        return happened

    transaction._do = disturbed  # noqa: SLF001


def _failing(part: Part, kind: str) -> None:
    def fail(number: int) -> None:
        if kind == KINDS[1] or (kind == KINDS[0] and number == 0):
            raise RuntimeError("hunter2")
        if number == 0:
            code = errno.EROFS if kind == "a read-only disk" else errno.ENOSPC
            faults.begin(Fault(effects(), code, stays=code == errno.ENOSPC))

    _behind(part, fail)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", PARTS)
def test_what_fails_behind_a_part_is_rolled_back_with_all_before_it(node: Node, part: str, kind: str) -> None:
    before = node.tree()

    code, said = node.install_in_child(lambda: _failing(PARTS[part], kind))

    last = said.splitlines()[-1]
    assert code == 1, said
    # No config can be written on a disk that is still full.
    if "roll-back" in kind or (kind, part) == ("a full disk", "the engine's config"):
        assert (node.root / LEDGER).exists()
        assert "roll back after a failure" in last
    else:
        assert node.tree() == before
    if kind.startswith("an exception"):
        assert "internal error: RuntimeError in crash/test_parts.py" in last
        assert "report it with this log" in last
    assert "Traceback" not in said
    assert "hunter2" not in said
    assert node.undone() == before


@pytest.mark.sampled(16)
@pytest.mark.parametrize("goes_on", [True, False], ids=["installed again", "uninstalled"])
@pytest.mark.parametrize("part", PARTS)
def test_what_is_killed_behind_a_part_is_known_to_the_next_run(
    node: Node, part: str, *, goes_on: bool
) -> None:
    before = node.tree()
    code, _ = node.install_in_child(lambda: _behind(PARTS[part], lambda _: os._exit(faults.KILLED)))
    assert code == faults.KILLED

    if goes_on:
        assert node.install_in_child()[0] == 0
        assert (node.root / SPECIFICATION).exists()

    assert node.undone() == before


def test_a_specification_that_somebody_has_edited_since_stays_and_theirs_comes_back_in_a_roll_back(
    node: Node,
) -> None:
    theirs = node.root / SPECIFICATION
    theirs.parent.mkdir()
    theirs.write_text("kind: theirs\n")
    before = node.tree()

    assert node.install_in_child(lambda: _failing(PARTS["the engine's config"], KINDS[0]))[0] == 1
    assert node.tree() == before
    assert node.install_in_child()[0] == 0
    assert len(list((node.root / "run/nvidia/driver/dev").iterdir())) == 4
    installed = (node.root / LEDGER).read_bytes()
    assert "nothing changed" in node.install_in_child()[1]
    assert (node.root / LEDGER).read_bytes() == installed
    theirs.write_text("kind: theirs now\n")
    node.undone()
    assert theirs.read_text() == "kind: theirs now\n"
