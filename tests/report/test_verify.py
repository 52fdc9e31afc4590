"""What a container has to show before a runtime counts as proven, and what it is asked."""

import itertools
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.config_text import Syntax
from installer.engines.node_shell import MARK
from installer.model.facts import ConfigRow, EngineRow, Record
from installer.model.options import Options
from installer.report.verify import (
    END,
    Expectation,
    Observation,
    ask_container,
    choose_runtimes,
    judge,
    print_proofs,
)

BINARY = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
SOCKET = PurePosixPath("/run/containerd/containerd.sock")
EXPECTED = Expectation("containerd", "nvidia", BINARY, SOCKET)
GPUS = replace(EXPECTED, devices=("/dev/nvidia0", "/dev/nvidia1"), driver="550.54.15")
SEES = f"{MARK}\ndevice /dev/nvidia0\ndevice /dev/nvidia1\nlibrary /usr/lib64/libnvidia-ml.so.550.54.15\n"
GOOD = Observation("", f"{MARK}\n", BINARY, wrapper_started=True, runtime_started=True)


@pytest.mark.parametrize(
    ("expected", "observed", "problem"),
    [
        (GPUS, replace(GOOD, output=SEES), ""),
        (EXPECTED, Observation(failure="no such runtime"), "no container could be run"),
        (EXPECTED, replace(GOOD, output="exec format error"), "printed 'exec format"),
        (EXPECTED, replace(GOOD, started_by=None), "that is not ours"),
        (replace(EXPECTED, runtime=""), replace(GOOD, started_by=None), ""),  # a hook of the default runtime
        (EXPECTED, replace(GOOD, wrapper_started=False), "was not started"),
        (EXPECTED, replace(GOOD, runtime_started=False), "was not started"),
        (EXPECTED, replace(GOOD, cleanup_failure="pod 1"), "not removed: pod 1"),
        (GPUS, GOOD, "not in the container: /dev/nvidia0, /dev/nvidia1"),
        (GPUS, replace(GOOD, output=SEES.replace("550.54.15", "535.1")), "no library of driver"),
    ],
)
def test_the_first_thing_that_is_missing_on_the_way_is_the_problem(
    expected: Expectation, observed: Observation, problem: str
) -> None:
    found = judge(expected, observed)

    assert problem in found.found
    assert (found.level == "bad") == bool(problem) == bool(found.remedy)


@pytest.mark.parametrize(
    "observed",
    [
        Observation(failure="run a container (mkdir /sys/fs/cgroup/x: read-only file system)"),
        replace(GOOD, output="exec format error"),
        replace(GOOD, started_by=None),
        replace(GOOD, wrapper_started=False),
    ],
)
def test_a_problem_for_which_doctor_has_no_check_names_another_remedy(observed: Observation) -> None:
    found = judge(EXPECTED, observed)

    assert observed.failure in found.found
    assert "doctor" not in (found.remedy or "")


NO_PAUSE_IMAGE = (
    f'ask the engine on {SOCKET} (UNKNOWN: failed to get sandbox image "registry.k8s.io/pause:3.6": failed to '
    'pull image "registry.k8s.io/pause:3.6": dial tcp: lookup registry.k8s.io: no such host)'
)


def test_a_missing_pause_image_is_to_be_imported() -> None:
    found = judge(EXPECTED, Observation(failure=NO_PAUSE_IMAGE))

    assert found.found.startswith("no container could be run: cannot ask the engine on ")
    assert "registry.k8s.io/pause:3.6" in (found.remedy or "")
    assert f"ctr --address {SOCKET} --namespace k8s.io images import" in (found.remedy or "")


@pytest.mark.parametrize("begin", ["creating", "error creating"])
@pytest.mark.parametrize("source", ["initializing source", "Error initializing source"])
def test_a_missing_pause_image_of_crio_is_to_be_imported(begin: str, source: str) -> None:
    socket = PurePosixPath("/run/crio/crio.sock")
    failure = (
        f'ask the engine on {socket} (UNKNOWN: {begin} pod sandbox with name "k8s_verify-x_default__0": '
        f"{source} docker://registry.k8s.io/pause:3.10: pinging container registry registry.k8s.io: "
        'Get "https://registry.k8s.io/v2/": dial tcp: lookup registry.k8s.io: no such host)'
    )

    found = judge(replace(EXPECTED, engine="crio", socket=socket), Observation(failure=failure))

    assert found.remedy == (
        "CRI-O makes each pod from the image registry.k8s.io/pause:3.10, which is not on this node. Make the "
        "registry reachable, or import the image from a file: podman load --input FILE.tar; verify again"
    )


def test_a_reason_of_several_runtimes_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    failed = judge(EXPECTED, Observation(failure=NO_PAUSE_IMAGE))
    docker = replace(failed, engine="docker")

    print_proofs((failed, replace(failed, runtime="nvidia-cdi"), docker, judge(EXPECTED, GOOD)))

    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in printed] == [
        ["bad", "containerd", "nvidia"],
        ["do:", "containerd", "makes"],
        ["bad", "containerd", "nvidia-cdi"],
        ["bad", "docker", "nvidia"],
        ["do:", "containerd", "makes"],
        ["ok", "containerd", "nvidia"],
    ]
    assert printed[2].endswith("  the same as above")


WHOLE = f"{MARK}\ndevice /dev/nvidia0\n{END}\n"


def test_output_that_a_busy_engine_dropped_or_cut_is_asked_for_again() -> None:
    answers = iter(["", f"{MARK}\ndevice /dev/nvi", WHOLE])

    assert ask_container(lambda _: next(answers), timeout_s=30) == WHOLE
    assert next(answers, None) is None


def test_who_never_tells_all_is_given_up_at_the_deadline() -> None:
    asked = itertools.count()

    def script(_: str) -> str:
        next(asked)
        return "something else\n"

    assert ask_container(script, timeout_s=0.5) == "something else\n"
    assert 1 < next(asked) < 5


@pytest.mark.parametrize(
    ("config", "syntax", "asks"),
    [
        ("/etc/crio/crio.conf.d/99-nvidia.toml", Syntax.TOML, ("nvidia",)),
        ("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", Syntax.JSON, ("",)),
    ],
    ids=["runtimes in a drop-in", "an OCI hook"],
)
def test_with_a_hook_no_runtime_is_asked_for_that_is_not_there(
    config: str, syntax: Syntax, asks: tuple[str, ...]
) -> None:
    toolkit = Options().layout.toolkit
    row = EngineRow("crio", PurePosixPath("/s"), "", {"nvidia": toolkit / "nvidia-container-runtime"})
    held = Record(configs=(ConfigRow("crio", PurePosixPath(config), syntax, None, (), ()),))

    found = choose_runtimes(Options(), held, row)

    assert tuple(name for name, _ in found) == asks
