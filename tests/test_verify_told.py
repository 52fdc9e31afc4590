"""What a container tells is asked again until all of it has arrived."""

import itertools
from pathlib import PurePosixPath

import pytest

from installer.engines.trial_containers import MARK
from installer.model.options import Options
from installer.model.record import ConfigRow, EngineRow, Record
from installer.report.verify import END, ask_container, choose_runtimes

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
    ("config", "asks"),
    [
        pytest.param("/etc/crio/crio.conf.d/99-nvidia.toml", ("nvidia",), id="runtimes in a drop-in"),
        pytest.param("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", ("",), id="an OCI hook"),
    ],
)
def test_with_a_hook_no_runtime_is_asked_for_that_is_not_there(config: str, asks: tuple[str, ...]) -> None:
    toolkit = Options().layout.toolkit
    row = EngineRow("crio", PurePosixPath("/s"), "", (("nvidia", toolkit / "nvidia-container-runtime"),))
    held = Record(configs=(ConfigRow("crio", PurePosixPath(config), None, None, (), ()),))

    found = choose_runtimes(Options(), held, row)

    assert tuple(name for name, _ in found) == asks
