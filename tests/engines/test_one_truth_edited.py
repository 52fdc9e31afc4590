"""What an administrator makes of our tables in an engine's configs: all verbs agree on it, and with the engine."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.engines.configs import CONTAINERD, DOCKER, VERSION_2
from tests.engines.conftest import Boot
from tests.engines.live import start
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served
from tests.engines.versions import EngineSet
from tests.support.waiting import until

OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
OK, FAILED, LOCKED, UNDO_INCOMPLETE, WOULD_CHANGE = 0, 1, 3, 4, 10
MINE = "/etc/containerd/mine/gpu.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
SOURCE = ("--toolkit-source", ARTIFACTS, "--runtime", "containerd")
BY_DROP_IN = (*SOURCE, "--drop-in-config", DROP_IN)


def migrates(node: Node) -> None:
    """Do what each start of 2.x advises."""
    node.write(CONTAINERD, node.run(["containerd", "config", "migrate"]).stdout)


def moves_all(node: Node) -> None:
    """Move the whole text into a file that the root file imports."""
    node.write(MINE, node.read(CONTAINERD))
    node.write(CONTAINERD, f'version = 2\nimports = ["{MINE}"]\n')


def moves_the_drop_in(node: Node) -> None:
    node.write(MINE, node.read(DROP_IN))
    node.run(["rm", DROP_IN])
    node.write(CONTAINERD, node.read(CONTAINERD).replace(DROP_IN.replace(".toml", "*.toml"), MINE))


def renames(node: Node) -> None:
    """Give one of ours another name, wherever it stands."""
    path = DROP_IN if "conf.d" in node.read(CONTAINERD) else CONTAINERD
    node.write(
        path, node.read(path).replace(".nvidia]", ".gpu]").replace(".nvidia.options]", ".gpu.options]")
    )


def says_more(node: Node) -> None:
    node.write(CONTAINERD, node.read(CONTAINERD) + "[debug]\nlevel = 'info'\n")


def forgets_the_runtime_type(node: Node) -> None:
    """Delete one line of ours: the name and the program stay, and no pod starts with them."""
    head, table, rest = node.read(CONTAINERD).partition("runtimes.nvidia]\n")
    node.write(CONTAINERD, head + table + rest.partition("\n")[2])


TABLE = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
# As kubespray leaves it: containerd takes either spelling.
BOTH_SPELLINGS = f"""{VERSION_2}
{TABLE}.nvidia]
runtime_type = "io.containerd.runc.v2"
{TABLE}.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
binaryName = "/usr/sbin/runc"
systemdCgroup = false
"""


def engine_of(engines_today: list[EngineSet], suite: str, name: str = "containerd") -> EngineSet:
    return next(row for row in engines_today if (row.suite, row.name) == (suite, name))


@dataclass(frozen=True)
class Case:
    """An act on a node with a containerd of one suite; None is a node without a config."""

    suite: str
    root: str | None
    asked: tuple[str, ...]
    act: Callable[[Node], None]
    planned: int
    said: str = "edited after the install, our keys in force"


CHANGED = "nvidia.runtime_type changed after the install"
GONE = "drifted: the runtime nvidia is not defined in its configs: toolkit-installer reconcile puts it right"
CASES = {
    "2.1 migrates what we began": Case("sid", None, SOURCE, migrates, OK),
    "2.1 migrates its own": Case("sid", VERSION_2, SOURCE, migrates, OK),
    "2.1 moves all": Case("sid", VERSION_2, SOURCE, moves_all, OK),
    "2.1 moves what we began": Case("sid", None, SOURCE, moves_all, OK),
    "1.7 moves all": Case("trixie", VERSION_2, SOURCE, moves_all, OK, ""),
    "2.1 moves the drop-in": Case(
        "sid", VERSION_2, BY_DROP_IN, moves_the_drop_in, OK, "removed after the install, our keys in force"
    ),
    "2.1 renames in the drop-in": Case("sid", VERSION_2, BY_DROP_IN, renames, WOULD_CHANGE, GONE),
    "2.1 says more beside both spellings": Case("sid", BOTH_SPELLINGS, SOURCE, says_more, OK),
    "1.7 says more beside both spellings": Case("trixie", BOTH_SPELLINGS, SOURCE, says_more, OK),
    "2.1 forgets the runtime type": Case(
        "sid", VERSION_2, SOURCE, forgets_the_runtime_type, WOULD_CHANGE, CHANGED
    ),
    "1.7 renames in the root file": Case("trixie", VERSION_2, SOURCE, renames, WOULD_CHANGE, GONE),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_all_verbs_agree_on_what_an_administrator_made_of_our_tables(
    booted: Boot, engines_today: list[EngineSet], case: Case
) -> None:
    with booted(engine_of(engines_today, case.suite), start=False) as node:
        node.run(["rm", CONTAINERD])
        if case.root is not None:
            node.write(CONTAINERD, case.root)
        node.start_engines()
        run = node.start_installer("run", "--drift", "report", *case.asked)
        run.wait_for("waiting for a signal")

        def told() -> str:
            return node.installer("status").stdout + node.installer("plan", *case.asked).stdout

        def agree(*wanted: int) -> None:
            asked = (("status",), ("status", "--ready"), ("plan", *case.asked))
            until(lambda: tuple(node.installer(*each).returncode for each in asked) == wanted, told)

        agree(OK, OK, OK)
        case.act(node)
        until(lambda: case.said in node.installer("status").stdout, told)
        agree(*((OK, OK, OK) if case.planned == OK else (FAILED, FAILED, WOULD_CHANGE)))
        assert node.installer("install", *case.asked).returncode == LOCKED

        done = node.installer("reconcile")

        assert done.returncode == OK, done
        assert done.stdout.splitlines()[-1] == ("nothing to do" if case.planned == OK else "repaired")
        agree(OK, OK, OK)
        node.restart("containerd")
        node.cri.wait()
        assert served(node)[0] >= OURS
        agree(OK, OK, OK)
        run.kill()
        run.wait()
        # What it has started ends between two steps.
        until(lambda: node.installer("install", *case.asked).returncode != LOCKED, told)
        again = node.installer("install", *case.asked)
        assert (again.returncode, "config written" in again.stderr) == (OK, False), again.stderr
        agree(OK, FAILED, OK)  # no run waits: nobody vouches for it


REFUSED = {
    "containerd, a default that nobody defines": (CONTAINERD, "'runc'", "'gone'"),
    "containerd, an import of nothing": (CONTAINERD, "# Written", 'imports = ["/not/there.toml"]\n# Written'),
    "containerd, a byte order mark": (CONTAINERD, "# Written", "\ufeff# Written"),
    "dockerd, an unknown key": (DOCKER, "{", '{"unknown": 1,'),
}


@pytest.mark.parametrize(("path", "old", "new"), REFUSED.values(), ids=REFUSED)
def test_no_install_silences_what_the_next_start_refuses_and_no_start_does(
    booted: Boot, engines_today: list[EngineSet], path: str, old: str, new: str
) -> None:
    name = "docker" if path == DOCKER else "containerd"
    asked = ("--toolkit-source", ARTIFACTS, "--runtime", name)
    with booted(engine_of(engines_today, "sid", name)) as node:
        node.installer("install", *asked, check=True)
        node.write(path, node.read(path).replace(old, new, 1))
        told = node.installer("status")
        assert (told.returncode, "would not start with the configs" in told.stdout) == (FAILED, True)

        node.installer("install", *asked, check=True)

        assert node.installer("status").stdout == told.stdout
        node.run(["systemctl", "restart", name], check=False)
        assert node.installer("plan", *asked).returncode == FAILED
        assert node.installer("status").stdout == told.stdout


def test_nobody_is_blamed_for_what_an_undo_has_taken_from_under_a_container(
    booted: Boot, engines_today: list[EngineSet]
) -> None:
    with booted(engine_of(engines_today, "sid", "docker")) as node:
        node.installer("install", "--toolkit-source", ARTIFACTS, "--runtime", "docker", check=True)
        start(node)
        assert node.installer("uninstall", "--in-use", "force").returncode == UNDO_INCOMPLETE

        told = node.installer("status").stdout
        node.write(DOCKER, node.read(DOCKER).replace("{", '{"unknown": 1,', 1))
        broken = node.installer("status").stdout

        assert ("drifted" in told, "daemon.json    as we wrote it" in told) == (False, True), told
        assert ("drifted" in broken, "edited after the install\n" in broken) == (False, True), broken
        assert "would not start with the configs that it has now" in broken


def test_a_name_that_is_there_twice_in_daemon_json_stops_each_verb_and_takes_nothing(
    booted: Boot, engines_today: list[EngineSet]
) -> None:
    asked = ("--toolkit-source", ARTIFACTS, "--runtime", "docker")
    mine = '"runtimes": {"mine": {"path": "/usr/sbin/runc"}}, '
    with booted(engine_of(engines_today, "sid", "docker")) as node:
        node.write(DOCKER, f"{{{mine}" + node.read(DOCKER).removeprefix("{"))
        node.installer("install", *asked, check=True)
        node.write(DOCKER, f"{{{mine}" + node.read(DOCKER).removeprefix("{"))
        doubled = node.read(DOCKER)

        codes = [node.installer(*each).returncode for each in (("plan", *asked), ("status",), ("uninstall",))]

        assert codes == [FAILED, FAILED, UNDO_INCOMPLETE]
        assert "(runtimes is there twice)" in node.installer("status").stdout
        assert node.read(DOCKER) == doubled
        node.restart("docker")
        assert served(node)[0] == {"runc", "mine"} | OURS
        node.write(DOCKER, doubled.replace(mine, "", 1))
        node.installer("uninstall", check=True)
        assert served(node)[0] == {"runc", "mine"}


HOME = "/usr/local/nvidia/.toolkit-installer"
PROGRAM = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
TWICE = BOTH_SPELLINGS.replace("/usr/bin/nvidia-container-runtime", PROGRAM)
suites = pytest.mark.parametrize(
    "suite", [pytest.param("sid", id="containerd 2.1"), pytest.param("trixie", id="containerd 1.7")]
)


@suites
@pytest.mark.parametrize("default", [(), ("--set-as-default",)], ids=["beside runc", "as default"])
def test_all_verbs_say_that_a_cgroup_driver_changed_after_the_install_is_to_be_followed(
    booted: Boot, engines_today: list[EngineSet], suite: str, default: tuple[str, ...]
) -> None:
    systemd = VERSION_2.replace("SystemdCgroup = false", "SystemdCgroup = true")
    assert systemd != VERSION_2
    with booted(engine_of(engines_today, suite), start=False) as node:
        node.write(CONTAINERD, VERSION_2)
        node.start_engines()
        install = ("install", *SOURCE, *default)
        node.installer(*install, check=True)

        def ends(*verbs: tuple[str, ...]) -> tuple[int, ...]:
            return tuple(node.installer(*each).returncode for each in verbs)

        verbs = (("status",), ("plan", *SOURCE, *default))
        assert ends(*verbs) == (OK, OK)
        node.write(CONTAINERD, node.read(CONTAINERD) + "[debug]\nlevel = 'info'\n")
        assert ends(*verbs) == (OK, OK)

        text = node.read(CONTAINERD)
        node.write(CONTAINERD, text.replace("SystemdCgroup = false", "SystemdCgroup = true", 1))

        assert ends(*verbs) == (FAILED, WOULD_CHANGE)
        said = "drifted: the options that the runtime nvidia inherits have changed in its configs"
        assert said in node.installer("status").stdout
        assert ends(install, *verbs) == (OK, OK, OK)
        options = node.cri.status().runtimes["nvidia"]["options"]
        assert options["SystemdCgroup"] is True
        run = node.start_installer("run", *SOURCE, *default)
        run.wait_for("waiting for a signal")
        ready = (*verbs, ("status", "--ready"))
        until(lambda: ends(*ready) == (OK, OK, OK), lambda: node.installer("status").stdout)
        run.kill()
        run.wait()
        until(lambda: ends(("uninstall",)) == (OK,), lambda: node.installer("uninstall").stderr)
        assert node.read(CONTAINERD) == systemd + "[debug]\nlevel = 'info'\n"


@suites
@pytest.mark.parametrize("lost", [False, True], ids=["of before us", "of a lost ledger"])
def test_an_entry_with_our_program_in_two_spellings_starts_ours_after_an_install(
    booted: Boot, engines_today: list[EngineSet], suite: str, *, lost: bool
) -> None:
    with booted(engine_of(engines_today, suite), start=False) as node:
        node.write(CONTAINERD, TWICE)
        node.start_engines()
        if lost:
            node.installer("install", *SOURCE, check=True)
            node.run(["rm", "-r", f"{HOME}/ledger", f"{HOME}/backups"])
            node.write(CONTAINERD, TWICE)
            node.restart("containerd")
            node.cri.wait()

        done = node.installer("install", *SOURCE)

        assert done.returncode == OK, done.stderr
        assert served(node)[0] >= OURS
        options = node.cri.status().runtimes["nvidia"]["options"]
        assert {value for name, value in options.items() if name.lower() == "binaryname"} == {PROGRAM}
        assert node.installer("plan", *SOURCE).returncode == OK
        assert node.installer("status").returncode == OK

        undone = node.installer("uninstall")

        assert "cannot prove" not in undone.stderr, undone.stderr
        assert undone.returncode == OK, undone.stderr
        # What stood there before an install whose ledger is lost nobody knows: our runtimes go as a whole.
        assert "nvidia" not in node.read(CONTAINERD) if lost else node.read(CONTAINERD) == TWICE
