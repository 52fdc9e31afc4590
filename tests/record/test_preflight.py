"""What an engine's own program says of a config ahead of its time; the program is a small script here."""

import json
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.inode import File
from installer.decide.layout import Layout
from installer.decide.steps import Preflight
from installer.host.files import Host
from installer.record.preflight import preflight

HOST = Host.under(PurePosixPath("/"))
SCRIPT = """\
#!/bin/sh
# Keeps what it was asked and what the config it was given says.
echo "$@" > {seen}/words
while [ $# -gt 0 ]; do
    case $1 in
    --config|--config-file) cat "$2" > {seen}/config;;
    --config-dir) cat "$2"/* > {seen}/drop-ins;;
    esac
    shift
done
{end}
"""


class Engine:
    """An engine below a directory; its program ends as it is told to."""

    def __init__(
        self, directory: Path, name: str, config: str, drop_in: str = "", end: str = "exit 0"
    ) -> None:
        self.directory = directory
        self.program = directory / ENGINES[name].process
        self.program.write_text(SCRIPT.format(seen=directory, end=end))
        self.program.chmod(0o755)
        self.config = PurePosixPath(directory, config)
        self.drop_in = PurePosixPath(directory, drop_in) if drop_in else None
        for path in (self.config, *([self.drop_in] if self.drop_in else [])):
            Path(path.parent).mkdir(exist_ok=True)
        self.name = name

    def look(self, **texts: str) -> None:
        paths = {"config": self.config, "drop_in": self.drop_in or self.config}
        files = tuple((paths[key], File(text.encode())) for key, text in texts.items())
        beside = sorted(Path(self.config.parent).rglob("*.toml"))
        facts = EngineFacts(
            self.name,
            self.config,
            self.drop_in,
            None,
            tuple(PurePosixPath(path) for path in beside),
            PurePosixPath("/nowhere"),
            "",
            exe=PurePosixPath(self.program),
        )
        preflight(HOST, Layout(PurePosixPath(self.directory)), facts, Preflight(self.name, files, ()))

    def seen(self, name: str) -> str:
        return (self.directory / name).read_text()

    def names(self) -> list[str]:
        places = (Path(self.config.parent), self.directory / ".toolkit-installer")
        return sorted(path.name for place in places if place.exists() for path in place.iterdir())


def test_containerd_reads_the_new_file_beside_the_old_one(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml")
    Path(engine.config).write_text("version = 2\n")

    engine.look(config="version = 2 # new\n")

    assert engine.seen("config") == "version = 2 # new\n"
    assert engine.seen("words") == f"--config {tmp_path}/etc/.config.toml.toolkit-installer config dump\n"
    assert Path(engine.config).read_text() == "version = 2\n"
    assert engine.names() == ["config.toml"]


def test_containerd_reads_a_drop_in_by_the_name_it_is_staged_under(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml", "etc/99-nvidia.toml")
    Path(engine.config).write_text("version = 3\n")

    engine.look(drop_in="[plugins]\n", config='version = 3\nimports = ["/etc/99-nvidia*.toml"]\n')

    assert "/etc/99-nvidia*.toml" in engine.seen("config")
    assert f"{tmp_path}/etc/.99-nvidia.toml.toolkit-installer" in engine.seen("config")
    assert engine.names() == ["config.toml"]


def test_dockerd_is_asked_to_validate(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "docker", "etc/daemon.json")

    engine.look(config=json.dumps({"runtimes": {}}))

    assert engine.seen("words").startswith("--validate --config-file ")
    assert json.loads(engine.seen("config")) == {"runtimes": {}}
    assert engine.names() == []


def test_what_dockerd_says_of_the_present_config_too_is_no_reason_where_nobody_sees_its_flags(
    tmp_path: Path,
) -> None:
    engine = Engine(tmp_path, "docker", "etc/daemon.json", end="echo no docker-proxy >&2; exit 1")
    Path(engine.config).write_text("{}")

    engine.look(config='{"runtimes": {}}')

    assert engine.seen("config") == "{}"
    assert engine.names() == ["daemon.json"]


def test_what_dockerd_says_of_the_new_config_only_is_a_reason(tmp_path: Path) -> None:
    end = f"grep -q bad {tmp_path}/config || exit 0; echo bad >&2; exit 1"
    engine = Engine(tmp_path, "docker", "etc/daemon.json", end=end)
    Path(engine.config).write_text("{}")

    with pytest.raises(InstallerError, match=r"refuses the new config: bad\)"):
        engine.look(config='{"bad": 1}')


def test_crio_reads_all_drop_ins_in_a_directory_that_nobody_else_does(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "crio", "etc/crio.conf", "etc/99-nvidia.toml")
    Path(engine.config.parent, "10-site.toml").write_text("site = 1\n")
    (tmp_path / ".toolkit-installer").mkdir()

    engine.look(drop_in="ours = 1\n")

    assert engine.seen("drop-ins") == "site = 1\nours = 1\n"
    assert engine.seen("words") == f"--config-dir {tmp_path}/.toolkit-installer/check config\n"
    assert engine.names() == ["10-site.toml"]


def test_a_refusal_stops_in_the_words_of_the_program(tmp_path: Path) -> None:
    engine = Engine(
        tmp_path, "containerd", "etc/config.toml", end="echo first >&2; echo it is cold >&2; exit 1"
    )

    with pytest.raises(InstallerError, match=r"refuses the new config: it is cold\)"):
        engine.look(config="version = 2\n")
    assert engine.names() == []


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("echo 'Status: unknown flag: --validate' >&2; exit 125", id="dockerd 20.10"),
        pytest.param("kill -9 $$", id="killed"),
    ],
)
def test_a_program_that_cannot_tell_is_no_reason_to_stop(tmp_path: Path, end: str) -> None:
    engine = Engine(tmp_path, "docker", "etc/daemon.json", end=end)

    engine.look(config="{}")

    assert engine.names() == []


def test_a_program_for_another_machine_is_no_reason_to_stop(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml")
    engine.program.write_bytes(b"\x7fELF" + bytes(60))

    engine.look(config="version = 2\n")

    assert engine.names() == []


def test_a_program_of_another_name_is_not_given_words_it_may_take_differently(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml")
    engine.program = engine.program.rename(tmp_path / "k3s")

    engine.look(config="version = 2\n")

    assert not (tmp_path / "words").exists()
