"""Every verb reads its words and variables the same way: by click, from the one table of flags."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.core import ParameterSource

from installer.cli.app import program
from installer.cli.flags import FLAGS, Flag
from tests.support.site import PROJECT


def taken_by(verb: str) -> list[Flag]:
    return [flag for flag in FLAGS if flag.field in {each.name for each in program.commands[verb].params}]


def call(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "installer", *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def read(verb: str, words: Sequence[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the values of all flags of a verb, and the fields of those that somebody gave."""
    context = program.commands[verb].make_context(verb, [*words])
    given = {
        name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    return context.params, frozenset(given)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in FLAGS:
        monkeypatch.delenv(flag.variable, raising=False)


@pytest.mark.parametrize("verb", program.commands)
def test_a_flag_and_its_variable_mean_the_same_to_each_verb(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flag in taken_by(verb):
        text = "7.5" if isinstance(flag.default, float) else (*flag.choices, "word")[0]
        word: Any = float(text) if isinstance(flag.default, float) else text
        switch, several = isinstance(flag.default, bool), isinstance(flag.default, tuple)
        wanted = True if switch else (word, word) if several else word

        by_words = read(verb, [flag.name] if switch else [flag.name, text] * (1 + several))
        with monkeypatch.context() as environment:
            environment.setenv(flag.variable, "yes" if switch else f"{text},{text}" if several else text)
            by_variable = read(verb, [])

        assert by_words == by_variable
        assert by_words[0][flag.field] == wanted
        assert by_words[1] == {flag.field}


@pytest.mark.parametrize("verb", program.commands)
def test_an_empty_variable_is_none(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in taken_by(verb):
        monkeypatch.setenv(flag.variable, "")

    values, given = read(verb, [])

    assert [flag.name for flag in taken_by(verb) if values[flag.field] != flag.default] == []
    assert given == frozenset()


@pytest.mark.parametrize("verb", ["run", "install", "plan", "uninstall"])
@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        pytest.param(["--timeout", "1", "--timeout=2.5"], "timeout", 2.5, id="the last of two counts"),
        pytest.param(["--retry", "--no-retry"], "retry", False, id="a switch is switched off again"),
        pytest.param(
            ["--config", "docker=/a", "--config=crio=/b"], "config", ("docker=/a", "crio=/b"), id="engines"
        ),
        pytest.param(["--mount", "/e=/f"], "mount", ("/e=/f",), id="a flag hides all of its variable"),
        pytest.param(["--config", "-h"], "config", ("-h",), id="a value like a flag"),
    ],
)
def test_words_are_read_as_everywhere(
    verb: str, words: list[str], field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLKIT_INSTALLER_MOUNT", "/a=/b,/c=/d")

    assert read(verb, words)[0][field] == value


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        pytest.param("stauts", {}, "No such command 'stauts'.", id="a verb"),
        pytest.param("install --retr", {}, "No such option '--retr'.", id="an option"),
        pytest.param("status --dep", {}, "No such option '--dep'.", id="an option of status"),
        pytest.param("status word", {}, "Got unexpected extra argument (word)", id="a word too many"),
        pytest.param("status --mount", {}, "Option '--mount' requires an argument.", id="no value"),
        pytest.param("status --ready --alive", {}, "Give --ready or --alive, not both.", id="two probes"),
        pytest.param("run --retry=yes", {}, "Option '--retry' does not take a value.", id="a switch's value"),
        pytest.param("plan --mode x", {}, "'x' is not one of 'auto', 'runtime', 'cdi', 'nri'.", id="choices"),
        pytest.param(
            "install",
            {"RETRY": "maybe"},
            "'TOOLKIT_INSTALLER_RETRY'): 'maybe' is not",
            id="a switch's variable",
        ),
        pytest.param("run", {"TIMEOUT": "soon"}, "'soon' is not a valid float.", id="a number's variable"),
        pytest.param("run", {"RUNTIME": "docker,x"}, "'x' is not one of", id="one of a variable's values"),
        pytest.param("status --mount x", {}, "cannot mount 'x'; write --mount HOST=HERE", id="half a mount"),
        pytest.param(
            "plan --runtime docker --socket foo=/x --log-format text",
            {},
            "cannot tell which engine --socket foo=/x is for; write --socket ENGINE=PATH, with one of: docker,",
            id="the socket of no engine",
        ),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence_and_is_code_2(
    words: str, variables: dict[str, str], sentence: str
) -> None:
    done = call(*words.split(), **{f"TOOLKIT_INSTALLER_{name}": text for name, text in variables.items()})

    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_shell_completes_the_options_of_status() -> None:
    done = call(
        COMP_WORDS="toolkit-installer status --de",
        COMP_CWORD="2",
        _TOOLKIT_INSTALLER_COMPLETE="bash_complete",
    )

    assert done.stdout.split() == ["plain,--deep"]


@pytest.mark.parametrize("words", ["install --toolkit-source", "status --pid-file", "plan --config"])
def test_a_shell_completes_the_paths_of_files(words: str) -> None:
    done = call(
        COMP_WORDS=f"toolkit-installer {words} /op",
        COMP_CWORD="3",
        _TOOLKIT_INSTALLER_COMPLETE="bash_complete",
    )

    assert done.stdout.split() == ["file,/op"]


def test_an_error_of_status_is_a_sentence_for_the_event_of_a_probe(tmp_path: Path) -> None:
    done = call("status", "--host-root", str(tmp_path / "none"))

    assert done.returncode == 1
    assert done.stderr.startswith("toolkit-installer: cannot find the host's root ")
