"""A line of ours that somebody has deleted from containerd's config is written again: by its own program's word."""

import re
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from installer.model.engine_spec import Runtime
from tests.engines.dumps import BASE, Node, writes


def is_valid(text: str) -> bool:
    with suppress(tomllib.TOMLDecodeError):
        return bool(tomllib.loads(text))
    return False


def without_each(text: str) -> list[str]:
    """Return the text less each line of our first runtime in turn, but where no engine could read that."""
    lines = text.splitlines(keepends=True)
    named = [at for at, line in enumerate(lines) if re.search(r"runtimes\.nvidia[].]", line)]
    end = next(at for at, line in enumerate(lines) if "runtimes.nvidia-cdi" in line)
    texts = ["".join(lines[:at] + lines[at + 1 :]) for at in range(named[0], end) if lines[at].strip()]
    return [one for one in texts if is_valid(one)]


@pytest.mark.parametrize("start", BASE.values(), ids=BASE)
def test_a_line_of_ours_that_is_gone_is_written_again(
    containerd: tuple[Path, tuple[int, ...]], tmp_path: Path, start: str | None
) -> None:
    program, version = containerd
    node = Node(program, version, tmp_path)
    node.config.parent.mkdir()
    if start is not None:
        node.config.write_text(start)
    node.install()
    installed, proper, held = node.config.read_text(), node.truth().handlers["nvidia"], node.held
    texts = without_each(installed)
    assert len(texts) >= 3, installed

    for text in texts:
        node.config.write_text(text)
        node.held = held
        gone = not node.truth().handlers.get("nvidia", Runtime()).shows(proper)

        plan = node.install()

        assert node.truth().handlers["nvidia"].shows(proper), text
        assert bool(writes(plan)) == gone, text
        assert writes(node.install()) == []
