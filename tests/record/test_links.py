"""Where a word leads that a config has for a program: to what the engine finds in its own PATH."""

from pathlib import Path, PurePosixPath

import pytest

from installer.decide.engines import ENGINES
from installer.decide.facts import EngineFacts, Facts, ToolkitFacts
from installer.decide.inode import File
from installer.decide.layout import Layout
from installer.decide.rows import Record
from installer.host.files import Host
from installer.record.links import links_named

ROW = ENGINES["containerd"]
LAYOUT = Layout(PurePosixPath("/usr/local/nvidia"))
TEXT = (
    'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpu.options]\nBinaryName = "gpu"\n'
)
SITE, USUAL = PurePosixPath("/opt/site/bin"), PurePosixPath("/usr/bin")


def put(root: Path, path: PurePosixPath, text: str = "") -> Path:
    place = root / path.relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


@pytest.mark.parametrize(
    ("paths", "leads"),
    [
        pytest.param(((SITE, USUAL),), True, id="of its start"),
        pytest.param(((USUAL,), (SITE, USUAL)), True, id="of its next start"),
        pytest.param(((USUAL, SITE),), False, id="another one is first"),
        pytest.param((), False, id="not known"),
    ],
)
def test_a_word_is_looked_for_in_the_path_of_the_engine(
    tmp_path: Path, paths: tuple[tuple[PurePosixPath, ...], ...], *, leads: bool
) -> None:
    program = LAYOUT.versions / "1/nvidia-container-runtime"
    put(tmp_path, program)
    put(tmp_path, USUAL / "gpu")
    put(tmp_path, SITE / "gpu").unlink()
    (tmp_path / "opt/site/bin/gpu").symlink_to(program)
    engine = EngineFacts(
        "containerd", ROW.config, None, None, (ROW.config,), ROW.socket, ROW.unit, paths=paths
    )
    contents = {ROW.config: File(TEXT.encode())}
    facts = Facts((engine,), contents, {}, frozenset(), (), ToolkitFacts(), Record())

    found = links_named(Host.under(PurePosixPath(tmp_path)), facts, LAYOUT)

    assert (found.get("gpu") == program) is leads
