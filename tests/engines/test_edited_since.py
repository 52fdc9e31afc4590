"""What an administrator has made of a config since our install, as real containerds read it: none is started."""

import re
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from installer.change.plan import plan_undo
from installer.config_text import Syntax, Want
from installer.config_text.change import apply
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.engines.dry_run import compare_configs
from installer.model.engine_spec import Runtime, find_disturbances
from installer.model.facts import EngineState
from installer.model.options import Options, RestartMode
from tests.engines.dumps import BASE, HOST, OURS, STARTS, Containerd, Node, a_node, writes

KIND = "io.containerd.runc.v2"
# 1.x migrates to what it has, and passes over the newer plugin.
OF_2 = pytest.mark.parametrize("containerd", ["sid"], indirect=True)
EACH_BASE = pytest.mark.parametrize("start", BASE.values(), ids=BASE)
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
    containerd: Containerd, tmp_path: Path, start: str | None, added: Want, undo: Callable[[Node], object]
) -> None:
    node = a_node(containerd, tmp_path, start)
    node.install()
    assert node.truth().handlers.keys() >= OURS
    text, _ = apply(node.config.read_text(), [added], Syntax.TOML, name="config.toml")
    node.config.write_text(text)
    edited = node.truth()
    # 2.x passes over the older plugin where a file has both: ours have to move.
    moves = V3_PLUGIN in added.key and containerd[1] >= (2,)
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


@EACH_BASE
@pytest.mark.parametrize("names", [["nvidia"], sorted(OURS)], ids=["of one runtime", "of each runtime"])
def test_what_stood_below_a_deleted_header_of_options_goes_with_its_runtime(
    containerd: Containerd, tmp_path: Path, start: str | None, names: list[str]
) -> None:
    node = a_node(containerd, tmp_path, start)
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


def without_each(text: str) -> list[str]:
    """Return the text less each line of our first runtime in turn, but where no engine could read that."""
    lines = text.splitlines(keepends=True)
    named = [at for at, line in enumerate(lines) if re.search(r"runtimes\.nvidia[].]", line)]
    end = next(at for at, line in enumerate(lines) if "runtimes.nvidia-cdi" in line)
    texts = list[str]()
    for at in (each for each in range(named[0], end) if lines[each].strip()):
        with suppress(tomllib.TOMLDecodeError):
            one = "".join(lines[:at] + lines[at + 1 :])
            texts += [one] if tomllib.loads(one) else []
    return texts


@EACH_BASE
def test_a_line_of_ours_that_is_gone_is_written_again(
    containerd: Containerd, tmp_path: Path, start: str | None
) -> None:
    node = a_node(containerd, tmp_path, start)
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


SCHEMA_3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'runc'\n"
MIGRATED = {
    **STARTS,
    "schema 2": 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "runc"\n',
    "schema 3": SCHEMA_3,
}


@OF_2
@pytest.mark.parametrize("start", MIGRATED.values(), ids=MIGRATED)
@pytest.mark.parametrize("default", [False, True], ids=["a runtime", "the default"])
def test_a_config_that_was_migrated_is_as_it_was_installed(
    containerd: Containerd, tmp_path: Path, start: str | None, *, default: bool
) -> None:
    node = a_node(containerd, tmp_path, start)
    node.install(default=default)
    before = node.config.read_text()
    node.migrate()
    assert (node.config.read_text() != before) or start == SCHEMA_3

    again = node.install(default=default)

    assert writes(again) == []
    done = node.uninstall()
    assert (done.needed, done.final) == ((), None)
    assert not node.names_us()
    assert not OURS & node.truth().handlers.keys()


OLD = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{}]\nruntime_type = "io.containerd.{}.v2"\n'
NEW = OLD.replace("grpc.v1.cri", "cri.v1.runtime")
# As AKS has Kata in its images: the schema of 1.x, and a runtime under the plugin of 2.x.
MIXED: dict[str, tuple[str, dict[str, str]]] = {
    "both plugins in schema 2": (
        f"version = 2\n{OLD.format('runc', 'runc')}{NEW.format('kata', 'kata')}",
        {},
    ),
    "the newer plugin in schema 2": (f"version = 2\n{NEW.format('kata', 'kata')}", {}),
    "a drop-in of schema 3": (
        f'version = 2\nimports = ["@/conf.d/*.toml"]\n{OLD.format("runc", "runc")}',
        {"conf.d__site": f"version = 3\n{NEW.format('kata', 'kata')}"},
    ),
    "a drop-in of schema 2": (
        f'version = 3\nimports = ["@/conf.d/*.toml"]\n{NEW.format("runc", "runc")}',
        {"conf.d__site": f"version = 2\n{OLD.format('kata', 'kata')}"},
    ),
}


@OF_2
@pytest.mark.parametrize(("root", "files"), MIXED.values(), ids=MIXED)
def test_what_containerd_serves_of_mixed_plugins_and_schemas_is_said_to_be_good(
    containerd: Containerd, tmp_path: Path, root: str, files: dict[str, str]
) -> None:
    node = a_node(containerd, tmp_path, root, **files)
    before = node.truth()
    node.install()
    installed = node.truth()
    assert installed.handlers.keys() >= OURS
    assert [*find_disturbances(before, installed, OURS)] == []

    (row,) = node.held.engines

    assert writes(node.install()) == []
    assert compare_configs(HOST, row, node.held)[:2] == ("", ())
