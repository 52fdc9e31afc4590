"""A remedy names the options of the entry point that was called, each as it is said there."""

import ast
from pathlib import Path

import pytest

from installer.cli import log
from installer.cli.flags import FLAGS
from installer.cli.nvidia import options_from
from installer.cli.nvidia_flags import read, rows, spell_option
from installer.errors import InstallerError, Option, Remedy
from installer.host import events
from tests.compat.nvidia import Nvidia

INSTALLER = Path(__file__).parents[2] / "installer"
# Only asked for by our own verbs: the mode, an undo while containers run on our runtimes, what monitoring is told, NRI.
OWN_ALONE = {"mode", "in-use", "metrics-textfile", "metrics-listen", "nfd-features"} | {
    f"nri-{each}" for each in ("allow", "name", "index")
}


def test_each_option_of_a_remedy_is_one_of_both_command_lines() -> None:
    own = {flag.name.removeprefix("--") for flag in FLAGS}
    theirs = {name for row in rows() for name in (row.own, *row.names)}
    shared = [path for path in INSTALLER.rglob("*.py") if path.parent.name != "cli"]
    nodes = [node for path in shared for node in ast.walk(ast.parse(path.read_text()))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    options = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Option"]
    named = {each.value for each in options if isinstance(each, ast.Constant)}

    assert len(named) > 5
    assert named - own == set()
    assert named - theirs == OWN_ALONE


@pytest.mark.parametrize(
    ("option", "own", "theirs"),
    [
        (Option("retry"), "--retry", "--retry (TOOLKIT_INSTALLER_RETRY)"),
        (Option("install-dir"), "--install-dir", "--toolkit-install-dir (TOOLKIT_INSTALL_DIR)"),
        (
            Option("config", "/c", engine="containerd"),
            "--config containerd=/c",
            "--config=/c (RUNTIME_CONFIG)",
        ),
        (Option("in-use", "keep"), "--in-use keep", "toolkit-installer's --in-use keep"),
    ],
)
def test_an_option_is_spelt_as_each_entry_point_takes_it(option: Option, own: str, theirs: str) -> None:
    remedy = Remedy("use ", option, ", then run again")

    assert remedy == f"use {own}, then run again"
    assert remedy.spelt(spell_option) == f"use {theirs}, then run again"


@pytest.mark.parametrize("form", ["flags", "variables"])
def test_what_a_remedy_says_is_taken_in_the_form_of_2021_too(form: str) -> None:
    """TOOLKIT_ARGS, RUNTIME_ARGS and the first argument give way to a flag."""
    old = {"RUNTIME": "containerd", "TOOLKIT_ARGS": "--driver-root /d", "RUNTIME_ARGS": "-s /run/c.sock"}
    said = {"runtime-name": "gpu", "timeout": "60", "retry": "true", "config": "/etc/containerd/c.toml"}
    spelled = {name: spell_option(Option(name, value)) for name, value in said.items()}
    flags = [text.partition(" ")[0] for text in spelled.values()]
    variables = {text.rpartition("(")[2].rstrip(")"): said[name] for name, text in spelled.items()}

    asked = (
        read(["/usr/local/nvidia", *flags], old)
        if form == "flags"
        else read(["/usr/local/nvidia"], old | variables)
    )

    options = options_from(asked)
    assert (options.runtime_name, options.timeout_s, options.retry) == ("gpu", 60.0, True)
    assert str(options.places["containerd"].config) == said["config"]
    assert str(options.places["containerd"].socket) == "/run/c.sock"


def test_an_error_is_told_in_the_words_of_the_entry_point(capfd: pytest.CaptureFixture[str]) -> None:
    error = InstallerError("x", remedy=Remedy("choose another ", Option("install-dir")))

    log.configure("json", spelling=spell_option)
    log.say_failed(error)
    events.log.warning("step failed", error=error)
    log.configure("auto")
    log.say_failed(error)

    theirs, between, ours = capfd.readouterr().err.splitlines()
    assert "choose another --toolkit-install-dir (TOOLKIT_INSTALL_DIR)" in theirs
    assert "cannot x; choose another --toolkit-install-dir (TOOLKIT_INSTALL_DIR)" in between
    assert "choose another --install-dir" in ours


def test_a_refusal_of_nvidias_entry_point_speaks_its_words(docker: Nvidia) -> None:
    (docker.source / "usr/local/sbin/nvidia-ctk").unlink()

    assert docker.refused()

    remedy = docker.events[-1]["remedy"]
    assert "--toolkit-source-root (TOOLKIT_SOURCE_ROOT)" in remedy
    assert "--toolkit-source " not in remedy
