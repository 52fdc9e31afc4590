"""The model of dockerd's start and reload against every dockerd, and each way that a text of ours may take.

``DOCKER_STRIDE=1`` takes every pair of what dockerd has and a text; ``make test`` every 23rd of them.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import pytest
from msgspec.structs import replace

from installer.config_text import Value
from installer.engines.ask import parse_version
from installer.engines.docker.config import DockerdModel, Refusal, has_same_runtimes
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, Flags
from installer.model.files import File
from tests.engines.dockerds import Dockerd, dockerd_of
from tests.engines.roots import Roots
from tests.engines.versions import EngineSet

STRIDE: Final = int(os.environ.get("DOCKER_STRIDE", "23"))
PATH: Final = PurePosixPath("/etc/docker/daemon.json")
A: Final[Value] = {"path": "/usr/sbin/runc"}
ELSEWHERE: Final[Value] = {"path": "/usr/bin/runc"}
B: Final[Value] = {"path": "/usr/sbin/runc", "runtimeArgs": ["--debug"]}
SHIM: Final = "io.containerd.runc.v2"
ABSENT: Final = object()
LIVES: Final[list[tuple[str, dict[str, Value]]]] = [
    ("runc", {}),
    ("runc", {"a": A}),
    ("runc", {"b": B}),
    ("runc", {"a": A, "b": B}),
    ("a", {"a": A}),
    ("a", {"a": A, "b": B}),
    ("b", {"b": B}),
    ("b", {"a": A, "b": B}),
]
ODD: Final = (
    "",
    "\n",
    "\ufeff{}",
    '\ufeff{"runtimes": {"a": {"path": "/usr/sbin/runc"}}}',
    "{",
    '{"default-runtime": 1}',
    '{"runtimes": []}',
    '{"runtimes": {"a": 1}}',
    '{"runtimes": {"runc": {"path": "/x"}}}',
    '{"runtimes": {"a": {}}}',
    '{"runtimes": {"a": null}}',
    '{"runtimes": {"a": {"runtimeType": "io.containerd.runc.v2"}}}',
    '{"runtimes": {"a": {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/x"}}}}',
    '{"runtimes": {"a": {"runtimeType": "io.containerd.runc.v2", "path": "/x"}}}',
    '{"runtimes": {"a": {"runtimeType": "io.containerd.runc.v2", "runtimeArgs": ["-v"]}}}',
    '{"runtimes": {"a": {"path": "/x", "options": {"Root": "/r"}}}}',
    '{"runtimes": {"a": {"path": "/x", "runtimeType": "", "options": {}}}}',
    '{"runtimes": {"a": {"PATH": "/x", "RuntimeArgs": ["--debug"]}}}',
    '{"runtimes": {"a": {"path": "/x", "args": []}}}',
    '{"runtimes": {"a": {"path": "runc"}}}',
    '{"runtimes": {"io.containerd.runc.v2": {"path": "/x"}}}',
    '{"Runtimes": {"a": {"path": "/x"}}}',
    '{"default-runtime": "A", "runtimes": {"a": {"path": "/x"}}}',
    '{"default-runtime": "a.b"}',
    '{"default-runtime": ".a"}',
    '{"default-runtime": "a."}',
    '{"default-runtime": "/usr/sbin/runc"}',
    '{"default-runtime": "/usr/x.y/runc"}',
    '{"features": {"cdi": true}}',
    '{"userland-proxy": true}',
    '{"userland-proxy": true, "userland-proxy-path": ""}',
    '{"userland-proxy": false, "userland-proxy-path": ""}',
    '{"userland-proxy-path": ""}',
)


def _texts() -> Iterator[bytes | None]:
    for default in (ABSENT, None, "", "runc", "a", "b", "gone", SHIM, "io.containerd.runtime.v1.linux"):
        for runtimes in (ABSENT, None, {}, {"a": A}, {"a": ELSEWHERE}, {"b": B}, {"a": A, "b": B}):
            keys: dict[str, Any] = {"default-runtime": default, "runtimes": runtimes}
            yield json.dumps({key: value for key, value in keys.items() if value is not ABSENT}).encode()
    yield None
    yield from (text.encode() for text in ODD)


TEXTS: Final = tuple(_texts())
PAIRS: Final = tuple((live, text) for live in LIVES for text in TEXTS)


@pytest.fixture
def dockerd(docker_engines: EngineSet, roots: Roots) -> Iterator[Dockerd]:
    """Return a dockerd of each release, not started."""
    with dockerd_of(roots.suites[docker_engines.suite]) as daemon:
        yield daemon


@pytest.fixture
def model(docker_engines: EngineSet) -> DockerdModel:
    return DockerdModel(PATH, parse_version(docker_engines.docker or ""))


def _file(text: bytes | None) -> File | None:
    return None if text is None else File(text)


def _brought_to(dockerd: Dockerd, default: str, runtimes: Mapping[str, Value]) -> EffectiveConfig:
    """Let dockerd have this in force by one reload, from whatever it has; start it where it is down."""
    if not dockerd.runs:
        dockerd.start(b"{}")
    text = json.dumps({"default-runtime": default, "runtimes": runtimes}).encode()
    assert dockerd.reload(text) == "taken", f"both keys in words were not taken up: {dockerd.log}"
    return dockerd.serving


def _starts_as(dockerd: Dockerd, model: DockerdModel, text: bytes | None, *words: str) -> None:
    """Start it with a text: it does what the model says."""
    found, expected = dockerd.start(text, *words), model.start(_file(text))

    assert (found is None) == bool(expected.broken), (text, expected.broken, dockerd.log)
    assert found is None or has_same_runtimes(found, expected), (text, found, expected)


def _reloads_as(dockerd: Dockerd, model: DockerdModel, live: EffectiveConfig, text: bytes | None) -> None:
    """Reload it with a text: it does what the model says."""
    expected = model.reload(live, _file(text))

    outcome = dockerd.reload(text)

    if isinstance(expected, Refusal):
        assert outcome == ("died" if expected.dies else "refused"), (live, text, expected, dockerd.log)
        assert expected.dies or has_same_runtimes(dockerd.serving, live), (live, text)
    else:
        assert outcome == "taken", (live, text, dockerd.log)
        assert has_same_runtimes(dockerd.serving, expected), (live, text, dockerd.serving, expected)


def _takes(dockerd: Dockerd, first: File | None, wanted: EffectiveConfig) -> None:
    """Let it go the way that a route begins with: it is not refused, and ends where a start would."""
    assert dockerd.reload(first.content if first else None) == "taken", (first, dockerd.log)
    assert has_same_runtimes(dockerd.serving, wanted), (first, dockerd.serving, wanted)


@pytest.mark.sampled(16)
def test_a_start_gives_what_the_model_says(dockerd: Dockerd, model: DockerdModel) -> None:
    for text in TEXTS[:: max(1, STRIDE // 3)]:
        _starts_as(dockerd, model, text)


@pytest.mark.sampled(16)
def test_a_reload_from_any_state_does_what_the_model_says(dockerd: Dockerd, model: DockerdModel) -> None:
    for (default, runtimes), text in PAIRS[::STRIDE]:
        _reloads_as(dockerd, model, _brought_to(dockerd, default, runtimes), text)


@pytest.mark.sampled(16)
def test_every_route_ends_where_a_start_would_and_no_reload_on_it_is_refused(
    dockerd: Dockerd, model: DockerdModel
) -> None:
    ways = 0

    for (default, runtimes), text in PAIRS[::STRIDE]:
        wanted = model.start(_file(text))
        if wanted.broken:
            continue
        live = _brought_to(dockerd, default, runtimes)
        try:
            texts = model.find_route(live, _file(text)).texts
        except InstallerError:
            # Said before anything is done: 20.10 has no way at all to a shim as its default.
            assert ((model.version or ()) < (23,), wanted.default.startswith("io.containerd.")) == (
                True,
                True,
            )
            continue

        _takes(dockerd, texts[0], wanted)
        assert texts[-1] == _file(text)
        ways += 1

    assert ways


FLAGS: Final = [
    pytest.param(("--default-runtime", "a"), Flags("a"), id="a default"),
    pytest.param(("--add-runtime", "a=/usr/sbin/runc"), Flags("", {"a": "/usr/sbin/runc"}), id="a runtime"),
]


@pytest.mark.parametrize(("words", "flags"), FLAGS)
@pytest.mark.night
def test_what_was_said_by_a_flag_is_in_force_and_may_not_stand_in_the_file(
    dockerd: Dockerd, model: DockerdModel, words: tuple[str, ...], flags: Flags
) -> None:
    model = replace(model, flags=flags)
    said: list[dict[str, Value]] = [{}, {"runtimes": {}}, {"runtimes": {"a": A}}, {"default-runtime": "runc"}]
    said += [{"default-runtime": "runc", "runtimes": {"a": A}}, {"debug": True}, {"runtimes": {"b": B}}]
    texts = [json.dumps(one).encode() for one in said]
    safe = texts[2] if flags.default else texts[0]

    def started() -> EffectiveConfig:
        live = dockerd.start(safe, *words)
        assert live is not None, dockerd.log
        return live

    for text in texts:
        _starts_as(dockerd, model, text, *words)

    for text in texts:
        _reloads_as(dockerd, model, started(), text)
        wanted = model.start(_file(text))
        if not wanted.broken:
            _takes(dockerd, model.find_route(started(), _file(text)).texts[0], wanted)
