"""Options that our runtimes take over, and two spellings of one: all verbs agree with a real containerd."""

import pytest

from tests.engines.configs import CONTAINERD, VERSION_2
from tests.engines.conftest import Boot
from tests.engines.payload import ARTIFACTS
from tests.engines.running import until
from tests.engines.told import served
from tests.engines.versions import EngineSet

OK, FAILED, WOULD_CHANGE = 0, 1, 10
SOURCE = ("--toolkit-source", ARTIFACTS, "--runtime", "containerd")
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
PROGRAM = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
HOME = "/usr/local/nvidia/.toolkit-installer"
TABLE = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
TWICE = f"""{VERSION_2}
{TABLE}.nvidia]
runtime_type = "io.containerd.runc.v2"
{TABLE}.nvidia.options]
BinaryName = "{PROGRAM}"
binaryName = "/usr/sbin/runc"
systemdCgroup = false
"""
suites = pytest.mark.parametrize(
    "suite", [pytest.param("sid", id="containerd 2.1"), pytest.param("trixie", id="containerd 1.7")]
)


@suites
@pytest.mark.parametrize("default", [(), ("--set-as-default",)], ids=["beside runc", "as default"])
def test_all_verbs_say_that_a_cgroup_driver_changed_after_the_install_is_to_be_followed(
    booted: Boot, engines_today: list[EngineSet], suite: str, default: tuple[str, ...]
) -> None:
    engines = next(row for row in engines_today if row.suite == suite and row.docker is None)
    systemd = VERSION_2.replace("SystemdCgroup = false", "SystemdCgroup = true")
    assert systemd != VERSION_2
    with booted(engines, start=False) as node:
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
    engines = next(row for row in engines_today if row.suite == suite and row.docker is None)
    with booted(engines, start=False) as node:
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
