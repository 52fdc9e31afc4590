"""Whether an engine could start its way to the NRI plugin, and from where."""

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.facts import EngineFacts, Facts, PluginFile, ToolkitFacts
from installer.decide.inode import File
from installer.decide.nri.wishes import Allowed, Nri
from installer.decide.options import Options
from installer.decide.rows import Record
from installer.host.files import Host
from installer.record.preinstalled import plugin_file

ASKED = replace(
    Options(), nri=Nri(allowed=(Allowed("a", "management.nvidia.com/gpu"),), beside=True, preinstalled=True)
)
TOOLS = ("bin/sh", "usr/bin/cat", "bin/sleep")


def engine(name: str) -> EngineFacts:
    row = ENGINES[name]
    return EngineFacts(name, row.config, None, None, (row.config,), row.socket, row.unit)


def put(root: Path, name: str, text: str = "", mode: int = 0o755) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    (root / name).chmod(mode)


def found(root: Path, *names: str, options: Options = ASKED) -> PluginFile | None:
    engines = tuple(engine(name) for name in names)
    contents: dict[PurePosixPath, Any] = {each.config: File(b"") for each in engines}
    facts = Facts(engines, contents, {}, frozenset(), (), ToolkitFacts(), Record())
    return plugin_file(Host.under(PurePosixPath(root)), options, facts)


def lacking(plugin: PluginFile | None) -> list[str]:
    assert plugin is not None
    return [error.problem.partition("(")[2].rstrip(")") for error in plugin.lacking]


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        replace(ASKED, nri=replace(ASKED.nri, preinstalled=False)),
        replace(ASKED, nri=replace(ASKED.nri, beside=False)),
    ],
)
def test_nothing_is_said_where_it_is_not_asked_for(tmp_path: Path, options: Options) -> None:
    assert found(tmp_path, "containerd", options=options) is None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "one engine with NRI has to be on the node, and there is none"),
        (("docker",), "one engine with NRI has to be on the node, and there is none"),
        (
            ("containerd", "crio"),
            "one engine with NRI has to be on the node, and there is containerd and crio",
        ),
        (("containerd", "docker"), "containerd does not tell from where it starts plugins"),
    ],
)
def test_one_engine_is_to_start_it_and_to_say_from_where(
    tmp_path: Path, names: tuple[str, ...], said: str
) -> None:
    assert lacking(found(tmp_path, *names)) == [said]


@pytest.mark.parametrize(
    ("absent", "unusable", "said"),
    [
        ((), (), []),
        (("bin/sh",), (), ["the node has no /bin/sh"]),
        (("bin/sleep",), (), ["the node has no sleep"]),
        (("usr/bin/cat", "bin/sleep"), (), ["the node has no cat and no sleep"]),
        ((), ("usr/bin/cat",), ["the node has no cat"]),  # a file that nobody may start
        ((), ("bin/sh",), ["the node has no /bin/sh"]),
    ],
)
def test_a_script_needs_its_programs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    absent: tuple[str, ...],
    unusable: tuple[str, ...],
    said: list[str],
) -> None:
    for name in TOOLS:
        if name not in absent:
            put(tmp_path, name, mode=0o644 if name in unusable else 0o755)
    from installer.decide.effect import Effect

    told = Effect({}, "runc", nri_plugins=PurePosixPath("/opt/nri/plugins"))
    monkeypatch.setattr("installer.record.trial.Trials.__call__", lambda *_: told)

    plugin = found(tmp_path, "containerd")

    assert plugin is not None
    assert plugin.path == PurePosixPath("/opt/nri/plugins/10-toolkit-installer")
    assert lacking(plugin) == said
