"""Whether an engine may serve less than it says, for its configs were changed since its start."""

from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.config_files import TICK_S, explain_unread, is_outdated, with_places
from installer.engines.observe import explain_moving
from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.engine_spec import EffectiveConfig
from installer.model.facts import EngineState, Started
from installer.model.options import Places

CONFIG = PurePosixPath("/etc/crio/crio.conf")


@pytest.mark.parametrize(
    ("engine", "after_s", "expected"),
    [
        pytest.param("crio", 1.0, True, id="written after its start"),
        pytest.param("crio", 0.0, False, id="written in the moment of its start, which is told in ticks"),
        pytest.param("crio", -1.0, False, id="written before its start"),
        pytest.param("containerd", 1.0, False, id="an engine that tells what it serves"),
    ],
)
def test_what_was_written_after_the_start_makes_its_words_doubtful(
    tmp_path: Path, engine: str, after_s: float, *, expected: bool
) -> None:
    file = tmp_path / "etc/crio/crio.conf"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert TICK_S < 1
    started_s = file.stat().st_ctime - after_s

    host, usual = Host.under(PurePosixPath(tmp_path)), EngineState.usual(ENGINES[engine])
    assert is_outdated(host, replace(usual, started=Started(began_s=started_s)), [CONFIG]) is expected
    assert not is_outdated(host, replace(usual, started=Started()), [CONFIG])


CRIO, CONTAINERD = ENGINES["crio"], ENGINES["containerd"]
OURS = PurePosixPath("/etc/crio/crio.conf.d/99-nvidia.conf")


def crio(drop_in: PurePosixPath | None = OURS, hook: PurePosixPath | None = None) -> EngineState:
    return EngineState("crio", CRIO.config, drop_in, hook, (), CRIO.socket, CRIO.unit)


def containerd(drop_in: PurePosixPath | None = None) -> EngineState:
    return EngineState("containerd", CONTAINERD.config, drop_in, None, (), CONTAINERD.socket, CONTAINERD.unit)


def start(engine: EngineState, words: tuple[str, ...]) -> EngineState:
    return replace(engine, started=Started(words))


@pytest.mark.parametrize(
    ("facts", "words", "said"),
    [
        (crio(), (), ""),
        (crio(None), (), ""),
        (crio(OURS.parent / "below/x"), (), ""),
        (crio(PurePosixPath("/srv/x.conf")), (), "it reads the files below /etc/crio/crio.conf.d"),
        (crio(), ("crio", "--config-dir", "/srv"), "it reads the files below /srv"),
        (crio(PurePosixPath("/srv/x.conf")), ("crio", "--config-dir", "/srv"), ""),
        (containerd(PurePosixPath("/srv/x.toml")), (), ""),
        (containerd(), (), ""),
    ],
)
def test_a_drop_in_where_an_engine_does_not_look_is_refused(
    tmp_path: Path, facts: EngineState, words: tuple[str, ...], said: str
) -> None:
    found = [
        error.problem for error in explain_unread(Host.under(PurePosixPath(tmp_path)), start(facts, words))
    ]

    assert len(found) == bool(said)
    assert all(said in problem for problem in found)


@pytest.mark.parametrize(
    ("served", "told"),
    [(None, False), ((), False), (("/srv/hooks",), True), (("/srv/hooks", "/run/hooks"), False)],
)
def test_a_hook_where_an_engine_does_not_look_is_refused(
    tmp_path: Path, served: tuple[str, ...] | None, *, told: bool
) -> None:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/hooks").symlink_to("../hooks")  # it leads to the directory of ours
    serving = (
        None if served is None else EffectiveConfig({}, "crun", hook_dirs=tuple(map(PurePosixPath, served)))
    )
    facts = replace(crio(PurePosixPath("/srv/x.conf"), PurePosixPath("/hooks/ours.json")), serving=serving)

    found = [error.problem for error in explain_unread(Host.under(PurePosixPath(tmp_path)), facts)]

    assert len(found) == told
    assert all("(it looks for hooks in /srv/hooks)" in problem for problem in found)


@pytest.mark.parametrize(
    ("facts", "words", "places", "read"),
    [
        (crio(), (), Places(), (CRIO.config, OURS)),
        (crio(), ("crio", "--config", "/srv/c"), Places(), ("/srv/c", OURS)),
        (crio(), ("crio", "--config-dir", "/srv/d"), Places(), (CRIO.config, "/srv/d/99-nvidia.conf")),
        (crio(), ("crio", "-d", "/srv/d"), Places(drop_in=OURS), (CRIO.config, OURS)),
        (crio(None), ("crio", "--config-dir", "/srv/d"), Places(), (CRIO.config, None)),
        # One that is named is believed, unless it is beside a drop-in and the process says another.
        (containerd(), ("containerd", "-c", "/srv/c"), Places(CONTAINERD.config), (CONTAINERD.config, None)),
        (crio(), ("crio", "-c", "/srv/c"), Places(CRIO.config), ("/srv/c", OURS)),
        (crio(), (), Places(CRIO.config), (CRIO.config, OURS)),
    ],
)
def test_which_files_an_engine_reads_its_words_tell(
    tmp_path: Path, facts: EngineState, words: tuple[str, ...], places: Places, read: tuple[object, object]
) -> None:
    found = with_places(Host.under(PurePosixPath(tmp_path)), start(facts, words), places)

    assert (str(found.config), str(found.drop_in)) == tuple(map(str, read))


MOVES = InstallerError("why", remedy="what", code="restart-moves-engine")
NOT_STARTED = InstallerError("why", remedy="what", code="unit-failed")
SAID = (
    "configure containerd in /a (at its next start containerd.service gives it /b)",
    "configure containerd in /etc/containerd/config.toml (at its next start containerd.service gives it /b)",
    "configure containerd in /a (at its next start containerd.service gives it /etc/containerd/config.toml)",
)


@pytest.mark.parametrize(
    ("now", "later", "why", "said"),
    [
        (("-c", "/a"), ("-c", "/a"), None, ""),
        (("-c", "/a"), ("--config=/a",), None, ""),
        (("-c", "/a"), ("-c", "/b"), None, SAID[0]),
        (("-l", "x"), ("-c", "/b"), None, SAID[1]),
        (("-c", "/a"), ("-l", "x"), None, SAID[2]),
        ((), ("-c", "/b"), None, ""),
        (("-c", "/a"), (), None, ""),
        (("-c", "/a"), ("-c", "/b"), MOVES, "why"),
        (("-c", "/a"), ("-c", "/b"), NOT_STARTED, SAID[0]),
        (("-c", "/a"), ("-c", "/a"), MOVES, ""),
    ],
)
def test_a_config_that_an_engine_reads_only_until_its_next_start_is_told(
    now: tuple[str, ...], later: tuple[str, ...], why: InstallerError | None, said: str
) -> None:
    facts = replace(containerd(), next_start=Started(later), not_restarted=why)

    assert [error.problem for error in explain_moving(start(facts, now))] == ([said] if said else [])
