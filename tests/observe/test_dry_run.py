"""What an engine's configs come to: by its own program, a small script here, and where none can be asked."""

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.comparison import compare_configs
from installer.engines.config_texts import digest_of
from installer.engines.crio.config import read_effective
from installer.engines.dry_run import DryRuns, find_start_failures, refuse_changed
from installer.engines.next_start import explain_losses, explain_moved_places
from installer.errors import NotBegunError
from installer.host.files import Host
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState, Started
from installer.model.facts import ConfigRow, EngineRow, Record
from installer.model.files import File
from installer.model.steps import Step, WriteConfig
from tests.support.files import put
from tests.support.live import UNIT_PROPERTIES, live

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
    """An engine below a directory; its program, called ``program`` or as usual, ends as it is told to."""

    def __init__(self, directory: Path, name: str, end: str = "exit 0", program: str = "") -> None:
        self.kind, self.directory = ENGINES[name], directory
        self.config = PurePosixPath(directory, "etc", self.kind.config.name)
        usual = self.kind.drop_ins.usual
        self.drop_in = PurePosixPath(directory, "etc", usual.name) if usual else None
        Path(self.config.parent).mkdir()
        self.program = directory / (program or self.kind.process)
        put(directory, {self.program.name: SCRIPT.format(seen=directory, end=end)}, 0o755)

    def ask(
        self,
        texts: Mapping[PurePosixPath, str] | str,
        dry_runs: DryRuns | None = None,
        flags: tuple[str, ...] = (),
    ) -> EffectiveConfig:
        """Return what the engine would have in force with ``texts``; of the root file alone if it is one."""
        named = {self.config: texts} if isinstance(texts, str) else texts
        usual = replace(EngineState.usual(self.kind), config=self.config, drop_in=self.drop_in, unit="")
        state = replace(usual, files=tuple(named), exe=PurePosixPath(self.program))
        if flags:
            state = replace(state, started=Started(flags))
        return (dry_runs or DryRuns(HOST, {}))(
            state, {path: File(text.encode()) for path, text in named.items()}
        )

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
SAYS_DUMP = f"cat <<'END'\n{DUMP}END"


def test_containerd_says_once_what_is_in_force_and_reads_it_from_no_disk(tmp_path: Path) -> None:
    engine, dry_runs = Engine(tmp_path, "containerd", SAYS_DUMP), DryRuns(HOST, {})
    Path(engine.config).write_text("version = 2\n")

    effect = engine.ask("version = 2 # new\n", dry_runs)

    tables = {name: each.table for name, each in effect.handlers.items()}
    assert (tables, effect.default) == ({"runc": {"options": {"SystemdCgroup": True}}}, "runc")
    assert engine.seen("config") == "version = 2 # new\n"
    assert re.fullmatch(r"--config /proc/self/fd/\d+ config dump\n", engine.seen("words"))
    assert Path(engine.config).read_text() == "version = 2\n"
    assert engine.names() == ["config.toml"]
    assert engine.ask("version = 2 # new\n", dry_runs) == effect
    assert engine.seen("times") == "asked\n"
    engine.ask("version = 2 # other\n", dry_runs)
    assert engine.seen("times") == "asked\nasked\n"


def test_imported_files_are_read_from_where_they_were_put_the_nested_ones_too(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", SAYS_DUMP)
    drop_in, nested = (PurePosixPath(tmp_path, name) for name in ("etc/conf.d/99-a.toml", "etc/more/b.toml"))
    imports = f'version = 2\nimports = ["{tmp_path}/etc/conf.d/*.toml", "/etc/absent.toml"]\n'

    engine.ask({engine.config: imports, drop_in: 'imports = ["../more/b.toml"]\n', nested: "# nested\n"})

    read = engine.seen("config")
    assert "conf.d" not in read
    assert read.count("/proc/self/fd/") == 1
    assert "/etc/absent.toml" in read  # an import of a missing file keeps containerd from starting


def test_dockerd_is_asked_to_validate_and_the_text_tells_the_effect(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "docker")

    text = json.dumps({"runtimes": {"crun": {"path": "/usr/bin/crun"}}})
    effect = engine.ask(text, flags=("--config-file", "/etc/site.json", "--data-root", "/srv"))

    asked = r"--validate --config-file /proc/self/fd/\d+ --data-root /srv\n"
    assert re.fullmatch(asked, engine.seen("words"))
    assert engine.seen("config") == text
    assert effect.binaries == {"runc": "runc", "crun": "/usr/bin/crun"}
    assert engine.names() == []


def test_crio_reads_all_drop_ins_in_a_directory_that_nobody_else_enters(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "crio")
    site = PurePosixPath(tmp_path, "etc/10-site.toml")
    assert engine.drop_in is not None

    engine.ask({engine.config: "", site: "site = 1\n", engine.drop_in: "ours = 1\n"})

    assert engine.seen("drop-ins") == "site = 1\nours = 1\n"
    assert engine.seen("mode") == "700\n"
    assert engine.seen("words").endswith("/texts config\n")
    assert engine.names() == []


# As 1.37.0 prints them.
SAYS_PLACES = """cat <<END
[crio]
# root = "{root}"
runroot = "{runroot}"
# imagestore = ""
[crio.api]
# listen = "{listen}"
[crio.nri]
# nri_listen = "/var/run/nri/nri.sock"
END"""
STAYS = {"root": "/srv/crio", "runroot": "/run/crio", "listen": "/run/crio.sock"}


@pytest.mark.parametrize("place", [*STAYS, ""])
def test_crio_tells_by_its_next_start_which_places_move_and_a_link_to_one_is_no_move(
    tmp_path: Path, place: str
) -> None:
    put(tmp_path, {"srv/crio/link": ""})
    (tmp_path / "data").symlink_to("srv")
    said = {**STAYS, "root": f"{tmp_path}/data/crio", "listen": "/run/$A.$B"}
    said |= {place: "/new"} if place else {}
    engine = Engine(tmp_path, "crio", SAYS_PLACES.format(**said))
    serving = EffectiveConfig({}, "crun", places={**STAYS, "root": f"{tmp_path}/srv/crio/"})
    state = replace(EngineState.usual(engine.kind), serving=serving, places_by_files=frozenset(STAYS))
    start = Started(("--root", "/old"), {"A": "crio", "B": "old"})
    later = Started(("--log", "info"), {"B": "sock"})
    state = replace(state, exe=PurePosixPath(engine.program), started=start, next_start=later)

    moves = [error.problem for error in explain_moved_places(state, DryRuns(HOST, {})(state, {}))]

    assert engine.seen("words").endswith("/texts --log info config\n")
    runs = f"and it runs with {serving.places.get(place)}"
    moved = f"restart CRI-O (at its next start its config gives it the {place} /new, {runs})"
    assert moves == [moved] * bool(place)


@pytest.mark.parametrize("accepts_pending", [False, True])
@pytest.mark.parametrize(
    ("printed", "serving", "words"),
    [
        pytest.param(
            'storage_driver = "vfs"', "overlay", "with vfs in the place of overlay", id="by its files"
        ),
        pytest.param('# storage_driver = "vfs"', "overlay", "with vfs in the place of", id="by storage.conf"),
        pytest.param('# storage_driver = "overlay"', "overlay", "", id="the same"),
        pytest.param('# storage_driver = ""', "overlay", "", id="the next start chooses"),
        pytest.param('storage_driver = "vfs"', "", "", id="the running CRI-O does not tell"),
    ],
)
def test_no_restart_gives_crio_another_storage_driver(
    tmp_path: Path, printed: str, serving: str, words: str, *, accepts_pending: bool
) -> None:
    engine = Engine(tmp_path, "crio", f"echo '[crio]'; echo '{printed}'")
    answer = {"crio": {"storage_driver": serving, "runtime": {"default_runtime": "crun"}}}
    state = replace(EngineState.usual(engine.kind), serving=read_effective(answer))
    state = replace(state, exe=PurePosixPath(engine.program))

    after = DryRuns(HOST, {})(state, {})
    losses = [*explain_losses(state, after, (), accepts_pending=accepts_pending)]

    assert [error.code for error in losses] == ["pending-by-others"] * bool(words)
    assert all(words in error.problem for error in losses)
    assert all("accept-pending" not in error.remedy for error in losses)


@pytest.mark.parametrize(
    ("refuses", "broken"), [("", ""), ("grep -q new {config} || exit 0;", "bad")], ids=["both", "the new one"]
)
def test_what_a_program_refuses_is_broken_unless_it_refuses_the_present_config_too(
    tmp_path: Path, refuses: str, broken: str
) -> None:
    end = refuses.format(config=tmp_path / "config")
    engine = Engine(tmp_path, "docker", f"{end} echo bad >&2; exit 1")

    said = engine.ask('{"new": 1}', DryRuns(HOST, {engine.config: File(b"{}")})).broken

    assert said == (f"{engine.program}: {broken}" if broken else "")
    assert broken or engine.seen("config") == "{}"


@pytest.mark.parametrize("end", ["echo 'Status: unknown flag: --validate' >&2; exit 125", "kill -9 $$"])
def test_where_a_program_cannot_tell_the_texts_do(tmp_path: Path, end: str) -> None:
    assert Engine(tmp_path, "docker", end).ask('{"default-runtime": "nope"}').undefined == "nope"


# As Go 1.19 to 1.24 end a program: under a limit of memory or of threads, and by a panic.
OUT_OF_MEMORY = "runtime: out of memory: cannot allocate 4194304-byte block\nfatal error: out of memory\n"
NO_THREAD = (
    "runtime/cgo: pthread_create failed: Resource temporarily unavailable\nSIGABRT: abort\nPC=0x7f m=0\n"
)
TRACE = "\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:9 +0x1d\n"
PANIC = "panic: runtime error: invalid memory address or nil pointer dereference\n"


def _ends_with(words: str, code: int = 2) -> str:
    return f"cat >&2 <<'END'\n{words}END\nexit {code}"


@pytest.mark.parametrize(
    "end",
    [
        _ends_with(OUT_OF_MEMORY + TRACE),
        _ends_with(NO_THREAD + TRACE),
        _ends_with(PANIC + TRACE),
        _ends_with("", 137),
        "kill -9 $$",
    ],
    ids=["memory", "threads", "panic with any config", "a wrapper tells a signal", "signal"],
)
def test_a_dry_run_that_was_cut_short_is_no_refusal_of_a_config(tmp_path: Path, end: str) -> None:
    engine = Engine(tmp_path, "containerd", end)
    dry_runs = DryRuns(HOST, {engine.config: File(b"version = 2\n")})

    effect = engine.ask("version = 2 # new\n", dry_runs)

    assert (effect.broken, effect.is_printed) == ("", False)
    write = WriteConfig("containerd", engine.config, None, File(b""))
    reason = f"the config of containerd is not validated: {engine.program} cannot tell here"
    assert [*dry_runs.explain_unvalidated([write])] == [reason]
    asked = engine.seen("times")
    engine.ask("version = 2 # other\n", dry_runs)
    assert engine.seen("times") == asked  # the answers about two texts could not be compared


def test_a_panic_that_only_a_new_config_brings_about_is_its_refusal(tmp_path: Path) -> None:
    end = f"grep -q new {tmp_path}/config || exit 0\n{_ends_with(PANIC + TRACE)}"
    engine = Engine(tmp_path, "containerd", end)
    dry_runs = DryRuns(HOST, {engine.config: File(b"version = 2\n")})

    assert engine.ask("version = 2 # new\n", dry_runs).broken == f"{engine.program}: {PANIC.strip()}"


def test_a_program_that_finds_no_text_by_an_empty_proc_is_not_asked(tmp_path: Path) -> None:
    put(tmp_path, {"usr/bin/containerd": SCRIPT.format(seen="/", end="exit 1")}, 0o755)
    (tmp_path / "proc").mkdir()
    usual = EngineState.usual(ENGINES["containerd"])
    dry_runs = DryRuns(Host.under(PurePosixPath(tmp_path)), {})

    effect = dry_runs(usual, {usual.config: File(b"version = 2\n")})

    assert (effect.broken, effect.default) == ("", "runc")
    reason = "the config of containerd is not validated: /usr/bin/containerd cannot tell here"
    assert [*dry_runs.explain_unvalidated([WriteConfig("containerd", usual.config, None, None)])] == [reason]


def test_a_program_of_another_name_is_not_run_for_it_may_parse_arguments_differently(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "containerd", "exit 1", "k3s")

    assert engine.ask("version = 2\n").default == "runc"
    assert "as TOML" in engine.ask("version =").broken
    assert not (tmp_path / "words").exists()


TOML, JSON = PurePosixPath("/etc/containerd/config.toml"), PurePosixPath("/etc/docker/daemon.json")
BEFORE = {"containerd": (TOML, "version = 2\n"), "docker": (JSON, "{}")}
SERVING = EffectiveConfig({}, "runc")


def state(name: str) -> EngineState:
    return replace(EngineState.usual(ENGINES[name]), drop_in=None, files=(BEFORE[name][0],))


WRITTEN = "version = 2\nroot = '/ours'\n"
DONE = WriteConfig("containerd", TOML, None, File(WRITTEN.encode()))
ANOTHER = "another process has just written"
FATAL = f"cannot restart containerd (it would not start again, {ANOTHER} {TOML}: "


@pytest.mark.parametrize(
    ("name", "now", "done", "said"),
    [
        pytest.param("containerd", WRITTEN, (DONE,), "", id="as we wrote it"),
        pytest.param("containerd", WRITTEN, (), "", id="as others wrote it, and it would come up"),
        pytest.param("containerd", "version = [", (), FATAL, id="as others wrote it, and it would not"),
        pytest.param(
            "docker", '{"debug": true}', (), f"cannot reload Docker ({ANOTHER} {JSON})", id="nobody knows"
        ),
        pytest.param("docker", None, (), f"cannot reload Docker ({ANOTHER} {JSON.parent}", id="gone"),
    ],
)
def test_what_others_have_written_since_the_gate_keeps_an_engine_from_a_reload(
    tmp_path: Path, name: str, now: str | None, done: tuple[Step, ...], said: str
) -> None:
    path, before = BEFORE[name]
    host = put(tmp_path, {path.with_name("other"): "", **({} if now is None else {path: now})})

    with pytest.raises(NotBegunError, match=f"^{re.escape(said)}") if said else nullcontext():
        refuse_changed(host, state(name), {path: File(before.encode()).digest}, done)


def test_an_engine_that_serves_and_would_not_come_up_is_told_by_name(tmp_path: Path) -> None:
    host = put(tmp_path, {TOML: "version = ["})
    engines = [replace(state("containerd"), serving=SERVING), state("docker")]

    found = find_start_failures(host, engines)
    put(tmp_path, {TOML: "version = 2\n"})

    assert list(found) == ["containerd"]
    assert "config.toml" in found["containerd"]
    assert find_start_failures(host, engines) == {}


OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
SOCKET = PurePosixPath("/s")
ROW = EngineRow("docker", SOCKET, "docker.service", {"nvidia": OURS}, config=JSON, default="nvidia")
PROVEN = replace(ROW, proven=digest_of({JSON: File(b"{}")}))
MINE = f'{{"runtimes": {{"nvidia": {{"path": "{OURS}"}}}}, "default-runtime": "nvidia"}}'


@pytest.mark.parametrize(
    ("text", "row", "fatal", "lacks"),
    [
        pytest.param(MINE, ROW, "", (), id="ours"),
        pytest.param("{}", PROVEN, "", (), id="as the last install has left and proven it"),
        pytest.param("{ }", PROVEN, "", None, id="not as it was proven"),
        pytest.param('{"default-runtime": "gone"}', ROW, 'its default-runtime "gone" is not', (), id="gone"),
        pytest.param("{", ROW, "cannot read /etc/docker/daemon.json as JSON", (), id="not valid"),
    ],
)
def test_configs_are_compared_with_the_last_install(
    tmp_path: Path, text: str, row: EngineRow, fatal: str, lacks: tuple[str, ...] | None
) -> None:
    config = ConfigRow("docker", JSON, None, None, (), ())

    found = compare_configs(put(tmp_path, {JSON: text}), row, Record(configs=() if fatal else (config,)))

    assert found.fatal.startswith(fatal)
    assert bool(found.fatal) == bool(fatal)
    assert found.lacks == lacks if lacks is not None else found.lacks


def test_a_crio_whose_own_program_is_gone_would_not_start(tmp_path: Path) -> None:
    usual = EngineState.usual(ENGINES["crio"])
    row = EngineRow("crio", SOCKET, "containerd.service", {}, config=usual.config)
    row = replace(row, proven=digest_of({path: None for path in (usual.config, usual.drop_in) if path}))
    words: Any = ("/usr/bin/crio", ["/usr/bin/crio"], False, 0, 0, 0, 0, 0, 0, 0)
    with live(tmp_path) as node:
        node.systemd.changed |= UNIT_PROPERTIES | {"ExecStart": ("a(sasbttttuii)", [words])}

        gone = "its ExecStart /usr/bin/crio is no program"
        assert compare_configs(node.host, row, Record()).fatal == gone
        assert find_start_failures(node.host, [replace(usual, unit=row.unit, serving=SERVING)]) == {
            "crio": gone
        }
