"""Whether configs still come to what was installed, where no program of the engine is there to ask."""

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines.config_edits import digest_of
from installer.engines.crio import CRIO
from installer.engines.dry_run import compare_configs
from installer.host.files import Host
from installer.model.facts import ConfigRow, EngineRow, Record
from installer.model.files import File
from tests.support.live import UNIT_PROPERTIES, live

CONFIG = PurePosixPath("/etc/docker/daemon.json")
OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
ROW = EngineRow(
    "docker", PurePosixPath("/s"), "docker.service", {"nvidia": OURS}, config=CONFIG, default="nvidia"
)
MINE = f'{{"runtimes": {{"nvidia": {{"path": "{OURS}"}}}}, "default-runtime": "nvidia"}}'


def found(root: Path, text: str, row: EngineRow = ROW) -> tuple[str, ...]:
    (root / "etc/docker").mkdir(parents=True, exist_ok=True)
    (root / "etc/docker/daemon.json").write_text(text)
    held = Record(configs=(ConfigRow(row.name, CONFIG, None, None, (), ()),))
    fatal, lacks, *_ = compare_configs(Host.under(PurePosixPath(root)), row, held)
    assert fatal == ""
    return lacks


def test_a_runtime_that_is_not_given_by_a_path_starts_something_else(tmp_path: Path) -> None:
    text = MINE.replace(f'{{"path": "{OURS}"}}', '{"runtimeType": "io.containerd.kata.v2"}')

    assert found(tmp_path, text) == ("the runtime nvidia starts something else",)


def test_texts_as_the_last_install_left_them_are_proven_whatever_they_say(tmp_path: Path) -> None:
    proven = replace(ROW, proven=digest_of({CONFIG: File(b"{}")}))

    assert found(tmp_path, "{}", proven) == ()
    assert found(tmp_path, "{ }", proven) != ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param('{"default-runtime": "gone"}', 'its default-runtime "gone" is not defined', id="gone"),
        pytest.param("{", "cannot read /etc/docker/daemon.json as JSON", id="not valid"),
    ],
)
def test_a_config_that_the_next_start_would_refuse_is_told_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").write_text(text)

    fatal, lacks, *_ = compare_configs(Host.under(PurePosixPath(tmp_path)), ROW, Record())

    assert fatal.startswith(reason)
    assert lacks == ()


def test_no_default_is_missed_that_was_not_installed(tmp_path: Path) -> None:
    row = replace(ROW, default="")

    assert found(tmp_path, MINE.replace("default-runtime", "x"), row) == ()
    assert compare_configs(Host.under(PurePosixPath(tmp_path)), replace(row, config=None), Record())[:2] == (
        "",
        (),
    )


def test_a_crio_whose_own_program_is_gone_would_not_start(tmp_path: Path) -> None:
    config = PurePosixPath("/etc/crio/crio.conf")
    row = EngineRow("crio", PurePosixPath("/s"), "containerd.service", {}, config=config)
    row = replace(row, proven=digest_of({path: None for path in (config, CRIO.drop_ins.usual) if path}))
    words = ("/usr/bin/crio", ["/usr/bin/crio"], False, 0, 0, 0, 0, 0, 0, 0)
    with live(tmp_path) as node:
        node.systemd.changed |= UNIT_PROPERTIES | {"ExecStart": ("a(sasbttttuii)", [words])}
        fatal, *_ = compare_configs(node.host, row, Record())

    assert fatal == "its ExecStart /usr/bin/crio is no program"
