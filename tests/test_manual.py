"""The manual page and the shell completions are those of the program, and the programs that read them do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from installer.cli.app import program
from installer.cli.flags import FLAGS
from tests.engines import debs
from tests.support.golden import golden
from tests.support.manual import manual
from tests.support.site import PROJECT

PAGE = PROJECT / "docs/man/toolkit-installer.1"
COMPLETION = PROJECT / "docs/completion"
SHELLS = ("bash", "fish", "zsh")
NAME, VARIABLE = "toolkit-installer", "_TOOLKIT_INSTALLER_COMPLETE"


def test_the_manual_page_is_made_of_the_tables() -> None:
    assert manual() == golden(PAGE, manual())


def test_the_manual_page_has_every_verb_and_every_flag() -> None:
    text = PAGE.read_text().replace("\\-", "-")

    assert [name for name in program.commands if f".TP\n.B {name}\n" not in text] == []
    assert [flag.name for flag in FLAGS if flag.name not in text or flag.variable not in text] == []


def test_the_manual_page_is_one_that_man_reads() -> None:
    mandoc = debs.program("mandoc", "mandoc", "bookworm")  # runs on newer ones, too

    done = subprocess.run(
        [mandoc, "-T", "lint", "-W", "error", str(PAGE)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_of_a_shell_is_clicks(shell: str) -> None:
    made = get_completion_class(shell)
    assert made is not None
    source = made(program, {}, NAME, VARIABLE)
    text = source.source_template % source.source_vars()

    assert text.strip() + "\n" == golden(COMPLETION / f"{NAME}.{shell}", text.strip() + "\n")


def test_bash_completes_a_verb_by_its_file(tmp_path: Path) -> None:
    script = (
        f". {COMPLETION}/{NAME}.bash; COMP_WORDS=({NAME} uninst); COMP_CWORD=1; _toolkit_installer_completion {NAME}; "
        'echo "${COMPREPLY[@]}"'
    )
    called = tmp_path / NAME
    called.symlink_to(Path(sys.executable).parent / NAME)

    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout.split() == ["uninstall"], done.stderr
