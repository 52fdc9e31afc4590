"""``plan --summary``: the last line of a plan, and the documented command that lists these lines of all nodes."""

import os
import subprocess
from pathlib import Path

from installer.change.plan import Plan
from installer.cli.output import summarize
from installer.engines import ENGINES
from installer.model.facts import Record
from installer.model.steps import Part, Reload
from tests.documents import starting
from tests.support.site import DAEMON_JSON, Site

NODE = {"TOOLKIT_INSTALLER_NODE_NAME": "gpu-node-7"}
LISTS = "kubectl --namespace node-toolkit-installer logs --selector app.kubernetes.io/name=node-toolkit-installer-plan"


def last_line(site: Site, *more: str, code: int, env: dict[str, str] | None = None) -> str:
    """Return the last line of a plan that changes nothing and ends with ``code``."""
    before = site.tree(times=True)
    done = site.call("plan", "--summary", *more, env=NODE if env is None else env)
    assert done.returncode == code, done.stderr
    assert site.tree(times=True) == before
    return done.stdout.splitlines()[-1]


def test_a_plan_ends_with_what_an_install_would_do_on_the_node(site: Site) -> None:
    first = last_line(site, code=10)
    site.install()
    second = last_line(site, code=0)

    assert first == "gpu-node-7: would edit 3 files"
    assert second == "gpu-node-7: nothing to do"


def test_a_plan_for_one_engine_names_its_one_file(site: Site) -> None:
    done = site.call("plan", "--summary", "--node-name", "a", env={"TOOLKIT_INSTALLER_RUNTIME": "docker"})

    assert done.stdout.splitlines()[-1].startswith("a: would edit ")


def test_an_update_of_the_toolkit_alone_says_so(site: Site) -> None:
    site.install()
    program = next(site.source.rglob("nvidia-container-runtime"))
    program.write_bytes(program.read_bytes() + b"2")

    assert last_line(site, code=10) == "gpu-node-7: would change files of the toolkit alone"


def test_a_refused_install_is_told_in_one_line(site: Site) -> None:
    (site.root / DAEMON_JSON).unlink()
    (site.root / DAEMON_JSON).mkdir()

    line = last_line(site, code=1, env={})

    assert line.startswith("this node: refused: cannot ")


def test_a_restart_is_named_without_its_proof() -> None:
    restart = Reload(ENGINES["containerd"], present=(), when_idle=False)
    plan = Plan(
        (Part("engine-containerd", planned=((restart, "it has not read its config"),)),), Record(), None, {}
    )

    assert summarize(plan, changes=True) == "would restart containerd"


def test_json_has_no_summary(site: Site) -> None:
    done = site.call("plan", "--summary", "--json")

    assert done.returncode == 2
    assert "--json or --summary" in done.stderr


def test_the_documented_command_groups_the_lines_of_all_nodes(tmp_path: Path) -> None:
    (command,) = starting(LISTS)
    lines = [
        "gpu-node-1: would edit 1 file and restart containerd",
        "gpu-node-2: nothing to do",
        "gpu-node-3: would edit 1 file and restart containerd",
        "gpu-node-4: refused: cannot configure Docker (daemon.json: a directory); remove it",
    ]
    kubectl = tmp_path / "kubectl"
    # Measured with kubectl 1.32: without --ignore-errors the list ends at the first kubelet that does not answer.
    unreachable = "error: Get https://10.0.0.5:10250/containerLogs: connect: no route to host"
    kubectl.write_text(
        "#!/bin/sh\n"
        f"cat <<END\n{lines[0]}\nEND\n"
        f"case $* in *--ignore-errors*) echo '{unreachable}' ;; *) exit 1 ;; esac\n"
        "cat <<END\n" + "\n".join(lines[1:]) + "\nEND\n"
    )
    kubectl.chmod(0o755)

    done = subprocess.run(
        ["sh", "-c", command.text],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )

    first, *others = done.stdout.splitlines()
    assert first == "2 would edit 1 file and restart containerd: gpu-node-1 gpu-node-3"
    assert sorted(others) == [
        "1 Get https://10.0.0.5:10250/containerLogs: connect: no route to host: error",
        "1 nothing to do: gpu-node-2",
        "1 refused: cannot configure Docker (daemon.json: a directory); remove it: gpu-node-4",
    ]
