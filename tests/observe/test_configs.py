"""Which configs an engine reads, what among them keeps it from starting, and where it would not read ours."""

import os
import stat
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES, config_files
from installer.engines.config_texts import predict_from_texts, tree_of
from installer.engines.dry_run import DryRuns
from installer.engines.k0s import DIRECTORY, MERGED
from installer.host.files import Host
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState, SeenStart, Started
from installer.model.facts import require
from installer.model.options import Places
from installer.model.steps import WriteConfig, describe
from tests.support.files import put
from tests.support.tree import tree

CRIO, CONTAINERD, MICROK8S = (EngineState.usual(ENGINES[name]) for name in ("crio", "containerd", "microk8s"))
K0S = ENGINES["k0s"]
IMPORTED, DROPPED = PurePosixPath("/etc/containerd/conf.d/a.toml"), PurePosixPath("/etc/crio/crio.conf.d")


def read(root: Path, bare: EngineState) -> tuple[EngineState, str]:
    """Return an engine with what it reads on the node ``root``, and why it would not start with it."""
    host = Host.under(PurePosixPath(root))
    engine = config_files.with_configs(host, bare)
    return engine, DryRuns(host, config_files.contents_of(host, engine.files))(engine, {}).broken


@pytest.fixture
def root(tmp_path: Path) -> Path:
    imports = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
    put(tmp_path, {CONTAINERD.config: imports, IMPORTED.with_name("site.toml"): "oom_score = -900\n"})
    put(tmp_path, {DROPPED / "below/site": "[crio]\n"})
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/null", stat.S_IFSOCK)  # a device takes root to make
    return tmp_path


# What a glob takes, and containerd 1.6.20, 1.7.24 and 2.1.9 do not start with. CRI-O walks into directories, and
# reads each name (engine-facts.md#crio-drop-ins).
@pytest.mark.parametrize(
    "target", ["/srv/gone.toml", "/etc/containerd", None], ids=["", "a directory", "no link"]
)
@pytest.mark.parametrize("engine", [CONTAINERD, CRIO], ids=["containerd", "CRI-O"])
def test_a_name_that_is_no_file_keeps_an_engine_from_starting(
    root: Path, engine: EngineState, target: str | None
) -> None:
    name = IMPORTED if engine is CONTAINERD else DROPPED / "below/a.toml"
    says = f"{engine.config} imports" if engine is CONTAINERD else "it reads"
    path = root / str(name)[1:]
    path.symlink_to(target) if target else path.mkdir()

    facts, broken = read(root, engine)

    assert name not in facts.files
    walks = engine is CRIO and not target
    assert broken == ("" if walks else f"{says} {name}, which is a link to nowhere, or no file")


def test_an_import_that_is_a_link_to_a_file_is_fatal_without_that_file_only(root: Path) -> None:
    (root / "etc/containerd/real").write_text("oom_score = -901\n")
    (root / str(IMPORTED)[1:]).symlink_to("/etc/containerd/real")

    facts, broken = read(root, CONTAINERD)

    assert (IMPORTED in facts.files, broken) == (True, "")
    texts = config_files.contents_of(Host.under(PurePosixPath(root)), facts.files)
    assert tree_of(texts[IMPORTED], IMPORTED) == {"oom_score": -901}
    assert str(IMPORTED) in predict_from_texts(facts, {**texts, IMPORTED: None}).broken


@pytest.mark.parametrize(
    ("engine", "name", "target"),
    [
        (CONTAINERD, IMPORTED, "/dev/null"),  # which masks a file, as the three have it
        (CONTAINERD, IMPORTED.with_suffix(".off"), "/gone"),  # no import takes it
        (CRIO, DROPPED / "b", f"{DROPPED}/below/site"),
    ],
)
def test_a_link_that_an_engine_starts_with(
    root: Path, engine: EngineState, name: PurePosixPath, target: str
) -> None:
    (root / str(name)[1:]).symlink_to(target)

    facts, broken = read(root, engine)

    assert broken == ""
    assert engine is CONTAINERD or {DROPPED / "below/site", name} <= {*facts.files}


def test_crio_does_not_start_with_a_link_in_the_place_of_its_drop_ins(tmp_path: Path) -> None:
    put(tmp_path, {"etc/crio/crio.conf": "", "srv/x": ""})
    (tmp_path / "etc/crio/crio.conf.d").symlink_to("/srv")

    assert str(DROPPED) in read(tmp_path, CRIO)[1]


def table(name: str, path: str = "/usr/bin/crun", **keys: str) -> str:
    said = {"runtime_path": path} | keys
    lines = "".join(f'{key} = "{said[key]}"\n' for key in said if said[key])
    return f"[crio.runtime.runtimes.{name}]\n{lines}"


SITE = '[crio.runtime]\ndefault_runtime = "site"\n'
CRUN = table("crun", monitor_path="/opt/conmon")
OF_SITE, OF_CRUN = "the monitor_path of site", "the monitor_path of crun"
# What a real 1.37.0 made of each (engine-facts.md#crio-conmon), with one of crun, conmon, pinns absent: what it
# missed, "" where it started.
STARTS = {
    "nothing": ("", "", ""),
    "the default's path": (SITE + table("site", "/gone"), "", "the runtime_path of site, /gone"),
    "the default's word": (SITE + table("site", ""), "", "the runtime_path of site, site"),
    "the built-in default": ("", "crun", "the runtime_path of crun, crun"),
    "another's path": (table("site", "/gone"), "", ""),
    "another's word and monitor": (table("site", "", monitor_path="/gone"), "", ""),
    "another's monitor": (table("site", monitor_path="/gone"), "", f"{OF_SITE}, /gone"),
    "conmon": ("", "conmon", f"{OF_CRUN}, conmon"),
    "conmon, named by all": (CRUN, "conmon", ""),
    "conmon, named by all but one": (CRUN + table("site"), "conmon", f"{OF_SITE}, conmon"),
    "conmon, but for the built-in": (SITE + CRUN.replace("crun]", "site]"), "conmon", f"{OF_CRUN}, conmon"),
    "conmon, named for all": ('[crio.runtime]\nconmon = "/opt/conmon"\n' + table("site", ""), "conmon", ""),
    "the conmon named for all": ('[crio.runtime]\nconmon = "/gone"\n', "", f"{OF_CRUN}, /gone"),
    "conmon beside a VM": (table("kata", runtime_type="vm") + CRUN, "conmon", ""),
    "conmon-rs of another": (table("site", runtime_type="pod"), "", ""),
    "conmon-rs of the default": (SITE + table("site", runtime_type="pod"), "", f"{OF_SITE}, conmonrs"),
    "the pinns that is named": ('[crio.runtime]\npinns_path = "/gone"\n', "", "its pinns_path, /gone"),
    "pinns": ("", "pinns", "its pinns_path, pinns"),
    # At a path CRI-O asks whether something is there, and starts the monitor alone.
    "the default's path, which nobody may start": (SITE + table("site", "/opt/text"), "", ""),
    "the pinns that nobody may start": ('[crio.runtime]\npinns_path = "/opt/text"\n', "", ""),
    "a monitor that nobody may start": (table("site", monitor_path="/opt/text"), "", f"{OF_SITE}, /opt/text"),
    "ours, which is put there": (table("nvidia", "/x/nvidia-container-runtime"), "", ""),
}


@pytest.mark.parametrize(("text", "absent", "missed"), STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("path", ["/usr/bin", None], ids=["its own PATH", "that of systemd"])
def test_crio_does_not_start_without_what_a_real_one_missed(
    tmp_path: Path, text: str, absent: str, missed: str, path: str | None
) -> None:
    programs = {"usr/bin/crun", "usr/bin/conmon", "usr/bin/pinns", "opt/conmon"} - {f"usr/bin/{absent}"}
    put(tmp_path, dict.fromkeys(programs, "#!/bin/sh\n"), 0o755)
    put(tmp_path, {"opt/text": "", "etc/crio/crio.conf": text})
    start = Started((), {"PATH": path} if path else {}, "/usr/bin/crio")

    end = " is no program" if "/" in missed else " is not in its PATH"
    broken = read(tmp_path, replace(CRIO, next_start=start))[1]
    assert broken.partition(" (in /etc/crio/crio.conf)")[0] == (missed and f"{missed},{end}")


def test_crio_starts_with_the_programs_that_its_unit_names_and_nothing_is_missed_without_a_unit(
    tmp_path: Path,
) -> None:
    (tmp_path / "etc/crio").mkdir(parents=True)
    words = ("--conmon", "/opt/c", "--default-runtime", "site", "--runtimes", "site:/opt/runc:/run/site")
    flags = Started(words, {"CONTAINER_PINNS_PATH": "/p"}, "crio")
    absent = read(tmp_path, replace(CRIO, next_start=flags))[1]
    put(tmp_path, dict.fromkeys(("opt/c", "opt/runc", "p"), "#!/bin/sh\n"), 0o755)

    assert read(tmp_path, CRIO)[1] == ""
    assert absent == "the runtime_path of site, /opt/runc, is no program (its unit sets --runtimes)"
    assert read(tmp_path, replace(CRIO, next_start=flags))[1] == ""


def test_k0s_reads_no_name_beside_its_pattern_nor_below_its_directory(tmp_path: Path) -> None:
    root = f'imports = ["{DIRECTORY}/other.toml", "{MERGED}"]\n'
    names = ("gvisor.toml", "other.toml", "notes.txt", "certs.d/docker.io/hosts.toml")
    put(tmp_path, {K0S.config: root, MERGED: "", **{DIRECTORY / name: "" for name in names}})

    found, _ = read(tmp_path, EngineState.usual(K0S))

    beside = (DIRECTORY / "gvisor.toml", K0S.drop_ins.usual, DIRECTORY / "other.toml")
    assert found.files == (K0S.config, *beside)
    assert found.rendered is not None


@pytest.mark.parametrize(
    ("engine", "drop_in", "words", "reads"),
    [
        ("crio", DROPPED / "below/x", (), ""),
        ("crio", "/srv/x.conf", (), f"the files below {DROPPED}"),
        ("crio", DROPPED / "99-nvidia.conf", ("crio", "--config-dir", "/srv"), "the files below /srv"),
        ("crio", "/srv/x.conf", ("crio", "--config-dir", "/srv"), ""),
        ("k0s", DIRECTORY / "a.toml", (), ""),
        ("k0s", DIRECTORY / "nvidia.conf", (), f"{DIRECTORY}/*.toml"),
        ("k0s", DIRECTORY.parent / "nvidia.toml", (), f"{DIRECTORY}/*.toml"),
    ],
)
def test_a_drop_in_where_an_engine_does_not_look_is_refused(
    tmp_path: Path, engine: str, drop_in: object, words: tuple[str, ...], reads: str
) -> None:
    host = put(tmp_path, {K0S.config: "", DIRECTORY / "more/x": ""})
    usual = replace(EngineState.usual(ENGINES[engine]), started=Started(words))
    state = replace(usual, drop_in=PurePosixPath(str(drop_in)))

    found = [error.problem for error in config_files.explain_unread(host, state)]

    assert len(found) == bool(reads)
    assert all(f"(it reads {reads})" in problem for problem in found)
    assert not [*config_files.explain_unread(host, replace(usual, drop_in=None))]


@pytest.mark.parametrize(
    ("served", "told"), [((), False), (("/srv/hooks",), True), (("/srv/hooks", "/run/hooks"), False)]
)
def test_a_hook_where_an_engine_does_not_look_is_refused(
    tmp_path: Path, served: tuple[str, ...], *, told: bool
) -> None:
    host = put(tmp_path, {"hooks/x": "", "run/x": ""})
    (tmp_path / "run/hooks").symlink_to("../hooks")  # it leads to the directory of ours
    serving = EffectiveConfig({}, "crun", hook_dirs=tuple(map(PurePosixPath, served)))
    engine = replace(CRIO, hook=PurePosixPath("/hooks/ours.json"), serving=serving)

    found = [error.problem for error in config_files.explain_unread(host, engine)]

    assert len(found) == told
    assert all("(it looks for hooks in /srv/hooks)" in problem for problem in found)
    assert not [*config_files.explain_unread(host, replace(engine, serving=None))]


OURS, NAME = DROPPED / "99-nvidia.conf", CRIO.config
WITH, WITHOUT = replace(CRIO, drop_in=OURS), replace(CRIO, drop_in=None)


@pytest.mark.parametrize(
    ("engine", "words", "places", "reads"),
    [
        (WITH, (), Places(), (NAME, OURS)),
        (WITH, ("crio", "--config", "/srv/c"), Places(), ("/srv/c", OURS)),
        (WITH, ("crio", "-d", "/srv/d"), Places(drop_in=OURS), (NAME, OURS)),
        (WITHOUT, ("crio", "--config-dir", "/srv/d"), Places(), (NAME, None)),
        # One that is named is believed, unless it is beside a drop-in and the process says another.
        (CONTAINERD, ("containerd", "-c", "/c"), Places(CONTAINERD.config), (CONTAINERD.config, None)),
        (WITH, ("crio", "-c", "/srv/c"), Places(NAME), ("/srv/c", OURS)),
    ],
)
def test_which_files_an_engine_reads_its_words_tell(
    tmp_path: Path, engine: EngineState, words: tuple[str, ...], places: Places, reads: tuple[object, object]
) -> None:
    started = replace(engine, started=Started(words))
    found = config_files.with_places(Host.under(PurePosixPath(tmp_path)), started, places)

    assert (str(found.config), str(found.drop_in)) == tuple(map(str, reads))


DOCKER = EngineState.usual(ENGINES["docker"])
K3S = EngineState.usual(ENGINES["k3s"])


@pytest.mark.parametrize(
    ("engine", "words", "named", "reads"),
    [
        pytest.param(DOCKER, (), "/etc/dokcer/daemon.json", "/etc/docker/daemon.json", id="usual"),
        pytest.param(DOCKER, ("--config-file=/srv/d.json",), DOCKER.config, "/srv/d.json", id="a flag"),
        pytest.param(CONTAINERD, ("-c", "/srv/c"), CONTAINERD.config, "/srv/c", id="a short flag"),
        pytest.param(WITH, (), "/etc/crioo/crio.conf", NAME, id="no such directory"),
        pytest.param(WITH, (), "/etc/crio/other.conf", None, id="beside a drop-in"),
        pytest.param(DOCKER, None, "/etc/docker/x", None, id="words unknown"),
        pytest.param(CONTAINERD, ("-c", "c.toml"), "/etc/c.toml", None, id="a relative path"),
        pytest.param(CONTAINERD, ("-c", "/away/c"), "/etc/c.toml", None, id="not mounted here"),
        pytest.param(CONTAINERD, ("-c", "/srv/c"), "/srv/link", None, id="a link"),
        pytest.param(CONTAINERD, ("-c", "/srv/c"), "/srv/same", None, id="another name of the file"),
        pytest.param(K3S, ("-c", "/srv/c"), "/etc/c.toml", None, id="nothing is written"),
        pytest.param(DOCKER, (), None, None, id="none is named"),
    ],
)
def test_a_root_file_that_the_engine_does_not_read_is_refused(
    tmp_path: Path,
    engine: EngineState,
    words: tuple[str, ...] | None,
    named: str | PurePosixPath | None,
    reads: str | PurePosixPath | None,
) -> None:
    host = put(tmp_path, {"srv/c": "", "etc/crio/crio.conf": "", "etc/docker/x": "", "etc/containerd/x": ""})
    (tmp_path / "srv/link").symlink_to("c")
    (tmp_path / "srv/same").hardlink_to(tmp_path / "srv/c")
    started = None if words is None else Started(words, program=f"/usr/bin/{engine.kind.process}")
    places = Places(PurePosixPath(named) if named else None)

    found = [*config_files.explain_unread_root(host, replace(engine, started=started), places)]

    assert [f"(it reads {reads})" in error.problem for error in found] == ([True] if reads else [])
    assert all(f"--config {engine.name}={reads}" in error.remedy for error in found)


NOWHERE = "/nowhere/daemon.json"
WITHOUT_FILE = "/etc/containerd/daemon.json"


@pytest.mark.parametrize(
    ("words", "named", "refused"),
    [
        pytest.param(None, WITHOUT_FILE, True, id="no such file"),
        pytest.param(
            ("--config-file", WITHOUT_FILE), WITHOUT_FILE, False, id="no such file, as the engine says"
        ),
        pytest.param(None, NOWHERE, True, id="words unknown"),
        pytest.param(None, DOCKER.config, False, id="the usual directory"),
        pytest.param(("--config-file", NOWHERE), NOWHERE, False, id="as the engine says"),
        pytest.param(
            ("--config-file", "/away/d.json"), NOWHERE, True, id="what it reads is not mounted here"
        ),
        pytest.param(("--config-file", "d.json"), NOWHERE, True, id="a relative path"),
    ],
)
def test_a_missing_root_file_is_refused_unless_the_engine_would_read_it(
    tmp_path: Path, words: tuple[str, ...] | None, named: str | PurePosixPath, *, refused: bool
) -> None:
    host = put(tmp_path, {"etc/containerd/x": ""})
    started = None if words is None else Started(words, program="/usr/bin/dockerd")
    places = Places(PurePosixPath(named))

    engine = replace(DOCKER, config=PurePosixPath(named), started=started)
    found = [*config_files.explain_unread_root(host, engine, places)]

    reason = "there is no such file" if named == WITHOUT_FILE else "there is no directory /nowhere"
    assert [f"({reason})" in error.problem for error in found] == [True] * refused


@pytest.mark.parametrize(
    ("engine", "after_s", "gone", "expected"),
    [
        (CRIO, 1.0, False, True),
        (CRIO, 1.0, True, True),
        (CRIO, 0.0, False, False),  # in the moment of its start, which has ticks
        (CONTAINERD, 1.0, False, False),  # it tells what it serves
        (CRIO, None, False, False),
    ],
)
def test_what_was_written_after_the_start_makes_its_words_doubtful(
    tmp_path: Path, engine: EngineState, after_s: float | None, *, gone: bool, expected: bool
) -> None:
    host = put(tmp_path, {OURS: ""})
    changed_s = host.changed_s(OURS)
    if gone:
        host.remove(OURS)
    assert config_files.TICK_S < 1

    started = Started(began_s=None if after_s is None else changed_s - after_s)

    assert config_files.is_outdated(host, replace(engine, started=started), [OURS]) is expected


def test_record_of_a_start_tells_edits_whatever_the_clock_says(tmp_path: Path) -> None:
    same, edited, gone = (DROPPED / name for name in ("a.conf", "b.conf", "c.conf"))
    host = put(tmp_path, {NAME: "", same: "[crio]\n", edited: "[crio]\n"})
    digests = {str(path): require(host.read(path)).digest for path in (NAME, same, edited)}
    seen = SeenStart("5f", {**digests, str(gone): "0"})
    late = Started(began_s=host.changed_s(edited) + 3600.0)
    (tmp_path / str(edited).lstrip("/")).write_text("[crio]\n# mine\n")

    found = config_files.with_configs(host, replace(CRIO, drop_in=None, started=late, seen_start=seen))
    by_times = config_files.with_configs(host, replace(CRIO, drop_in=None, started=late))

    assert found.changed == (edited, gone)
    assert by_times.changed == ()


def test_a_link_to_a_file_that_an_undo_needs_again_comes_back_with_it(tmp_path: Path) -> None:
    path, link = PurePosixPath("/etc/crio/mine.conf"), PurePosixPath("/srv/x.conf")
    host = put(tmp_path, {link: "[crio]\n", NAME: ""})
    (tmp_path / "etc/crio/mine.conf").symlink_to(link)
    before = tree(tmp_path)
    step = WriteConfig("crio", path, host.read(path), None, str(link))

    config_files.write_config(host, step)

    assert not (tmp_path / "srv/x.conf").exists()
    assert not (tmp_path / "etc/crio/mine.conf").is_symlink()
    back = describe(step).undo
    assert isinstance(back, WriteConfig)
    config_files.write_config(host, back)
    assert tree(tmp_path) == before
