"""doctor as people call it, and its page."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from installer.report.doctor.verb import CHECKS
from tests.doctor import golden
from tests.support import preloaded
from tests.support.files import put
from tests.support.neighbours import NOBODY, only_as_root
from tests.support.tree import Aspect, tree

LEDGER = "/usr/local/nvidia/.toolkit-installer/ledger"


def call(root: Path, *more: str) -> preloaded.Done:
    return preloaded.run([sys.executable, "-m", "installer", "doctor", "--host-root", str(root), *more])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Lay a node whose module and libraries are of one driver, but without what only a kernel could add."""
    found = golden.lay(tmp_path / "node")
    (found / "sys/module/nvidia/version").unlink()
    (found / golden.SWITCH.lstrip("/") / "class").write_text("0x060400\n")
    return found


# What Python has loaded it can use without a right to read it.
AS_NOBODY = """
import os, sys
from tests.support import preloaded
preloaded.load()
os.setgroups([])
os.setresgid({nobody}, {nobody}, {nobody})
os.setresuid({nobody}, {nobody}, {nobody})
from installer.__main__ import main
main()
"""


@only_as_root
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "JSON"])
def test_without_root_it_says_once_that_it_needs_root_and_calls_nothing_bad(more: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", AS_NOBODY.format(nobody=NOBODY), "doctor", *more]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=preloaded.WITHOUT_ROOT
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("run as root") == 1
    assert len(done.stderr.splitlines()) == 1


def told(done: preloaded.Done) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in json.loads(done.stdout)["checks"]}


def test_what_is_wrong_is_exit_code_1_and_comes_first_and_what_does_not_apply_with_all(root: Path) -> None:
    before, well = tree(root, Aspect.MODE | Aspect.TIMES), call(root)
    assert (well.returncode, tree(root, Aspect.MODE | Aspect.TIMES)) == (0, before), well.stdout
    (root / "usr/bin/nvidia-smi").unlink()

    broken, whole = call(root), call(root, "--all").stdout
    document = json.loads(call(root, "--json").stdout)

    short = broken.stdout
    assert broken.returncode == 1, short + broken.stderr
    assert re.search(r"^  bad   cdi-paths +not on the node: /usr/bin/nvidia-smi", short, re.MULTILINE)
    assert "do: generate the specification again" in short
    levels = re.findall(r"^  (bad|warn|ok|n/a) ", short, re.MULTILINE)
    assert levels == sorted(levels, key=["bad", "warn", "ok"].index)
    assert short.splitlines()[-1].endswith(" n/a (--all shows them)")
    assert len(re.findall(r"^  (?:bad|warn|ok|n/a) ", whole, re.MULTILINE)) == len(CHECKS)
    assert (document["schema"], document["verdict"]) == (1, "bad")
    assert [each["name"] for each in document["checks"]] == [*CHECKS]
    assert all(bool(each["remedy"]) == (each["level"] in {"warn", "bad"}) for each in document["checks"])


def test_a_node_without_gpu_driver_and_toolkit_is_said_to_be_one_in_the_first_line(
    root: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    assert call(empty).stdout.startswith("No NVIDIA GPU, no driver and no toolkit were found on this node.\n")
    assert "No NVIDIA GPU" not in call(root).stdout


def test_a_narrow_terminal_gets_each_path_unbroken(root: Path) -> None:
    long = "/usr/lib/x86_64-linux-gnu/a-directory-of-a-driver/with-a-long-name/libnvidia-ml.so.550.54.15"
    edits = {"mounts": [{"hostPath": long, "containerPath": long}]}
    specification = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [], "containerEdits": edits}
    put(root, {"/etc/cdi/other.json": json.dumps(specification)})
    command = [sys.executable, "-m", "installer", "doctor", "--host-root", str(root), "--all"]

    shown = preloaded.run(command, preloaded.ENVIRONMENT | {"COLUMNS": "60"}).stdout

    assert f" {long}\n" in shown
    words = json.loads(preloaded.run([*command, "--json"]).stdout)["checks"]
    paths = {word for each in words for word in each["found"].split() if word.startswith("/")}
    assert paths
    assert [path for path in paths if path not in shown] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else gives a directory away")
@pytest.mark.parametrize("path", ["usr/local/nvidia/toolkit", "usr/bin/nvidia-container-runtime"])
def test_a_link_that_a_stranger_could_have_placed_is_a_bad_line_and_the_rest_is_examined(
    root: Path, path: str
) -> None:
    put(root, {LEDGER: "{"})  # which is no ledger
    link = root / path
    if link.exists():
        link.rename(link.with_name("moved"))
    link.symlink_to("moved")
    for each in (link.parent, link):
        os.chown(each, 65534, 65534, follow_symlinks=False)

    done = call(root, "--json")

    assert done.returncode == 1
    assert [*told(done)] == [*CHECKS]
    assert told(done)["installation"]["level"] == "bad"
    assert "as the line says" in told(done)["installation"]["remedy"]
