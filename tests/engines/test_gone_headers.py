"""A header of ours that an administrator has deleted: what stood below it is ours still, and goes whole."""

import re
from pathlib import Path

import pytest

from tests.engines.dumps import BASE, OURS, Node, writes


@pytest.mark.parametrize("start", BASE.values(), ids=BASE)
@pytest.mark.parametrize("names", [["nvidia"], sorted(OURS)], ids=["of one runtime", "of each runtime"])
def test_what_stood_below_a_header_of_options_goes_with_its_runtime(
    containerd: tuple[Path, tuple[int, ...]], tmp_path: Path, start: str | None, names: list[str]
) -> None:
    program, version = containerd
    node = Node(program, version, tmp_path)
    node.config.parent.mkdir()
    if start is not None:
        node.config.write_text(start)
    before = node.truth()
    node.install()
    installed, held, proper = node.config.read_text(), node.held, node.truth().handlers["nvidia"]
    edited = re.sub(rf"(?m)^[ \t]*\[[^\n]*runtimes\.({'|'.join(names)})\.options\]\n", "", installed)
    assert edited.count(".options]") == installed.count(".options]") - len(names)
    node.config.write_text(edited)

    undone = node.uninstall()

    left = node.config.read_text().strip() if node.config.exists() else ""
    assert (undone.needed, undone.final) == ((), None)
    assert left == (start or "").strip()
    assert node.truth().handlers == before.handlers
    node.config.write_text(edited)
    node.held = held
    assert writes(node.install())
    assert node.truth().handlers["nvidia"].shows(proper)
    assert writes(node.install()) == []
