"""The command line as a person and as a program meet it."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from click.core import ParameterSource
from msgspec.structs import replace

from installer.cli.app import UNHEEDED, program
from installer.cli.flags import FLAGS, GROUPS, Flag, options_from
from installer.host.own_version import describe, describe_version
from installer.model.options import Options, Places
from tests.support import preloaded
from tests.support.entry import VERSION
from tests.support.site import CONTAINERD, DAEMON_JSON, PROJECT, Site

NAME = "toolkit-installer"
UNINSTALLS = ("remove", "delete", "undo", "stop")
VERBS = ("run", "install", "plan", "uninstall")


@pytest.fixture
def host(site: Site) -> dict[str, str]:
    """Return the environment that leads the program to a host with Docker, and to a toolkit."""
    return {
        "TOOLKIT_INSTALLER_HOST_ROOT": str(site.root),
        "TOOLKIT_INSTALLER_TOOLKIT_SOURCE": str(site.source),
        "TOOLKIT_INSTALLER_RUNTIME": "docker",
        "TOOLKIT_INSTALLER_RESTART_MODE": "none",
    }


def taken_by(verb: str) -> list[Flag]:
    return [flag for flag in FLAGS if flag.field in {each.name for each in program.commands[verb].params}]


WIDE = {**preloaded.ENVIRONMENT, "COLUMNS": "200"}


def call(*words: str, **environment: str) -> preloaded.Done:
    return preloaded.run([sys.executable, "-m", "installer", *words], WIDE | environment)


def _schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PROJECT / f"docs/{name}.schema.json").read_text())
    return found


def _told(name: str, said: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(said)
    jsonschema.validate(document, _schema(name))
    assert document.keys() <= _schema(name)["properties"].keys(), "the schema has everything"
    return document


def test_it_tells_its_version() -> None:
    ours = describe_version()
    assert ours.partition(" ")[0] == version("node-toolkit-installer") == VERSION
    assert call("--version").stdout == f"toolkit-installer {ours}\n"


@pytest.mark.parametrize("known", ["file", "git", ""])
def test_a_development_version_names_its_commit_where_it_is_known(tmp_path: Path, known: str) -> None:
    package, expected = tmp_path / "installer", ""
    package.mkdir()
    if known == "file":
        expected = "0123456789ab"
        (package / "commit").write_text(f"{expected}\n")
    elif known == "git":
        name = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        git = ("git", "-C", str(tmp_path))
        subprocess.run([*git, "init", "--quiet"], check=True)
        subprocess.run([*git, *name, "commit", "--quiet", "--allow-empty", "--message=x"], check=True)
        words = [*git, "rev-parse", "HEAD"]
        expected = subprocess.run(words, check=True, capture_output=True, text=True).stdout[:12]

    told = describe("0.3.0.dev0", package)

    assert told == (f"0.3.0.dev0 (commit {expected})" if expected else "0.3.0.dev0")
    assert describe("0.3.0", package) == "0.3.0"


@pytest.mark.parametrize("verb", program.commands)
def test_help_is_short_fits_a_terminal_and_shows_in_groups_what_a_verb_heeds(verb: str) -> None:
    said = call(verb, "--help", COLUMNS="80").stdout

    assert [line for line in said.splitlines() if len(line) > 80] == []
    options = [each for each in program.commands[verb].params if isinstance(each, click.Option)]
    assert [each.help for each in options if len((each.help or "").split()) > 12] == []
    if verb in VERBS:
        shown = set(re.findall(r"^  (--[\w-]+)", said.replace("--[no-]", "--"), re.MULTILINE))
        heeded = {flag.name for flag in FLAGS if flag.field not in UNHEEDED[verb]}
        assert shown - {"--json", "--show-secrets", "--summary"} == heeded
        titles = {title for title, fields in GROUPS.items() if not UNHEEDED[verb].issuperset(fields)}
        assert {title for title in GROUPS if f"\n{title}:\n" in said} == titles


def test_one_environment_serves_every_verb_and_plan_and_status_are_told_to_programs(
    host: dict[str, str],
) -> None:
    everything = host | {flag.variable: str(flag.default) for flag in FLAGS if isinstance(flag.default, bool)}
    nothing, shown = call("status", "--json", **everything), call("plan", **everything)
    first = call("plan", "--json", **everything)
    assert call("install", **everything).returncode == 0

    done, told = call("plan", "--json", **everything), call("status", "--json", **everything)
    assert call("uninstall", **everything).returncode == 0

    assert [each.returncode for each in (nothing, first, done, told)] == [3, 10, 0, 0]
    plan = _told("plan", first.stdout)
    (config,) = plan["configs"]
    assert (config["path"], plan["unproven"], plan["obstacles"]) == (
        "/etc/docker/daemon.json",
        ["docker"],
        [],
    )
    assert config["diff"] in re.sub(r"\x1b\[[\d;]*m", "", shown.stdout)
    assert ("engine-docker", "edit /etc/docker/daemon.json") in {
        (step["part"], step["does"]) for step in plan["steps"] if step["why"]
    }
    plan = _told("plan", done.stdout)
    assert (plan["would_change"], plan["steps"], plan["configs"]) == (False, [], [])
    for said, installed in ((nothing, False), (told, True)):
        status = _told("status", said.stdout)
        assert status["installed"] is installed
        assert status["engines"] == (["docker"] if installed else [])
        assert status["mode"] == ("runtime" if installed else None)


def test_all_obstacles_are_told_by_plan_and_by_install(host: dict[str, str], site: Site) -> None:
    site.write(DAEMON_JSON, '{"runtimes": []}')
    site.write(CONTAINERD, 'version = 2\ndisabled_plugins = ["cri"]\n')
    both = host | {"TOOLKIT_INSTALLER_RUNTIME": "docker,containerd"}

    planned = call("plan", "--json", **both)
    said = [json.loads(line) for line in call("install", **both).stderr.splitlines()]

    obstacles = _told("plan", planned.stdout)["obstacles"]
    assert planned.returncode == 1
    assert [each["part"] for each in obstacles] == ["engine-docker", "engine-containerd"]
    told = [[each[key] for key in ("problem", "remedy", "code")] for each in obstacles]
    errors = [each for each in said if "problem" in each]
    assert [[each[key] for key in ("problem", "remedy", "code")] for each in errors] == told
    assert [each["event"] for each in errors] == ["failed", "other problem found"]


def test_a_plan_that_nobody_can_make_is_told_to_programs(host: dict[str, str]) -> None:
    done = call("plan", "--json", **host | {"TOOLKIT_INSTALLER_TOOLKIT_SOURCE": "/nowhere"})

    (obstacle,) = _told("plan", done.stdout)["obstacles"]
    assert done.returncode == 1
    assert "/nowhere" in obstacle["problem"]


def test_a_misspelt_variable_is_named(host: dict[str, str]) -> None:
    names = {f"TOOLKIT_INSTALLER_{name}": "1" for name in ("RUNTIMES", "ONEXIT", "SHOW_SECRETS")}

    events = map(json.loads, call("plan", **host, **names).stderr.splitlines())

    warned = {each["variable"]: each["meant"] for each in events if "unknown variable" in each["event"]}
    assert warned == {
        "TOOLKIT_INSTALLER_RUNTIMES": "TOOLKIT_INSTALLER_RUNTIME",
        "TOOLKIT_INSTALLER_ONEXIT": "TOOLKIT_INSTALLER_ON_EXIT",
    }


def test_a_flag_that_is_not_given_says_what_options_say_by_themselves() -> None:
    said = options_from({flag.field: flag.default for flag in FLAGS}, frozenset())

    assert {*said.places.values()} == {Places()}
    assert replace(said, places={}) == Options()


def read(verb: str, words: Sequence[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the values of all flags of a verb, and the fields of those that somebody gave."""
    context = program.commands[verb].make_context(verb, [*words])
    given = {
        name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    return context.params, frozenset(given)


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


def test_a_flag_hides_all_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_INSTALLER_MOUNT", "/a=/b,/c=/d")

    assert read("install", ["--mount", "/e=/f"])[0]["mount"] == ("/e=/f",)


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        ("stauts", {}, "No such command 'stauts'."),
        ("status --ready --alive", {}, "Give --ready or --alive, not both."),
        (
            "--runtime docker install",
            {},
            "Write --runtime after the verb: toolkit-installer VERB --runtime ...",
        ),
        ("doctor --toolkit-source /x", {}, "doctor takes no --toolkit-source."),
        ("install docker", {}, "Write the engine as a flag: toolkit-installer install --runtime docker"),
        (
            "plan Docker containerd",
            {},
            "Write the engine as a flag: toolkit-installer plan --runtime docker --runtime containerd",
        ),
        (
            "plan --runtime docker,containerd",
            {},
            "'docker,containerd' is not one engine: write --runtime docker --runtime containerd.",
        ),
        ("install --set-as-default true", {}, "install takes no word 'true': a switch has no value."),
        ("install --dry-run", {}, "Use toolkit-installer plan: it shows what install would change."),
        (
            "install --no-daemon",
            {},
            "--no-daemon is a flag of NVIDIA's installer: here toolkit-installer install ends when it is done; ",
        ),
        (
            "run --nvidia-runtime-name x",
            {},
            "--nvidia-runtime-name is a flag of NVIDIA's installer: here use --runtime-name; nvidia-ctk-",
        ),
        (
            "--toolkit-install-dir=/x",
            {},
            "is a flag of NVIDIA's installer: here use --install-dir; nvidia-ctk-",
        ),
        ("install --enable-cdi", {}, "--enable-cdi is a flag of NVIDIA's installer: here use --mode cdi; "),
        ("plan --cdi.enabled", {}, "--cdi.enabled is a flag of NVIDIA's nvidia-ctk: here use --mode cdi."),
        (
            "run --runtime-args x",
            {},
            "--runtime-args is a flag of NVIDIA's installer: nvidia-ctk-installer takes NVIDIA's command line.",
        ),
        ("version", {}, "Write toolkit-installer --version."),
        ("help", {}, "Write toolkit-installer --help."),
        ("help plan", {}, "Write toolkit-installer plan --help."),
        ("help nothing", {}, "Write toolkit-installer --help."),
        *((word, {}, f"No such command '{word}'. Did you mean 'uninstall'?") for word in UNINSTALLS),
        ("check", {}, "No such command 'check'. Did you mean 'status'?"),
        ("install docker now", {}, "install takes no word 'docker now'."),
        ("uninstall docker", {}, "uninstall takes no word 'docker'."),
        ("verify docker", {}, "verify takes no word 'docker'."),
        ("demo docker", {}, "demo takes no word 'docker'."),
        ("install --runtme docker", {}, "Did you mean one of: '--mount', '--runtime', '--runtime-name'?"),
        ("install", {"RETRY": "maybe"}, "'TOOLKIT_INSTALLER_RETRY'): 'maybe' is neither true nor false."),
        ("run", {"TIMEOUT": "soon"}, "'soon' is not a number."),
        ("run", {"RUNTIME": "docker,x"}, "'x' is not one of"),
        ("status --mount x", {}, "cannot mount 'x'; write --mount HOST=HERE"),
        ("plan --socket foo=/x --log-format text", {}, "cannot tell which engine --socket foo=/x is for; "),
        (
            "install --runtime docker --runtime containerd --config crio=/no-root-was-named/x --log-format text",
            {},
            "cannot use --config crio=PATH with docker and containerd; add --runtime crio, or leave it out",
        ),
        (
            "plan --runtime docker --drop-in-config crio=/no-root-was-named/x --log-format text",
            {},
            "cannot use --drop-in-config crio=PATH with docker; add --runtime crio, or leave it out",
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


def test_a_name_of_two_words_is_no_name_of_a_runtime() -> None:
    done = call("plan", "--runtime-name", "nv idia")

    assert done.returncode == 2
    assert "choose a word that no other runtime has for its name" in done.stderr


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "xterm"}], ids=str)
def test_colours_are_for_a_terminal_that_has_them_and_a_user_who_wants_them(
    host: dict[str, str], variables: dict[str, str]
) -> None:
    environment = WIDE | host | variables | {"TOOLKIT_INSTALLER_LOG_FORMAT": "auto"}
    shown = on_terminal("plan", environment) + on_terminal("install", environment)

    assert b"installed" in shown
    assert (b"\x1b[" in shown) == (variables == {"TERM": "xterm"}), shown


def on_terminal(verb: str, environment: dict[str, str]) -> bytes:
    """Return what a verb shows on a terminal."""
    shown = b""
    ours, terminal = pty.openpty()
    command = [sys.executable, "-m", "installer", verb]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment):
        os.close(terminal)
        with suppress(OSError):  # its last process has closed the terminal
            while some := os.read(ours, 1 << 16):
                shown += some
    os.close(ours)
    return shown


@pytest.mark.parametrize("verb", ["doctor", "plan"])
def test_a_terminal_with_colours_shows_no_escape_as_characters(host: dict[str, str], verb: str) -> None:
    shown = on_terminal(verb, WIDE | host | {"TERM": "xterm-256color"})

    assert b"\x1b[32m" in shown
    assert b"\\u001b" not in shown


@pytest.mark.parametrize(
    ("words", "completed"), [("status --de", "plain,--deep"), ("plan --config /op", "file,/op")]
)
def test_a_shell_completes_verbs_options_and_paths(words: str, completed: str) -> None:
    completing = {"COMP_WORDS": f"{NAME} {words}", "COMP_CWORD": str(len(words.split()))}

    assert call(**completing, _TOOLKIT_INSTALLER_COMPLETE="bash_complete").stdout.split() == [completed]


def test_an_error_of_status_is_a_sentence_for_the_event_of_a_probe(tmp_path: Path) -> None:
    done = call("status", "--host-root", str(tmp_path / "none"))

    assert done.returncode == 1
    assert done.stderr.startswith("toolkit-installer: cannot find the host's root ")
    assert "/none (there is no such directory); name " in done.stderr


def test_a_file_as_the_hosts_root_is_said_to_be_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert (
        "/file (it is not a directory); name " in call("status", "--host-root", str(tmp_path / "file")).stderr
    )


@pytest.mark.parametrize("verb", ["install", "plan", "run"])
@pytest.mark.parametrize("place", ["etc", "empty"])
def test_a_directory_without_etc_and_usr_is_refused_as_the_hosts_root(
    site: Site, verb: str, place: str
) -> None:
    root = site.root / place
    root.mkdir(exist_ok=True)

    refused = site.refuses(verb, "--host-root", str(root), code=2)

    assert refused == (
        f"cannot use --host-root {root} (it has neither etc nor usr); name the directory where the host's root "
        "is mounted"
    )


def test_a_hosts_root_of_which_only_etc_is_mounted_elsewhere_is_used(site: Site) -> None:
    etc = (site.root / "etc").rename(site.root.parent / "configs")

    assert site.call("plan", "--mount", f"/etc={etc}").returncode == 10


def test_no_uninstall_is_refused_for_a_hosts_root_without_etc_and_usr(tmp_path: Path) -> None:
    assert call("uninstall", "--host-root", str(tmp_path)).returncode == 0
