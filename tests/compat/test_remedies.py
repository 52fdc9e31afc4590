"""A remedy names the options of the entry point that was called, each as it is said there."""

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.cli import log
from installer.cli.flags import FLAGS
from installer.cli.log import LogFormat
from installer.cli.nvidia import options_from
from installer.cli.nvidia_flags import read, rows, spell_option
from installer.errors import InstallerError, Option, Remedy
from installer.host import events
from tests.compat.nvidia import Nvidia

INSTALLER = Path(__file__).parents[2] / "installer"
# All that both entry points share.
SHARED = [path for path in sorted(INSTALLER.rglob("*.py")) if path.parent.name != "cli"]
OWN = {flag.name.removeprefix("--") for flag in FLAGS}
# Only asked for by our own verbs: the mode, an undo while containers run on our runtimes, what monitoring is told, NRI.
OWN_ALONE = {"mode", "in-use", "metrics-textfile", "metrics-listen", "nfd-features"} | {
    f"nri-{each}" for each in ("allow", "name", "index")
}


def _calls(name: str) -> Iterator[ast.Call]:
    for path in SHARED:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield node


def _named() -> set[str]:
    return {call.args[0].value for call in _calls("Option") if isinstance(call.args[0], ast.Constant)}  # type: ignore[misc]


def test_each_option_of_a_remedy_is_one_of_both_command_lines() -> None:
    theirs = {name for row in rows() for name in (row.own, *row.names)}

    assert len(_named()) > 5
    assert _named() - OWN == set()
    assert _named() - theirs == OWN_ALONE


def test_no_remedy_of_both_names_a_flag_in_plain_text() -> None:
    texts = [
        part.value
        for name in ("InstallerError", "UndoIncompleteError")
        for call in _calls(name)
        for keyword in call.keywords
        for part in ast.walk(keyword.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    flags = [text for text in texts for flag in OWN if f"--{flag} " in f"{text} "]

    assert len(texts) > 40
    assert [text for text in flags if "toolkit-installer" not in text] == []


@pytest.mark.parametrize(
    ("option", "own", "theirs"),
    [
        (Option("retry"), "--retry", "--retry (TOOLKIT_INSTALLER_RETRY)"),
        (Option("install-dir"), "--install-dir", "--toolkit-install-dir (TOOLKIT_INSTALL_DIR)"),
        (Option("toolkit-source"), "--toolkit-source", "--toolkit-source-root (TOOLKIT_SOURCE_ROOT)"),
        (
            Option("config", "/c", engine="containerd"),
            "--config containerd=/c",
            "--config=/c (RUNTIME_CONFIG)",
        ),
        (
            Option("restart-mode", "none"),
            "--restart-mode none",
            "--restart-mode=none (RUNTIME_RESTART_MODE)",
        ),
        (Option("in-use", "keep"), "--in-use keep", "toolkit-installer's --in-use keep"),
    ],
)
def test_an_option_is_spelt_as_each_entry_point_takes_it(option: Option, own: str, theirs: str) -> None:
    remedy = Remedy("use ", option, ", then run again")

    assert remedy == f"use {own}, then run again"
    assert remedy.spelt(spell_option) == f"use {theirs}, then run again"


@pytest.mark.parametrize("form", ["flags", "variables"])
def test_what_a_remedy_says_is_taken_in_every_form(form: str) -> None:
    """In the form of 2021 too: TOOLKIT_ARGS, RUNTIME_ARGS and the first argument give way to a flag."""
    old = {"RUNTIME": "containerd", "TOOLKIT_ARGS": "--driver-root /d", "RUNTIME_ARGS": "-s /run/c.sock"}
    said: dict[str, Any] = {
        "runtime-name": "gpu",
        "drop-in-config": "/etc/containerd/conf.d/99-x.toml",
        "timeout": "60",
        "retry": "true",
        "restart-mode": "none",
        "toolkit-source": "/src",
        "config": "/etc/containerd/c.toml",
    }
    spelled = {name: spell_option(Option(name, value)) for name, value in said.items()}
    flags = [text.partition(" ")[0] for text in spelled.values()]
    variables = {text.rpartition("(")[2].rstrip(")"): said[name] for name, text in spelled.items()}

    asked = read(
        ["/usr/local/nvidia", *(flags if form == "flags" else ())],
        old | (variables if form == "variables" else {}),
    )

    options = options_from(asked)
    assert (options.runtime_name, options.timeout_s, options.retry) == ("gpu", 60.0, True)
    assert options.toolkit_source == PurePosixPath("/src")
    assert str(options.places["containerd"].drop_in) == said["drop-in-config"]
    assert str(options.places["containerd"].config) == said["config"]
    assert str(options.places["containerd"].socket) == "/run/c.sock"
    assert options.restart_mode == "none"


@pytest.mark.parametrize("form", [LogFormat.TEXT, LogFormat.JSON])
def test_an_error_is_told_in_the_words_of_the_entry_point(
    capfd: pytest.CaptureFixture[str], form: LogFormat
) -> None:
    error = InstallerError("x", remedy=Remedy("choose another ", Option("install-dir")))

    log.configure(form, spelling=spell_option)
    log.say_failed(error)
    events.log.warning("step failed", error=error)
    log.configure(LogFormat.AUTO)
    log.say_failed(error)

    theirs, between, ours = capfd.readouterr().err.splitlines()
    assert "choose another --toolkit-install-dir (TOOLKIT_INSTALL_DIR)" in theirs
    assert "cannot x; choose another --toolkit-install-dir (TOOLKIT_INSTALL_DIR)" in between
    assert "choose another --install-dir" in ours


def test_a_refusal_of_nvidias_entry_point_speaks_its_words(
    docker: Nvidia, capfd: pytest.CaptureFixture[str]
) -> None:
    (docker.source / "usr/local/sbin/nvidia-ctk").unlink()

    assert docker.install() == 1

    said = capfd.readouterr().err
    assert "--toolkit-source-root (TOOLKIT_SOURCE_ROOT)" in said
    assert "--toolkit-source " not in said
