"""What an administrator makes of a node while ``run`` waits: all verbs agree on it, and with the engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.engines.configs import CONTAINERD, DAEMON_JSON, DOCKER, VERSION_2
from tests.engines.conftest import Boot
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.told import served
from tests.engines.versions import EngineSet
from tests.support.waiting import until

OK, FAILED, LOCKED, WOULD_CHANGE = 0, 1, 3, 10
MINE = "/etc/containerd/mine/gpu.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
BY_DROP_IN = ("--drop-in-config", DROP_IN)


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


def takes_a_runtime(node: Node) -> None:
    """Let one of ours start another program."""
    ours = "/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy"
    node.write(node.config, node.read(node.config).replace(ours, "/usr/sbin/runc"))


def removes_the_toolkit(node: Node) -> None:
    node.run(["rm", "/usr/local/nvidia/toolkit"])


@dataclass(frozen=True)
class Case:
    """Acts on a node with an engine of one suite; without a root file its engine has none."""

    suite: str
    root: str | None
    acts: dict[Callable[[Node], None], int]
    said: str = "edited after the install, our keys in force"
    asked: tuple[str, ...] = ()
    engine: str = "containerd"


CHANGED = "nvidia.runtime_type changed after the install"
GONE = "drifted: the runtime nvidia is not defined in its configs: toolkit-installer reconcile puts it right"
ON_ANY = {Node.restart_engine: OK, takes_a_runtime: WOULD_CHANGE, removes_the_toolkit: WOULD_CHANGE}
CASES = {
    "2.1 migrates what we began": Case("sid", None, {migrates: OK}),
    "2.1 moves all": Case("sid", VERSION_2, {moves_all: OK}),
    "1.7 moves all": Case("trixie", VERSION_2, {moves_all: OK}, ""),
    "2.1 moves the drop-in": Case(
        "sid", VERSION_2, {moves_the_drop_in: OK}, "removed after the install, our keys in force", BY_DROP_IN
    ),
    "2.1 renames in the drop-in": Case("sid", VERSION_2, {renames: WOULD_CHANGE}, GONE, BY_DROP_IN),
    "2.1 says more beside both spellings": Case("sid", BOTH_SPELLINGS, {says_more: OK}),
    "2.1 forgets the runtime type": Case("sid", VERSION_2, {forgets_the_runtime_type: WOULD_CHANGE}, CHANGED),
    "1.7 is restarted, loses a runtime and the toolkit": Case("trixie", VERSION_2, ON_ANY, ""),
    "Docker is restarted, loses a runtime and the toolkit": Case(
        "sid", DAEMON_JSON, ON_ANY, "", (), "docker"
    ),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_all_verbs_agree_on_what_an_administrator_made_of_a_node(
    booted: Boot, engines_today: list[EngineSet], case: Case
) -> None:
    asked = (*SOURCE, "--runtime", case.engine, *case.asked)
    with booted(engine_of(engines_today, case.suite, case.engine), start=False) as node:
        node.run(["rm", node.config])
        if case.root is not None:
            node.write(node.config, case.root)
        node.start_engines()
        run = node.start_run("--drift", "report", *asked)

        def told() -> str:
            return node.installer("status").stdout + node.installer("plan", *asked).stdout

        def agree(*wanted: int) -> None:
            verbs = (("status", "--ready"), ("status",), ("plan", *asked))
            # The dear ones are asked when the first agrees.
            until(
                lambda: all(node.installer(*v).returncode == w for v, w in zip(verbs, wanted, strict=True)),
                told,
            )

        agree(OK, OK, OK)
        for act, planned in case.acts.items():
            act(node)
            until(lambda: case.said in node.installer("status").stdout, told)
            agree(*((OK, OK, OK) if planned == OK else (FAILED, FAILED, WOULD_CHANGE)))
            assert node.installer("install", *asked).returncode == LOCKED

            done = node.installer("reconcile")

            assert done.returncode == OK, done
            assert done.stdout.splitlines()[-1] == ("nothing to do" if planned == OK else "repaired"), act
            agree(OK, OK, OK)
        node.restart_engine()
        assert served(node)[0] >= OURS
        agree(OK, OK, OK)
        run.kill()
        run.wait()
        # What it has started ends between two steps.
        until(lambda: node.installer("install", *asked).returncode != LOCKED, told)
        again = node.installer("install", *asked)
        assert (again.returncode, "config written" in again.stderr) == (OK, False), again.stderr
        agree(FAILED, OK, OK)  # no run waits: nobody vouches for it


REFUSED = {
    "containerd, a default that nobody defines": (CONTAINERD, "'runc'", "'gone'"),
    "dockerd, an unknown key": (DOCKER, "{", '{"unknown": 1,'),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("path", "old", "new"), REFUSED.values(), ids=REFUSED)
def test_no_install_silences_what_the_next_start_refuses_and_no_start_does(
    booted: Boot, engines_today: list[EngineSet], path: str, old: str, new: str
) -> None:
    name = "docker" if path == DOCKER else "containerd"
    asked = (*SOURCE, "--runtime", name)
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


@pytest.fixture(params=["sid", "trixie"], ids=["containerd 2.1", "containerd 1.7"])
def unstarted(request: pytest.FixtureRequest, booted: Boot, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot a node whose containerd is not started yet."""
    with booted(engine_of(engines_today, request.param), start=False) as made:
        yield made


@pytest.mark.sampled(16)
def test_all_verbs_say_that_a_cgroup_driver_changed_after_the_install_is_to_be_followed(
    unstarted: Node,
) -> None:
    node = unstarted
    other = VERSION_2.replace("SystemdCgroup = false", "SystemdCgroup = true")
    node.write(CONTAINERD, VERSION_2)
    node.start_engines()
    install = ("install", *SOURCE, "--set-as-default")
    node.installer(*install, check=True)

    def ends() -> tuple[int, int]:
        return node.installer("status").returncode, node.installer("plan", *install[1:]).returncode

    assert ends() == (OK, OK)
    text = node.read(CONTAINERD)
    node.write(CONTAINERD, text.replace("SystemdCgroup = false", "SystemdCgroup = true", 1))

    assert ends() == (FAILED, FAILED), "no restart of ours changes the driver of others"
    said = "drifted: the options that the runtime nvidia inherits have changed in its configs"
    assert said in node.installer("status").stdout
    node.restart_engine()
    assert ends() == (FAILED, WOULD_CHANGE)
    node.installer(*install, check=True)
    assert ends() == (OK, OK)
    assert node.cri.status().runtimes["nvidia"]["options"]["SystemdCgroup"] is True
    node.installer("uninstall", check=True)
    assert node.read(CONTAINERD) == other


@pytest.mark.sampled(16)
def test_an_entry_with_our_program_in_two_spellings_starts_ours_after_an_install(unstarted: Node) -> None:
    node, program = unstarted, "/usr/local/nvidia/toolkit/nvidia-container-runtime"
    twice = BOTH_SPELLINGS.replace("/usr/bin/nvidia-container-runtime", program)
    node.write(CONTAINERD, twice)
    node.start_engines()

    node.installer("install", *SOURCE, check=True)

    assert served(node)[0] >= OURS
    options = node.cri.status().runtimes["nvidia"]["options"]
    assert {value for name, value in options.items() if name.lower() == "binaryname"} == {program}
    assert (node.installer("plan", *SOURCE).returncode, node.installer("status").returncode) == (OK, OK)

    undone = node.installer("uninstall", check=True)

    assert "cannot prove" not in undone.stderr, undone.stderr
    assert node.read(CONTAINERD) == twice
