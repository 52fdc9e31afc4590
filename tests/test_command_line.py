"""The command line as a person and as a program meet it."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from msgspec.structs import replace

from installer.cli.app import UNHEEDED, program
from installer.cli.flags import FLAGS, GROUPS, options_from
from installer.cli.nvidia_flags import rows
from installer.model.options import Options, Places
from tests.support.stand_in import CONFIGS, stand_in_payload

PROJECT = Path(__file__).parents[1]
VERBS = ("run", "install", "plan", "uninstall")


@pytest.fixture
def host(tmp_path: Path) -> dict[str, str]:
    """Return the environment that leads the program to a host with Docker, and to a toolkit."""
    for name, text in CONFIGS.items():
        (tmp_path / "node" / name).parent.mkdir(parents=True)
        (tmp_path / "node" / name).write_text(text)
    stand_in_payload(tmp_path / "toolkit")
    return {
        "TOOLKIT_INSTALLER_HOST_ROOT": str(tmp_path / "node"),
        "TOOLKIT_INSTALLER_TOOLKIT_SOURCE": str(tmp_path / "toolkit"),
        "TOOLKIT_INSTALLER_RUNTIME": "docker",
        "TOOLKIT_INSTALLER_RESTART_MODE": "none",
    }


def _call(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "installer", *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PROJECT / f"docs/{name}.schema.json").read_text())
    return found


def _told(name: str, said: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(said)
    jsonschema.validate(document, _schema(name))
    assert document.keys() <= _schema(name)["properties"].keys(), "the schema has everything"
    return document


def test_it_tells_its_version() -> None:
    assert _call("--version").stdout == f"toolkit-installer {version('node-toolkit-installer')}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_shows_what_it_heeds_in_groups(verb: str) -> None:
    said = _call(verb, "--help").stdout

    shown = set(re.findall(r"^  (--[\w-]+)", said.replace("--[no-]", "--"), re.MULTILINE))
    heeded = {flag.name for flag in FLAGS if flag.field not in UNHEEDED[verb]}
    assert shown - {"--json", "--show-secrets"} == heeded
    titles = {title for title, fields in GROUPS.items() if not UNHEEDED[verb].issuperset(fields)}
    assert {title for title in GROUPS if f"\n{title}:\n" in said} == titles
    assert titles <= {"Engine", "Toolkit", "Paths", "Behaviour", "Monitoring", "NRI", "Output"}


@pytest.mark.parametrize("verb", program.commands)
def test_help_is_short_and_fits_a_terminal(verb: str) -> None:
    said = _call(verb, "--help", COLUMNS="80").stdout

    assert [line for line in said.splitlines() if len(line) > 80] == []
    options = [each for each in program.commands[verb].params if isinstance(each, click.Option)]
    assert [each.help for each in options if len((each.help or "").split()) > 12] == []


def test_the_help_of_nvidias_command_line_is_short_and_fits_a_terminal() -> None:
    call = [sys.executable, "-c", "from installer.cli.nvidia import main; main()", "--help"]
    said = subprocess.run(call, capture_output=True, text=True, timeout=60, check=True).stdout

    assert [line for line in said.splitlines() if len(line) > 80] == []
    assert [row.help for row in rows() if len(row.help.split()) > 12] == []


def test_one_environment_serves_every_verb(host: dict[str, str]) -> None:
    everything = host | {flag.variable: str(flag.default) for flag in FLAGS if isinstance(flag.default, bool)}

    assert _call("plan", **everything).returncode == 10
    assert _call("install", **everything).returncode == 0
    assert _call("uninstall", **everything).returncode == 0


def test_a_plan_is_told_to_programs(host: dict[str, str]) -> None:
    done = _call("plan", "--json", **host)

    plan = _told("plan", done.stdout)
    assert (done.returncode, plan["would_change"], plan["obstacles"]) == (10, True, [])
    (config,) = plan["configs"]
    assert config["path"] == "/etc/docker/daemon.json"
    assert all(step["why"] for step in plan["steps"])
    assert config["diff"].startswith("--- a/etc/docker/daemon.json\n+++ b/etc/docker/daemon.json\n@@ ")
    assert config["diff"] in re.sub(r"\x1b\[[\d;]*m", "", _call("plan", **host).stdout)
    assert plan["unproven"] == ["docker"]
    assert ["engine-docker", "edit /etc/docker/daemon.json"] in [
        [step["part"], step["does"]] for step in plan["steps"]
    ]


def test_an_obstacle_is_told_to_programs_by_its_code(host: dict[str, str]) -> None:
    proven = host | {"TOOLKIT_INSTALLER_RESTART_MODE": "auto"}

    (obstacle,) = _told("plan", _call("plan", "--json", **proven).stdout)["obstacles"]
    failed = json.loads(_call("install", **proven).stderr.splitlines()[-1])

    assert obstacle["code"] == "engine-not-proven"
    assert obstacle.pop("part") == "engine-docker"
    assert {name: failed[name] for name in obstacle} == obstacle


def test_all_obstacles_are_told_by_plan_and_by_install(host: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "node/etc/docker/daemon.json").write_text('{"runtimes": []}')
    (tmp_path / "node/etc/containerd/config.toml").write_text('version = 2\ndisabled_plugins = ["cri"]\n')
    both = host | {"TOOLKIT_INSTALLER_RUNTIME": "docker,containerd"}

    planned = _call("plan", "--json", **both)
    said = [json.loads(line) for line in _call("install", **both).stderr.splitlines()]

    obstacles = _told("plan", planned.stdout)["obstacles"]
    assert planned.returncode == 1
    assert [each["part"] for each in obstacles] == ["engine-docker", "engine-containerd"]
    told = [f"{each['problem']}; {each['remedy']}" for each in obstacles]
    main = next(number for number, each in enumerate(said) if each["event"] == "failed")
    assert f"{said[main]['problem']}; {said[main]['remedy']}" == told[0]
    assert [each["event"] for each in said[main + 1 :]] == ["other problem found"] * len(told[1:])
    assert [f"{each['problem']}; {each['remedy']}" for each in said[main + 1 :]] == told[1:]
    assert [each["code"] for each in said[main + 1 :]] == [each["code"] for each in obstacles[1:]]


def test_a_plan_is_told_to_programs_though_a_text_is_not_valid(host: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "node/etc/docker/daemon.json").write_text('{"runtimes": []}')
    (tmp_path / "node/etc/containerd/config.toml").write_text("version = \n")
    both = host | {"TOOLKIT_INSTALLER_RUNTIME": "docker,containerd"}

    planned = _call("plan", "--json", **both)
    shown = _call("plan", **both)

    obstacles = _told("plan", planned.stdout)["obstacles"]
    assert (planned.returncode, shown.returncode) == (1, 1)
    assert {each["part"] for each in obstacles} == {"engine-docker", "engine-containerd"}
    assert all(f"install would stop: {each['problem']}" in shown.stdout for each in obstacles)
    assert _call("uninstall", "--adopt", **both).returncode == 1  # which may not pass it over


def test_a_plan_that_nobody_can_make_is_told_to_programs(host: dict[str, str]) -> None:
    done = _call("plan", "--json", **host | {"TOOLKIT_INSTALLER_TOOLKIT_SOURCE": "/nowhere"})

    (obstacle,) = _told("plan", done.stdout)["obstacles"]
    assert done.returncode == 1
    assert "/nowhere" in obstacle["problem"]


def test_a_plan_with_nothing_to_do_is_told_to_programs(host: dict[str, str]) -> None:
    assert _call("install", **host).returncode == 0

    done = _call("plan", "--json", **host)

    plan = _told("plan", done.stdout)
    assert (done.returncode, plan["would_change"], plan["steps"], plan["configs"]) == (0, False, [], [])


@pytest.mark.parametrize("installed", [False, True])
def test_the_status_is_told_to_programs(host: dict[str, str], *, installed: bool) -> None:
    if installed:
        assert _call("install", **host).returncode == 0

    done = _call("status", "--json", **host)

    status = _told("status", done.stdout)
    assert done.returncode == (0 if installed else 3)
    assert status["installed"] is installed
    assert status["engines"] == (["docker"] if installed else [])
    assert status["mode"] == ("runtime" if installed else None)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TOOLKIT_INSTALLER_RUNTIMES", "TOOLKIT_INSTALLER_RUNTIME"),
        ("TOOLKIT_INSTALLER_ONEXIT", "TOOLKIT_INSTALLER_ON_EXIT"),
        ("TOOLKIT_INSTALLER_XYZ", ""),
    ],
)
def test_a_misspelt_variable_is_named(host: dict[str, str], variable: str, meant: str) -> None:
    said = _call("plan", **host, **{variable: "1"}).stderr

    (event,) = (json.loads(line) for line in said.splitlines() if "unknown variable" in line)
    assert event["variable"] == variable
    assert event["meant"] == meant or not meant


def test_a_variable_of_ours_is_not_warned_about(host: dict[str, str]) -> None:
    assert "unknown variable" not in _call("plan", **host, TOOLKIT_INSTALLER_SHOW_SECRETS="1").stderr


@pytest.mark.parametrize(
    ("engine", "step"),
    [
        ("docker", "systemctl reload docker.service"),
        ("containerd", "systemctl restart containerd.service"),
        (
            "docker,containerd",
            "systemctl reload docker.service && systemctl restart containerd.service",
        ),
    ],
)
def test_an_install_that_restarts_nothing_ends_with_the_restart_that_is_left(
    host: dict[str, str], engine: str, step: str
) -> None:
    done = _call("install", **host | {"TOOLKIT_INSTALLER_RUNTIME": engine})

    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["event"], last["command"]) == ("next step", step)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_the_words(shell: str) -> None:
    completing = {"_TOOLKIT_INSTALLER_COMPLETE": f"{shell}_complete"}
    words = {"COMP_WORDS": "toolkit-installer uninst", "COMP_CWORD": "uninst" if shell == "fish" else "1"}

    assert "toolkit-installer" in _call(_TOOLKIT_INSTALLER_COMPLETE=f"{shell}_source").stdout
    assert "uninstall" in _call(**completing, **words).stdout


@pytest.mark.parametrize("words", [("status",), ("--", "status"), ("--", "status", "--json")])
def test_the_status_is_told_however_the_verb_is_reached(host: dict[str, str], words: tuple[str, ...]) -> None:
    assert _call("install", **host).returncode == 0

    done = _call(*words, **host)

    assert done.returncode == 0
    assert "/etc/docker/daemon.json" in done.stdout


def test_a_flag_that_is_not_given_says_what_options_say_by_themselves() -> None:
    said = options_from({flag.field: flag.default for flag in FLAGS}, frozenset())

    assert {*said.places.values()} == {Places()}
    assert replace(said, places={}) == Options()
