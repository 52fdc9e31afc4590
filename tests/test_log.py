import ast
import json
import os
import re
import subprocess
import sys
import threading

import pytest

from tests.support import preloaded
from tests.support.site import PROJECT, Site, ended
from tests.support.waiting import full_pipe, until_it_sleeps

TALK = """
from installer.host.events import log as events
from installer.cli import log
log.configure("json")
for number in range(5000):
    events.info("said", number=number, path="x" * 200)
print("done", flush=True)
input()
events.info("said again", path=chr(0xDCFF))
"""


def test_a_pipe_that_nobody_empties_holds_nobody_and_what_was_lost_is_counted() -> None:
    command, pipe = [sys.executable, "-c", TALK], subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=preloaded.ENVIRONMENT
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        watchdog = threading.Timer(20, child.kill)
        watchdog.daemon = True
        watchdog.start()

        assert child.stdout.readline() == "done\n"
        read = [child.stderr.readline()]
        child.stdin.write("\n")
        child.stdin.flush()
        lines = read + child.stderr.readlines()

        assert child.wait(10) == 0
    said = [line for line in lines if line.startswith("{") and line.endswith("}\n")]
    (lost,) = [line for line in lines if line.startswith("(")]
    assert json.loads(said[-1])["event"] == "said again"
    assert int(lost.strip("(").split()[0]) > 1000


def test_a_stop_is_obeyed_though_nobody_reads_the_log(clean: Site) -> None:
    command = clean.command("run")
    with full_pipe() as full, subprocess.Popen(command, stderr=full, env=preloaded.ENVIRONMENT) as child:
        try:
            until_it_sleeps(child.pid)
            child.terminate()

            assert child.wait(60) == 0
        finally:
            child.kill()


def test_a_path_that_is_no_utf_8_is_printed_and_used(clean: Site) -> None:
    strange = os.fsdecode(b"/etc/docker/\xff \xc3\xa9.json")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    config = clean.write(strange[1:], "{}\n")

    words = ("--config", f"docker={clean.root}{strange}", "--log-format", "text")
    plan, install = (clean.call(verb, *words, env=plain) for verb in ("plan", "install"))
    status = clean.status()
    uninstall = clean.call("uninstall", env=plain)
    config.unlink()

    assert plan.returncode == 10, plan.stderr
    assert "+++ b/etc/docker/" in plan.stdout
    assert install.returncode == 0, install.stderr
    assert "\\udcff" in status.stdout, status.stderr
    assert uninstall.returncode == 0, uninstall.stderr


def test_the_next_step_beside_stopped_engines_is_their_start(site: Site) -> None:
    said = site.install().stderr
    (command,) = re.findall(r'"command": "([^"]*)"', said)

    assert sorted(command.split(" && ")) == [
        "systemctl start containerd.service",
        "systemctl start crio.service",
        "systemctl start docker.service",
    ]


def test_a_verb_that_ends_answers_a_person_in_a_pipe_too_and_a_run_answers_programs(clean: Site) -> None:
    """``| tee install.log`` shows a person what a terminal shows."""
    environment = {name: value for name, value in preloaded.ENVIRONMENT.items() if "LOG_FORMAT" not in name}

    installed = preloaded.run(clean.command("install"), environment)
    refused = preloaded.run(clean.command("install", "--driver-root", "relative"), environment)
    asked = preloaded.run(clean.command("install", "--log-format", "json"), environment)
    undone = preloaded.run(clean.command("uninstall"), environment)
    with clean.running(env={"TOOLKIT_INSTALLER_LOG_FORMAT": "auto"}) as child:
        said = ended(child)

    assert re.search(r"^installed engines=\S+ steps=\d+$", installed.stderr, re.MULTILINE), installed.stderr
    assert refused.stderr.startswith("toolkit-installer: cannot ")
    assert "\nundo complete steps=" in undone.stderr
    for programs in (asked.stderr, said):
        assert programs.splitlines()
        assert all(json.loads(line)["event"] for line in programs.splitlines())


OBEYED = ("\x1b[8m", "\x1b]0;x\x07", "\x7f", "\x9b8m", "\x85", "\u202e", "\u2066", "\u2028")


@pytest.mark.parametrize("name", OBEYED, ids=ascii)
def test_what_a_terminal_would_obey_in_a_name_is_escaped(site: Site, name: str) -> None:
    as_text = {"TOOLKIT_INSTALLER_LOG_FORMAT": "text"}
    config = f"etc/docker/{name}.json"
    named = ("--config", f"docker={site.root}/{config}")
    site.write(config, json.dumps({"labels": [f"a={name}"]}, ensure_ascii=False))

    said = [site.call(verb, *named, env=as_text) for verb in ("plan", "install")]
    said += [site.status(), site.call("uninstall", env=as_text)]
    site.write(config, "{")
    refused = site.call("install", *named, env=as_text)

    assert [each.returncode for each in (*said, refused)] == [10, 0, 0, 0, 1]
    for done in (*said, refused):
        assert name not in done.stdout + done.stderr
    assert json.dumps(name)[1:-1] in refused.stderr


def test_a_person_reads_one_plain_line_an_event() -> None:
    talk = """
from installer.cli import log
from installer.errors import InstallerError
from installer.host.events import log as events
log.configure("text")
events.info("config written", path="/etc/x", reason="it is\\nnew")
events.warning("not verified", engines=["docker", "crio"])
error = InstallerError("find it (no such file)", remedy="name it")
error.others = (InstallerError("do that", remedy="do this"),)
log.say_failed(error)
"""
    call = [sys.executable, "-c", talk]
    said = subprocess.run(call, capture_output=True, text=True, env=preloaded.ENVIRONMENT, check=True)

    assert said.stderr.splitlines() == [
        'config written path=/etc/x reason="it is\\nnew"',
        "warning: not verified engines=docker,crio",
        "toolkit-installer: cannot find it (no such file); name it",
        'error: other problem found code=config-unusable problem="cannot do that" remedy="do this"',
    ]


# Events with no past participle, and yet plain: a state that lasts, or the field's noun.
STATES = ("waiting for ", "nothing ", "restart pending", "undo complete", "internal error", "next step")
IRREGULAR = {
    "became",
    "begun",
    "done",
    "forgotten",
    "found",
    "given",
    "kept",
    "known",
    "left",
    "lost",
    "made",
    "proven",
}
IRREGULAR |= {"read", "sent", "set", "stuck", "taken", "told", "written"}


def _events() -> set[str]:
    """Return every event in the text of the program."""
    texts: set[str] = set()
    for path in (PROJECT / "installer").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            name = ast.unparse(call.func)
            event = call.args[0]
            if name == "StepDescription":
                event = call.args[1]
            elif not name.endswith(("log.info", "log.warning", "log.error")):
                continue
            if isinstance(event, ast.Constant) and isinstance(event.value, str) and event.value:
                texts.add(event.value)
    return texts


def test_an_event_says_what_happened() -> None:
    events = _events()
    others = {event for event in events if not event.startswith(STATES)}

    assert {"installed", "directory made", "waiting for a signal"} <= events
    assert {event for event in others if not _has_participle(event)} == set()


def _has_participle(event: str) -> bool:
    return any(word.endswith("ed") or word in IRREGULAR for word in event.split())
