"""Random sets of configs, and what real containerds make of them: with us, after others, and without us again.

Nothing is started: ``containerd config dump`` says what would be in force. It reads the real files here, where the
installer hands its texts over in memory, so both have to come to the same.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

from installer.config_text import Syntax, WantedKey
from installer.config_text.change import apply
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, find_disturbances
from installer.model.facts import Record
from tests.engines.conftest import Containerd
from tests.engines.dumps import OURS, Node, a_node

EXAMPLES = int(os.environ.get("EFFECTS", "50"))
PARTS = 5
SEED = int(os.environ.get("SEED", "20261121"))
NAMES = ("runc", "crun", "kata", "mine")
Rng = random.Random


def a_table(rng: Rng, key: tuple[str, ...]) -> Iterator[WantedKey]:
    """Yield runtimes and a default, as configs have them."""
    names = rng.sample(NAMES, rng.randint(0, 3))
    for name in names:
        kind = "io.containerd.kata.v2" if name == "kata" else "io.containerd.runc.v2"
        yield WantedKey((*key, "runtimes", name, "runtime_type"), kind)
        if rng.random() < 0.6:
            yield WantedKey((*key, "runtimes", name, "options", "SystemdCgroup"), rng.random() < 0.7)
        if name in {"crun", "mine"}:
            yield WantedKey((*key, "runtimes", name, "options", "BinaryName"), f"/usr/bin/{name}")
        if rng.random() < 0.2:
            yield WantedKey((*key, "runtimes", name, "privileged_without_host_devices"), True)
    if rng.random() < 0.15:
        yield WantedKey((*key, "runtimes", "nvidia", "runtime_type"), "io.containerd.runc.v2")
        yield WantedKey(
            (*key, "runtimes", "nvidia", "options", "BinaryName"), "/usr/bin/nvidia-container-runtime"
        )
        names.append("nvidia")
    if names and rng.random() < 0.6:
        yield WantedKey((*key, "default_runtime_name"), rng.choice(names))
    if rng.random() < 0.3:
        yield WantedKey((*key[:-1], "sandbox_image"), "registry.local/pause:3")


def a_file(rng: Rng, newest: int, *imports: str, root: bool) -> str:
    """Return one config: any schema up to the newest, either id of the plugin, or both."""
    schema = rng.choice((None, 1, 2, 2, 2, 3, 3)) if root else rng.choice((None, None, 2, 3))
    schema = min(schema, newest) if schema else None
    wants = [WantedKey(("version",), schema)] if schema else []
    wants += [WantedKey(("imports",), [*imports])] if imports else []
    plugin = {1: "cri", 2: V2_PLUGIN, 3: V3_PLUGIN}.get(schema or (1 if root else 2), V2_PLUGIN)
    plugins = [plugin] if rng.random() < 0.9 else [V2_PLUGIN, V3_PLUGIN]
    for each in plugins if rng.random() < 0.85 else ():
        wants += a_table(rng, ("plugins", each, "containerd"))
    text, _ = apply("# a config\n" if rng.random() < 0.5 else "", wants, Syntax.TOML, name="random")
    return text


def configs(rng: Rng, newest: int) -> Iterator[tuple[str, str]]:
    """Yield name and text of each config of a node."""
    imports = []
    for number in range(rng.choice((0, 0, 1, 2))):
        nested = [f"@/more/{number}.toml"] if rng.random() < 0.25 else []
        if nested:
            yield f"more__{number}", a_file(rng, newest, root=False)
        yield f"conf.d__{number}0-site", a_file(rng, newest, *nested, root=False)
        imports = [rng.choice(("@/conf.d/*.toml", f"@/conf.d/{number}0-site.toml", "@/*.d/*.toml"))]
    yield "config", a_file(rng, newest, *imports, root=True) if rng.random() < 0.95 else ""


def makes_ours_the_default(node: Node) -> None:
    node.edit(node.config, WantedKey((*node.cri(node.config), "default_runtime_name"), "nvidia"))


def adds_a_runtime(node: Node) -> None:
    key = (*node.cri(node.config), "runtimes", "added")
    node.edit(node.config, WantedKey((*key, "runtime_type"), "io.containerd.runc.v2"))
    node.edit(node.config, WantedKey((*key, "options", "BinaryName"), "/usr/bin/added"))


def adds_settings(node: Node) -> None:
    node.edit(node.config, WantedKey((*node.cri(node.config)[:-1], "cni", "conf_dir"), "/etc/site/net.d"))
    node.edit(node.config, WantedKey(("oom_score",), -5))


def adds_settings_to_ours(node: Node) -> None:
    for path in node.files():
        key = (*node.cri(Path(path)), "runtimes", "nvidia")
        if b"nvidia-container-runtime" in Path(path).read_bytes():
            node.edit(Path(path), WantedKey((*key, "cni_conf_dir"), "/etc/site/gpu.d"))


def writes_a_comment(node: Node) -> None:
    for path in node.files():
        Path(path).write_text(f"{Path(path).read_text()}# seen\n")


def names_another_default(node: Node) -> None:
    key = node.cri(node.config)
    node.edit(
        node.config,
        WantedKey((*key, "runtimes", "other", "runtime_type"), "io.containerd.runc.v2"),
        WantedKey((*key, "default_runtime_name"), "other"),
    )


ACTS: tuple[Callable[[Node], None], ...] = (
    makes_ours_the_default,
    adds_a_runtime,
    adds_settings,
    adds_settings_to_ours,
    Node.migrate,
    writes_a_comment,
    names_another_default,
)


def act(rng: Rng, node: Node) -> None:
    """Let an admin do something that leaves him a containerd that starts; else he takes it back."""
    before = node.files()
    with suppress(InstallerError):  # his editor is ours, and does not take every text
        rng.choice(ACTS)(node)
    after = node.truth()
    if after.broken or after.undefined:
        for path, content in before.items():
            Path(path).write_bytes(content)


def live(rng: Rng, node: Node) -> bool:
    """Install, let others act, undo, after each ask the real containerd; tell whether the install was not refused."""
    untouched, before = node.files(), node.truth()
    drop_in = "etc/conf.d/99-nvidia.toml" if rng.random() < 0.3 else ""
    facts, dry_runs = node.facts(PurePosixPath(node.directory, drop_in) if drop_in else None)
    told = dry_runs(facts.engines[0], facts.contents)
    assert (told.handlers, told.rest_digest, bool(told.broken)) == (
        before.handlers,
        before.rest_digest,
        bool(before.broken),
    )
    try:
        node.install_and_ask(before, default=rng.random() < 0.4, drop_in=drop_in)
    except InstallerError:
        assert node.files() == untouched
        return False
    acts = rng.randint(0, 3)
    for _ in range(acts):
        act(rng, node)
    take_back(node, before, node.truth())
    if acts == 0:
        assert node.files() == untouched
        assert node.truth() == before
    return True


def take_back(node: Node, before: EffectiveConfig, lived: EffectiveConfig) -> None:
    plan = node.uninstall()
    left = node.truth()
    assert not left.broken
    if left.undefined and left.undefined == before.undefined:
        return  # as it was before us: nobody has made it another since
    assert not left.undefined
    assert [*find_disturbances(lived, left, OURS)] == []
    if plan.needed:
        names_another_default(node)
        if node.truth().undefined:
            return  # what he named is read from another file, or under another id
        if node.uninstall().needed:
            assert node.names_us()
            return
        assert not node.truth().undefined
    assert not node.names_us()
    assert node.held == Record()


@pytest.mark.sampled(16)
@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_in_force_differs_by_what_is_ours_and_by_nothing_after_the_undo(
    containerd: Containerd, part: int, tmp_path: Path
) -> None:
    numbers, installed = range(part, EXAMPLES, PARTS), 0
    for number in numbers:
        rng = random.Random(f"{SEED} {number}")  # noqa: S311 - to be repeated
        directory = tmp_path / str(number)
        try:
            files = dict(configs(rng, 3 if containerd[1] >= (2,) else 2))
            installed += live(rng, a_node(containerd, directory, **files))
        except AssertionError as error:
            raise AssertionError(f"SEED={SEED}, example {number}, {directory}: {error}") from error
        shutil.rmtree(directory)
    assert installed > len(numbers) // 4
