"""The manual page and the shell completions are those of the program, and the programs that read them do."""

import re
import subprocess
from collections.abc import Iterator

import pytest
from click.shell_completion import get_completion_class

from installer.cli.app import program
from installer.cli.flags import FLAGS, Flag
from tests.engines import debs
from tests.support.golden import golden
from tests.support.site import PROJECT

REFERENCE = (PROJECT / "docs/reference.md").read_text()
HEAD = """\
.\\" Generated from installer/cli/flags.py and docs/reference.md by "make golden".
.TH TOOLKIT\\-INSTALLER 1 "" "" ""
.SH NAME
toolkit\\-installer \\- install the NVIDIA container toolkit and configure the container engines of a node
.SH SYNOPSIS
.B toolkit\\-installer
.I VERB
.RI [ OPTION ...]
"""


def manual() -> str:
    """Return the page for man(1)."""
    parts = [HEAD, ".SH DESCRIPTION\n", _sentence(program.help or "")]
    verbs = ((name, verb.help or "") for name, verb in program.commands.items())
    parts += [".SH VERBS\n", *(_entry(f".B {_word(name)}", text) for name, text in verbs)]
    parts += [".SH OPTIONS\n", _sentence("VERB --help shows those that a verb uses."), *map(_option, FLAGS)]
    parts += [".SH EXIT STATUS\n", *(_entry(f".B {code}", text) for code, text in _table("exit code"))]
    parts += [".SH FILES\n", *(_entry(f".I {_word(path)}", text) for path, text in _files())]
    return "".join(parts)


def _option(flag: Flag) -> str:
    if isinstance(flag.default, bool):
        head = f'.BR {_word(flag.name)} ", " {_word(flag.name.replace("--", "--no-", 1))}'
    else:
        head = f'.BI {_word(flag.name)} " {_word("|".join(flag.choices) or flag.metavar)}"'
    told = [flag.help]
    if isinstance(flag.default, bool):
        told.append(f"Default: {'on' if flag.default else 'off'}.")
    elif flag.default:
        told.append(f"Default: {flag.default[0] if isinstance(flag.default, tuple) else flag.default}.")
    told += ["May be repeated."] if isinstance(flag.default, tuple) else []
    return _entry(head, " ".join([*told, f"Variable: {flag.variable}."]))


def _table(first: str) -> Iterator[tuple[str, str]]:
    rows = REFERENCE.partition(f"| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    for row in rows:
        _, code, text, _ = row.split("|")
        yield code.strip(), re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.strip()).replace("`", "")


def _files() -> Iterator[tuple[str, str]]:
    block = REFERENCE.partition("```text\n")[2].partition("```")[0]
    for line in block.splitlines():
        path, _, text = line.partition(" ")
        yield path, text.strip()


def _entry(head: str, text: str) -> str:
    return f".TP\n{head}\n{_sentence(text)}"


def _sentence(text: str) -> str:
    return f"{_word(text.strip())}\n"


def _word(text: str) -> str:
    """Return text as roff takes it: dashes that can be copied, no line that begins like a command."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in {".", "'"} else escaped


PAGE = PROJECT / "docs/man/toolkit-installer.1"
COMPLETION = PROJECT / "docs/completion"
SHELLS = ("bash", "fish", "zsh")
NAME, VARIABLE = "toolkit-installer", "_TOOLKIT_INSTALLER_COMPLETE"


def test_the_manual_page_is_made_of_the_tables() -> None:
    assert manual() == golden(PAGE, manual())


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
