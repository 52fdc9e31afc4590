"""docs/operate.md, node images: the toolkit is installed while no engine runs, and a run on the booted node restarts nothing."""

import re

import pytest

from tests.documents import PROJECT
from tests.engines.conftest import Boot
from tests.engines.nodes import OURS, SOURCE
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served
from tests.engines.versions import EngineSet


def _documented() -> list[str]:
    text = (PROJECT / "docs/host.md").read_text().partition("## In a node image")[2]
    command = " ".join(re.findall(r"`toolkit-installer ([^`]+)`", text)[0].split())
    return command.replace("/opt/nvidia-toolkit", ARTIFACTS).split()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("index", [-1, 0], ids=["newest containerd", "oldest containerd"])
def test_a_run_on_a_node_whose_image_has_the_toolkit_restarts_nothing(
    booted: Boot, engines_today: list[EngineSet], index: int
) -> None:
    engines = [row for row in engines_today if not row.docker][index]
    with booted(engines, start=False) as node:
        node.installer(*_documented(), check=True)
        node.start_engines()
        pid = node.pid_of()
        assert served(node)[0] >= OURS

        process = node.start_run(*SOURCE)

        assert node.is_ready(), node.installer("status").stdout
        assert "nothing changed" in process.log
        assert node.pid_of() == pid, "containerd was not restarted"
        process.terminate()
        assert process.wait() == 0
        assert served(node)[0].isdisjoint(OURS), "the first stop of a pod undoes what the image brought"
