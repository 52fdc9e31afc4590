"""What an engine's own program says of a config ahead of its time; the program is a small script here."""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from installer.engines import ENGINES
from installer.engines.dry_run import Trials
from installer.host.files import Host
from installer.model.engine_spec import EffectiveConfig
from installer.model.facts import EngineState
from installer.model.files import File

HOST = Host.under(PurePosixPath("/"))
SCRIPT = """\
#!/bin/sh
# Keeps what it was asked and what the config it was given says.
echo "$@" > {seen}/words
echo asked >> {seen}/times
while [ $# -gt 0 ]; do
    case $1 in
    --config|--config-file) cat "$2" > {seen}/config;;
    --config-dir) cat "$2"/* > {seen}/drop-ins; stat -c %a "$(dirname "$2")/." > {seen}/mode;;
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

    def effect(
        self, texts: Mapping[PurePosixPath, str] | str, trials: Trials | None = None
    ) -> EffectiveConfig:
        """Return what the engine would have in force with ``texts``; of the root file alone if it is one."""
        named = {self.config: texts} if isinstance(texts, str) else texts
        facts = EngineState(
            self.name,
            self.config,
            self.drop_in,
            None,
            tuple(named),
            PurePosixPath("/nowhere"),
            "",
            exe=PurePosixPath(self.program),
        )
        files = {path: File(text.encode()) for path, text in named.items()}
        return (trials or Trials(HOST, {}))(facts, files)

    def seen(self, name: str) -> str:
        return (self.directory / name).read_text()

    def names(self) -> list[str]:
        return sorted(path.name for path in Path(self.config.parent).iterdir())


DUMP = """
version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'runc'
runtimes.runc.options.SystemdCgroup = true
"""


def test_containerd_says_what_is_in_force_and_reads_it_from_no_disk(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml", end=f"cat <<'END'\n{DUMP}END")
    Path(engine.config).write_text("version = 2\n")

    effect = engine.effect("version = 2 # new\n")

    assert effect.handlers.keys() == {"runc"}
    assert effect.handlers["runc"].table == {"options": {"SystemdCgroup": True}}
    assert effect.default == "runc"
    assert engine.seen("config") == "version = 2 # new\n"
    assert engine.seen("words").startswith("--config /proc/self/fd/")
    assert engine.seen("words").endswith(" config dump\n")
    assert Path(engine.config).read_text() == "version = 2\n"
    assert engine.names() == ["config.toml"]


def test_imported_files_are_read_from_where_they_were_put_the_nested_ones_too(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml", end=f"cat <<'END'\n{DUMP}END")
    drop_in, nested = (PurePosixPath(tmp_path, name) for name in ("etc/conf.d/99-a.toml", "etc/more/b.toml"))
    texts = {
        engine.config: f'version = 2\nimports = ["{tmp_path}/etc/conf.d/*.toml", "/etc/absent.toml"]\n',
        drop_in: 'imports = ["../more/b.toml"]\n',
        nested: "# nested\n",
    }

    engine.effect(texts)

    read = engine.seen("config")
    assert "conf.d" not in read
    assert read.count("/proc/self/fd/") == 1
    assert "/etc/absent.toml" in read  # an import of a missing file keeps containerd from starting


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml", end=f"cat <<'END'\n{DUMP}END")
    trials = Trials(HOST, {})

    assert engine.effect("version = 2\n", trials) == engine.effect("version = 2\n", trials)
    engine.effect("version = 2 # other\n", trials)

    assert engine.seen("times") == "asked\nasked\n"


def test_dockerd_is_asked_to_validate_and_the_text_tells_the_effect(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "docker", "etc/daemon.json")

    effect = engine.effect(json.dumps({"runtimes": {"crun": {"path": "/usr/bin/crun"}}}))

    assert engine.seen("words").startswith("--validate --config-file /proc/self/fd/")
    assert json.loads(engine.seen("config")) == {"runtimes": {"crun": {"path": "/usr/bin/crun"}}}
    assert effect.binaries == {"runc": "runc", "crun": "/usr/bin/crun"}
    assert engine.names() == []


def test_what_dockerd_says_of_the_present_config_too_is_no_reason_where_nobody_sees_its_flags(
    tmp_path: Path,
) -> None:
    engine = Engine(tmp_path, "docker", "etc/daemon.json", end="echo no docker-proxy >&2; exit 1")
    now = {engine.config: File(b"{}")}

    assert not engine.effect('{"runtimes": {}}', Trials(HOST, now)).broken

    assert engine.seen("config") == "{}"


def test_what_dockerd_says_of_the_new_config_only_is_a_reason(tmp_path: Path) -> None:
    end = f"grep -q bad {tmp_path}/config || exit 0; echo bad >&2; exit 1"
    engine = Engine(tmp_path, "docker", "etc/daemon.json", end=end)
    now = {engine.config: File(b"{}")}

    assert engine.effect('{"bad": 1}', Trials(HOST, now)).broken.endswith(": bad")


def test_crio_reads_all_drop_ins_in_a_directory_that_nobody_else_enters(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "crio", "etc/crio.conf", "etc/99-nvidia.toml")
    site = PurePosixPath(tmp_path, "etc/10-site.toml")
    assert engine.drop_in is not None

    engine.effect({engine.config: "", site: "site = 1\n", engine.drop_in: "ours = 1\n"})

    assert engine.seen("drop-ins") == "site = 1\nours = 1\n"
    assert engine.seen("mode") == "700\n"
    assert engine.seen("words").endswith("/texts config\n")
    assert engine.names() == []


def test_what_the_program_refuses_is_broken_in_its_words(tmp_path: Path) -> None:
    engine = Engine(
        tmp_path, "containerd", "etc/config.toml", end="echo first >&2; echo it is cold >&2; exit 1"
    )

    assert engine.effect("version = 2\n").broken == f"{engine.program}: it is cold"


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("echo 'Status: unknown flag: --validate' >&2; exit 125", id="dockerd 20.10"),
        pytest.param("kill -9 $$", id="killed"),
    ],
)
def test_where_a_program_cannot_tell_the_texts_do(tmp_path: Path, end: str) -> None:
    engine = Engine(tmp_path, "docker", "etc/daemon.json", end=end)

    assert engine.effect('{"default-runtime": "nope"}').undefined == "nope"


def test_where_a_program_is_for_another_machine_the_texts_tell(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml")
    engine.program.write_bytes(b"\x7fELF" + bytes(60))

    assert engine.effect("version = 2\n").default == "runc"


def test_a_program_of_another_name_is_not_run_for_it_may_parse_arguments_differently(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml")
    engine.program = engine.program.rename(tmp_path / "k3s")

    assert engine.effect("version = 2\n").default == "runc"
    assert not (tmp_path / "words").exists()


def test_a_text_that_nobody_can_read_is_broken_whatever_else(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "etc/config.toml", end="exit 1")
    engine.program = engine.program.rename(tmp_path / "k3s")

    assert "as TOML" in engine.effect("version =").broken
