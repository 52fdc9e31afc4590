"""Whether configs still come to what was installed, by their texts alone."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.errors import InstallerError
from installer.decide.rows import ConfigRow, EngineRow
from installer.host.files import Host
from installer.record.in_force import AT_MOST_BYTES, lacking

CONFIG = PurePosixPath("/etc/docker/daemon.json")
OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
ROW = EngineRow(
    "docker", PurePosixPath("/s"), "docker.service", (("nvidia", OURS),), config=CONFIG, default="nvidia"
)
MINE = f'{{"runtimes": {{"nvidia": {{"path": "{OURS}"}}}}, "default-runtime": "nvidia"}}'


def found(root: Path, text: str, row: EngineRow = ROW) -> tuple[str, ...]:
    (root / "etc/docker").mkdir(parents=True, exist_ok=True)
    (root / "etc/docker/daemon.json").write_text(text)
    rows = [ConfigRow(row.name, CONFIG, None, None, (), ())]
    return lacking(Host.under(PurePosixPath(root)), row, rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(MINE, (), id="all of it"),
        pytest.param(
            "{}",
            ("the runtime nvidia is not defined", "the default runtime is runc, not nvidia"),
            id="nothing",
        ),
        pytest.param(
            MINE.replace("default-runtime", "debug-runtime"),
            ("the default runtime is runc, not nvidia",),
            id="another default",
        ),
        pytest.param(
            MINE.replace(str(OURS), "/opt/other"), ("the runtime nvidia starts /opt/other",), id="of others"
        ),
        pytest.param(
            MINE.replace(f'{{"path": "{OURS}"}}', '{"runtimeType": "io.containerd.kata.v2"}'),
            ("the runtime nvidia starts something else",),
            id="not by a path",
        ),
        pytest.param(" " * AT_MOST_BYTES + "{}", (), id="too long for a probe"),
    ],
)
def test_what_a_config_does_not_come_to_any_more(tmp_path: Path, text: str, said: tuple[str, ...]) -> None:
    assert found(tmp_path, text) == said


def test_as_long_as_a_probe_reads(tmp_path: Path) -> None:
    text = "{}" + " " * (AT_MOST_BYTES - 2)

    assert found(tmp_path, text) != ()
    assert found(tmp_path, f"{text} ") == ()


def test_no_default_is_missed_that_was_not_installed(tmp_path: Path) -> None:
    row = replace(ROW, default="")

    assert found(tmp_path, MINE.replace("default-runtime", "x"), row) == ()
    assert lacking(Host.under(PurePosixPath(tmp_path)), replace(row, config=None), ()) == ()


def test_a_config_that_is_not_valid_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InstallerError, match=r"daemon\.json"):
        found(tmp_path, "{")
