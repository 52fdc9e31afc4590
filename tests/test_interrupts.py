"""An interrupt while the program is loaded: a quiet end, or none before the verb looks, and no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from installer.cli.app import program
from tests.support import preloaded
from tests.support.entry import SCRIPTS
from tests.support.site import Site

# Python is interrupted as soon as it looks for a module.
INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = {words!r}
from {module} import main
main()
"""
MODULES = ("installer.__main__", "installer.cli.program", "installer.errors", "msgspec")
VERBS = sorted(program.commands)


def interrupted(script: str, name: str, *words: str) -> str:
    """Return what a program says whose Python is interrupted when it loads the module ``name``."""
    module = SCRIPTS[script].partition(":")[0]
    code = INTERRUPTED.format(name=name, words=[script, *words], module=module)
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=preloaded.ENVIRONMENT
    )
    return done.stdout + done.stderr


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupt_while_the_program_is_loaded_shows_no_traceback(
    clean: Site, verb: str, name: str
) -> None:
    words = [verb]
    if verb not in {"demo", "untaint"}:
        words += ["--host-root", str(clean.root)]

    assert "Traceback" not in interrupted("toolkit-installer", name, *words)


@pytest.mark.parametrize("name", [*MODULES, "installer.cli.nvidia"])
def test_an_interrupt_while_the_program_with_nvidias_name_is_loaded_shows_no_traceback(name: str) -> None:
    assert "Traceback" not in interrupted("nvidia-toolkit", name, "--root", "/nowhere/at/all", "--version")


@pytest.mark.parametrize("by_group", [True, False], ids=["as a terminal does", "demo alone"])
def test_an_interrupt_of_demo_is_a_sentence_and_no_internal_error(tmp_path: Path, *, by_group: bool) -> None:
    command = [sys.executable, "-m", "installer", "demo"]
    environment = preloaded.ENVIRONMENT | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if "toolkit-installer run" in line:
                break
        if by_group:
            os.killpg(child.pid, signal.SIGINT)
        else:
            child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)

    # click ends the line on which a terminal shows ^C.
    sentence = "\ntoolkit-installer: cannot finish (stopped by a signal); run it again\n"
    assert (child.returncode, said) == (1, sentence)
    assert [*tmp_path.iterdir()] == []
