"""One truth: what was proven, and what containerd says of texts that somebody has written since."""

from pathlib import Path

import pytest

from installer.engines.dry_run import compare_configs
from installer.model.engine_spec import find_disturbances
from tests.engines.dumps import HOST, OURS, STARTS, Node, writes

# 1.x migrates to what it has, and passes over the newer plugin.
OF_2 = pytest.mark.parametrize("containerd", ["sid"], indirect=True)
BASE = {
    **STARTS,
    "schema 2": 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "runc"\n',
    "schema 3": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'runc'\n",
}


@OF_2
@pytest.mark.parametrize("start", BASE.values(), ids=BASE)
@pytest.mark.parametrize("default", [False, True], ids=["a runtime", "the default"])
def test_a_config_that_was_migrated_is_as_it_was_installed(
    containerd: tuple[Path, tuple[int, ...]], tmp_path: Path, start: str | None, *, default: bool
) -> None:
    program, version = containerd
    node = Node(program, version, tmp_path)
    node.config.parent.mkdir()
    if start is not None:
        node.config.write_text(start)
    node.install(default=default)
    before = node.config.read_text()
    node.migrate()
    assert (node.config.read_text() != before) or start == BASE["schema 3"]

    again = node.install(default=default)

    assert writes(again) == []
    node.uninstall()
    assert not OURS & node.truth().handlers.keys()


OLD = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{}]\nruntime_type = "io.containerd.{}.v2"\n'
NEW = OLD.replace("grpc.v1.cri", "cri.v1.runtime")
# As AKS has Kata in its images: the schema of 1.x, and a runtime under the plugin of 2.x.
MIXED = {
    "both plugins in schema 2": (
        f"version = 2\n{OLD.format('runc', 'runc')}{NEW.format('kata', 'kata')}",
        "",
    ),
    "the newer plugin in schema 2": (f"version = 2\n{NEW.format('kata', 'kata')}", ""),
    "a drop-in of schema 3": (
        f'version = 2\nimports = ["CONF.D/*.toml"]\n{OLD.format("runc", "runc")}',
        f"version = 3\n{NEW.format('kata', 'kata')}",
    ),
    "a drop-in of schema 2": (
        f'version = 3\nimports = ["CONF.D/*.toml"]\n{NEW.format("runc", "runc")}',
        f"version = 2\n{OLD.format('kata', 'kata')}",
    ),
}


@OF_2
@pytest.mark.parametrize(("root", "drop_in"), MIXED.values(), ids=MIXED)
def test_what_containerd_serves_of_mixed_plugins_and_schemas_is_said_to_be_good(
    containerd: tuple[Path, tuple[int, ...]], tmp_path: Path, root: str, drop_in: str
) -> None:
    program, version = containerd
    node = Node(program, version, tmp_path)
    directory = node.config.parent / "conf.d"
    directory.mkdir(parents=True)
    node.config.write_text(root.replace("CONF.D", str(directory)))
    if drop_in:
        (directory / "site.toml").write_text(drop_in)
    before = node.truth()
    node.install()
    installed = node.truth()
    assert installed.handlers.keys() >= OURS
    assert [*find_disturbances(before, installed, OURS)] == []

    (row,) = node.held.engines

    assert writes(node.install()) == []
    assert compare_configs(HOST, row, node.held)[:2] == ("", ())
