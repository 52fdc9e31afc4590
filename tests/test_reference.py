"""The reference tells every flag, and what it promises about them is so; every refusal of the gate is told."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.cli.app import program
from installer.cli.flags import FLAGS, options_from
from installer.engines import ENGINES
from installer.errors import UsageError

REFERENCE = (Path(__file__).parent.parent / "docs/reference.md").read_text()
TROUBLESHOOTING = (Path(__file__).parent.parent / "docs/troubleshooting.md").read_text()
ROOMS = Path(__file__).parent.parent / "installer"
GATE = (
    *(f"change/{name}" for name in ("gate", "references", "engine_plan", "plan")),
    *(f"engines/{name}" for name in ("docker/config", "crio/config", "containerd/config")),
)
DEFAULTS = {flag.field: flag.default for flag in FLAGS}


def test_a_flag_its_variable_and_its_meaning_are_in_the_reference() -> None:
    for flag in FLAGS:
        row = next(line for line in REFERENCE.splitlines() if line.startswith(f"| `{flag.name}"))

        assert f"`{flag.variable}`" in row
        assert flag.help in row
        assert f"One of {', '.join(flag.choices)}." in row or not flag.choices


def test_each_verb_is_in_the_reference() -> None:
    rows = re.findall(r"^\| `(\w+)`", REFERENCE.partition("## Exit codes")[0], re.MULTILINE)

    assert {*rows} == program.commands.keys()


def test_each_engine_is_in_the_table_of_what_is_supported() -> None:
    rows = (ROOMS.parent / "docs/versions.md").read_text()

    titles = [engine.title for engine in ENGINES.values()]
    assert [each for each in titles if not re.search(rf"^\|.*\b{each}\b", rows, re.MULTILINE)] == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"config": ["/x"]}, "which engine"),
        ({"runtime": ["auto", "docker"]}, "mix --runtime auto"),
        ({"runtime": ["docker"], "drop_in_config": ["/x"]}, "use --drop-in-config for Docker"),
        ({"install_dir": "/"}, "install into /"),
        ({"install_dir": "a/b"}, "use the path a/b"),
        ({"host_root": "/host", "runtime": ["docker"], "config": ["/etc/x"]}, "outside the host's root"),
    ],
)
def test_options_that_make_no_sense_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        options_from(DEFAULTS | values, frozenset())


def test_a_path_as_this_process_sees_it_becomes_the_hosts(tmp_path: Path) -> None:
    places = {"config": [f"docker={tmp_path}/daemon.json"], "socket": ["crio=/host/run/x.sock"]}
    mounts = {"host_root": "/host", "mount": [f"/etc/docker={tmp_path}"]}

    options = options_from(DEFAULTS | mounts | places, frozenset())

    assert str(options.places["docker"].config) == "/etc/docker/daemon.json"
    assert str(options.places["crio"].socket) == "/run/x.sock"


def refusals(module: str) -> Iterator[str]:
    """Yield what a module says that it cannot do, with dots for what differs from case to case."""
    tree = ast.parse((ROOMS / f"{module}.py").read_text())
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    named = {ast.unparse(node.targets[0]): node.value for node in assigned}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "InstallerError":
            problem = named.get(ast.unparse(call.args[0]), call.args[0])
            parts = problem.values if isinstance(problem, ast.JoinedStr) else [problem]
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in parts)
            yield words.replace("......", "...")


@pytest.mark.parametrize("module", GATE)
def test_each_refusal_for_an_engines_sake_is_told_with_its_remedy(module: str) -> None:
    rows = [line for line in TROUBLESHOOTING.splitlines() if line.startswith("| `")]
    told = [line.split("|")[1].strip().replace("`cannot ", "`") for line in rows]
    # How a file is read is said in the words of the file itself.
    said = {words for words in refusals(module) if not words.startswith("read ")}

    assert said or module == "engines/containerd"
    assert {f"`{words}`" for words in said} - {*told} == set()
