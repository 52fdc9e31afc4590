"""The words of a start, read by themselves, say what click says of them."""

from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from installer.cli import ACTS
from installer.commands import program
from installer.flags import FLAGS
from installer.words import COMPLETION, plain

TEXTS = (
    "",
    "docker",
    "docker,containerd",
    "auto",
    "undo",
    "2.5",
    "x",
    "yes",
    " TRUE ",
    "0",
    "-h",
    "--",
    "a=b=c",
)
NAMES = (
    *(flag.name for flag in FLAGS),
    "--no-retry",
    "--no-timeout",
    "--retr",
    "-h",
    "--help",
    "--",
    "word",
    "-x",
)
texts = st.sampled_from(TEXTS)
words = st.lists(
    st.one_of(
        st.sampled_from(NAMES),
        texts,
        st.builds("{}={}".format, st.sampled_from(NAMES), texts),
    ),
    max_size=5,
)
variables = st.dictionaries(st.sampled_from([flag.variable for flag in FLAGS]), texts, max_size=3)


def by_click(
    verb: str, said: list[str], environment: dict[str, str]
) -> tuple[dict[str, Any], frozenset[str]] | None:
    """Return what click makes of it; None where it would say something itself."""
    command = program.commands[verb]
    with pytest.MonkeyPatch.context() as patch:
        for flag in FLAGS:
            patch.delenv(flag.variable, raising=False)
        for name, text in environment.items():
            patch.setenv(name, text)
        try:
            context = command.make_context(verb, list(said))
        except (click.ClickException, click.exceptions.Exit):
            return None
    default = click.core.ParameterSource.DEFAULT
    given = {name for name in context.params if context.get_parameter_source(name) is not default}
    return context.params, frozenset(given)


@given(st.sampled_from(sorted(ACTS)), words, variables)
@example("install", ["--timeout", "2.5", "--retry", "--no-retry"], {})
@example("run", ["--runtime=docker", "--runtime", "containerd"], {"TOOLKIT_INSTALLER_RETRY": "on"})
@example("run", ["--config", "-h"], {})
@example("run", ["--retry=yes"], {})
@example("run", ["--timeout"], {})
def test_words_mean_what_they_mean_to_click(verb: str, said: list[str], environment: dict[str, str]) -> None:
    ours, theirs = plain(said, environment), by_click(verb, said, environment)

    # What only click understands, such as --, it is asked for.
    assert ours in (None, theirs)


@pytest.mark.parametrize("flag", FLAGS, ids=[flag.name for flag in FLAGS])
def test_each_flag_and_each_variable_is_read_without_click(flag: Any) -> None:
    text = "7.5" if isinstance(flag.default, float) else (*flag.choices, "word")[0]
    switch = isinstance(flag.default, bool)
    words = [flag.name] if switch else [flag.name, text]

    for verb in ACTS:
        assert plain(words, {}) == by_click(verb, words, {}) != None  # noqa: E711 - of both
        variable = {flag.variable: "true" if switch else text}
        assert plain([], variable) == by_click(verb, [], variable) != None  # noqa: E711 - of both


def test_a_shell_that_completes_words_gets_them_of_click() -> None:
    assert plain([], {COMPLETION: "bash_complete"}) is None
