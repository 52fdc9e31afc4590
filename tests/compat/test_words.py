"""Each flag and each variable of nvidia.toml: names, precedence, kinds, defaults, errors."""

from collections.abc import Mapping
from typing import Any

import pytest

from installer.cli.nvidia_flags import ENGINE_OF, FALSE, OWN_ENGINE_ONLY, TRUE, Row, read, rows
from installer.errors import UsageError

ENGINES = ("docker", "containerd", "crio")
OLD = ("toolkit-args", "runtime-args")
PLAIN = [row for row in rows() if row.kind != "words" and row.name != "runtime"]
# A text of each kind, and what it is read as.
SAMPLES: Mapping[str, tuple[str, Any]] = {
    "bool": ("true", True),
    "text": ("some text", "some text"),
    "number": ("42", 42),
    "list": ("one, two", ["one", "two"]),
}
OTHERS = {"bool": "0", "text": "other", "number": "7", "list": "three"}


def _flags(name: str) -> tuple[str, ...]:
    return (f"--{name}", f"-{name}") if len(name) > 1 else (f"-{name}",)


def _for(row: Row, variable: str) -> str:
    """Return an engine for which a variable counts."""
    return ENGINE_OF.get(variable.partition("_")[0], "docker") if row.name in OWN_ENGINE_ONLY else "docker"


@pytest.mark.parametrize("engine", ENGINES)
def test_what_nobody_says_has_its_default(engine: str) -> None:
    asked = read([], {"RUNTIME": engine})

    assert {row.name: asked[row.name] for row in PLAIN} == {
        row.name: row.default_for(engine) for row in PLAIN
    }
    assert [row.name for row in PLAIN if asked.given(row.name)] == []


def test_every_name_is_taken_with_one_dash_or_two_and_beats_every_variable() -> None:
    for row in PLAIN:
        text, value = SAMPLES[row.kind]
        for flag in (flag for name in row.names for flag in _flags(name)):
            for words in ([f"{flag}={text}"], [flag] if row.kind == "bool" else [flag, text]):
                asked = read(words, dict.fromkeys(row.env, OTHERS[row.kind]))

                assert (asked[row.name], asked.settings[row.name].by) == (value, flag), words


def test_the_first_variable_that_is_set_counts() -> None:
    variables = [(row, *place) for row in PLAIN for place in enumerate(row.env)]
    for row, place, variable in variables:
        text, value = SAMPLES[row.kind]
        other, engine = OTHERS[row.kind], _for(row, variable)
        later = dict.fromkeys(row.env[place + 1 :], other)

        asked = read([], {"RUNTIME": engine, **later, variable: text})

        assert asked[row.name] == value, variable
        assert asked.settings[row.name].by == variable


def test_an_empty_variable_counts_and_hides_the_later_ones_with_a_warning() -> None:
    for row in (row for row in PLAIN if row.env):
        first, *later = row.env
        empty = {"bool": False, "text": ""}.get(row.kind, row.default_for("docker"))

        asked = read([], {first: "", **dict.fromkeys(later, SAMPLES[row.kind][0])})

        assert asked[row.name] == empty, row.name
        assert asked.given(row.name)
        assert [f"{name} is ignored: {first} is set, although empty, and comes first" for name in later] == [
            warning for warning in asked.warnings if "although empty" in warning
        ]


@pytest.mark.parametrize("name", sorted(OWN_ENGINE_ONLY))
@pytest.mark.parametrize("engine", ENGINES)
def test_a_path_for_another_engine_does_not_count(name: str, engine: str) -> None:
    row = next(row for row in rows() if row.name == name)
    others = {
        variable: "/x"
        for variable in row.env
        if ENGINE_OF.get(variable.partition("_")[0]) not in {None, engine}
    }

    assert others
    assert read([], {"RUNTIME": engine, **others})[name] == row.default_for(engine)


def test_a_bool_is_one_of_twelve_words() -> None:
    for word in TRUE | FALSE:
        for asked in (read([f"--no-daemon={word}"], {}), read([], {"NO_DAEMON": word})):
            assert asked["no-daemon"] is (word in TRUE), word
    for word in ("yes", " true", "TrUe", "2"):
        with pytest.raises(UsageError, match="neither true nor false"):
            read([], {"NO_DAEMON": word})


OLD_TEXT = {"TOOLKIT_ARGS": "--driver-root /old --root /old", "DRIVER_ROOT": "/variable"}


@pytest.mark.parametrize(
    ("words", "environment", "name", "value"),
    [
        pytest.param(
            "--no-daemon", {"NO_DAEMON": "x"}, "no-daemon", True, id="a flag keeps its variable unread"
        ),
        pytest.param(
            "--root /a --toolkit-install-dir=/b", {}, "toolkit-install-dir", "/b", id="the last alias"
        ),
        pytest.param("", OLD_TEXT, "driver-root", "/old", id="an old text beats a variable"),
        pytest.param("--root /b", OLD_TEXT, "toolkit-install-dir", "/b", id="and gives way to a flag"),
        pytest.param("/a", {"ROOT": "/b"}, "toolkit-install-dir", "/a", id="a destination beats a variable"),
        pytest.param("/a --root /b", {}, "toolkit-install-dir", "/b", id="and gives way to a flag as well"),
        pytest.param(
            "--config-source=a --config-sources b,c=/x", {}, "config-source", ["a", "b", "c=/x"], id="a list"
        ),
    ],
)
def test_what_is_said_twice_counts_once_and_a_list_is_appended_to(
    words: str, environment: dict[str, str], name: str, value: object
) -> None:
    assert read(words.split(), environment)[name] == value


@pytest.mark.parametrize(
    ("words", "environment", "warning"),
    [
        ("--no-runtime-config false", {}, "the argument false is ignored"),
        ("/a --root /b", {}, "/a is ignored: --root says where to install"),
        (
            "",
            {"foo": "bar", "NVIDIA_VISIBLE_DEVICES": "void", "HOST_ROOT": "/", "RUNTIME_CONFG": "/x"},
            "the variable RUNTIME_CONFG is not known: is RUNTIME_CONFIG meant?",
        ),
    ],
    ids=["a word behind a bool", "a second destination", "a misspelt variable, and foreign ones"],
)
def test_what_is_ignored_is_told(words: str, environment: dict[str, str], warning: str) -> None:
    assert read(words.split(), environment).warnings == (warning,)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        pytest.param(["--nope"], "there is no such flag", id="a flag that is not there"),
        pytest.param(["--root"], "it needs a value", id="a value that is not there"),
        pytest.param(["--nri-plugin-index", "ten"], "it is no number", id="a word in place of a number"),
        pytest.param(["--toolkit-args", "'x"], "no closing quotation", id="a quotation that does not end"),
        pytest.param(["--toolkit-args", "--nope"], "there is no such flag", id="a flag within an old text"),
        pytest.param(["-r", "podman"], "configure the runtime 'podman'", id="another engine"),
    ],
)
def test_a_word_that_makes_no_sense_is_an_error(words: list[str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        read(words, {})


def test_help_and_version_are_asked_for() -> None:
    words = {"-h": "help", "--help": "help", "help": "help", "-v": "version", "--version": "version"}

    assert {word: read([word], {}).special for word in words} == words


def test_the_form_of_2021_is_read_without_a_shell() -> None:
    asked = read(
        ["/opt/nvidia", "-n", "-t", "--nvidia-container-runtime-debug '/var/log/a b.log'"],
        {
            "RUNTIME": "containerd",
            "RUNTIME_ARGS": "-s /run/k3s/containerd.sock --set-as-default=false -c $(id)",
            "CONTAINERD_RESTART_MODE": "NONE",
        },
    )

    expected = {
        "toolkit-install-dir": "/opt/nvidia",
        "no-daemon": True,
        "nvidia-container-runtime.debug": "/var/log/a b.log",
        "socket": "/run/k3s/containerd.sock",
        "set-as-default": False,
        "config": "$(id)",
        "restart-mode": "NONE",
    }
    assert {name: asked[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["usr/local/nvidia"], "install into 'usr/local/nvidia' (it is not an absolute path)"),
        (["/opt/x", "opt/y"], "take the argument 'opt/y' (one directory is all there can be)"),
        (["--root", "/a", "b"], "install into 'b' (it is not an absolute path)"),
        (["--", "-x"], "install into '-x' (it is not an absolute path)"),
    ],
)
def test_an_argument_that_is_no_directory_to_install_into_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(words, {})

    assert refused.value.problem == sentence
