"""What an administrator adds to a config that we began counts, as real containerds read it: none is started."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from installer.change.plan import plan_undo
from installer.config_text import Syntax, Want
from installer.config_text.change import apply
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.model.engine_spec import find_disturbances
from installer.model.facts import EngineState
from installer.model.options import Options, RestartMode
from tests.engines.dumps import OURS, STARTS, Node, writes

KIND = "io.containerd.runc.v2"
ADDITIONS = {
    "a registry": Want(("plugins", V2_PLUGIN, "registry", "config_path"), "/etc/containerd/certs.d"),
    "an image": Want(("plugins", V2_PLUGIN, "sandbox_image"), "registry.local/pause:3"),
    "a level": Want(("debug", "level"), "warn"),
    "an option of runc": Want(
        ("plugins", V2_PLUGIN, "containerd", "runtimes", "runc", "options", "SystemdCgroup"), value=True
    ),
    "a runtime": Want(("plugins", V2_PLUGIN, "containerd", "runtimes", "mine", "runtime_type"), KIND),
    "a runtime under the other plugin": Want(
        ("plugins", V3_PLUGIN, "containerd", "runtimes", "mine", "runtime_type"), KIND
    ),
}


def uninstall_unseen(node: Node) -> None:
    """Undo where no engine is in sight: none can be asked."""
    facts, _ = node.facts(None)
    unseen = tuple(
        EngineState(each.name, each.config, each.drop_in, None, each.files, each.socket, "", each.version)
        for each in facts.engines
    )
    node.carry_out(plan_undo(replace(facts, engines=unseen), Options(restart_mode=RestartMode.NONE)))


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("added", ADDITIONS.values(), ids=ADDITIONS)
@pytest.mark.parametrize("undo", [Node.uninstall, uninstall_unseen], ids=["asked", "no engine in sight"])
def test_what_is_added_to_a_config_that_we_began_stays_in_force(
    containerd: tuple[Path, tuple[int, ...]],
    tmp_path: Path,
    start: str | None,
    added: Want,
    undo: Callable[[Node], object],
) -> None:
    program, version = containerd
    node = Node(program, version, tmp_path)
    node.config.parent.mkdir()
    if start is not None:
        node.config.write_text(start)
    node.install()
    assert node.truth().handlers.keys() >= OURS
    text, _ = apply(node.config.read_text(), [added], Syntax.TOML, name="config.toml")
    node.config.write_text(text)
    edited = node.truth()
    # 2.x passes over the older plugin where a file has both: ours have to move.
    moves = V3_PLUGIN in added.key and version[0] > 1
    assert (edited.handlers.keys() >= OURS) == (not moves)

    again = node.install()
    run = node.install()

    follows = moves or "options" in added.key  # ours inherit them
    assert [bool(writes(each)) for each in (again, run)] == [follows, False]
    assert follows or node.config.read_text() == text
    installed = node.truth()
    assert installed.handlers.keys() >= OURS
    assert [*find_disturbances(edited, installed, OURS)] == []
    undo(node)
    left = node.truth()
    assert not OURS & left.handlers.keys()
    assert [*find_disturbances(edited, left, OURS)] == []
    assert tomllib.loads(node.config.read_text())["version"] == 2
