"""Docker: what daemon.json should say and may not say, and what dockerd makes of it.

The rows about dockerd were measured with real ones (tests/engines/test_docker_reload.py).
"""

import json
from pathlib import PurePosixPath

import pytest

from installer.config_text import Syntax
from installer.config_text.change import parse
from installer.engines.docker.config import DockerdModel, Refusal
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, Flags, Runtime
from installer.model.files import File
from tests.observe.texts import decided

PATH = PurePosixPath("/etc/docker/daemon.json")
OLD, NEW = (20, 10, 24), (28, 5, 2)


@pytest.mark.parametrize(
    ("entry", "starts"),
    [
        pytest.param('{"Path": "/b/x"}', "/b/x", id="by a path in capitals"),
        pytest.param('{"runtimeType": "io.containerd.kata.v2"}', "io.containerd.kata.v2", id="by a shim"),
    ],
)
def test_a_name_that_another_runtime_has_is_refused(entry: str, starts: str) -> None:
    with pytest.raises(InstallerError, match=f"a runtime named gpu is there already and starts {starts}"):
        decided("docker", f'{{"runtimes": {{"gpu": {entry}}}}}', name="gpu")


@pytest.mark.parametrize("text", ['"x": {"Path": 1}', '"x": {"options": 1}', '"x": 1'])
def test_a_wrong_type_of_another_runtime_is_refused(text: str) -> None:
    with pytest.raises(InstallerError, match=rf"cannot use {PATH} \(runtimes.x.* is a number where"):
        decided("docker", f'{{"runtimes": {{{text}}}}}')


@pytest.mark.parametrize("ours", [True, False])
def test_a_default_that_nobody_defines_is_refused_also_where_ours_takes_its_place(*, ours: bool) -> None:
    with pytest.raises(InstallerError, match='its default-runtime "youki" is not defined'):
        decided("docker", '{"default-runtime": "youki"}', default=ours)


def has(default: str, *names: str) -> EffectiveConfig:
    handlers = {name: Runtime(f"/b/{name}", {"path": f"/b/{name}"}) for name in names}
    return EffectiveConfig({"runc": Runtime("runc", {"path": "runc"}), **handlers}, default)


def test_the_intermediate_text_of_an_undo_has_none_of_the_nulls_of_which_dockerd_20_10_dies() -> None:
    nulls = File(b'{"runtimes": null, "default-runtime": null}')

    file, _ = DockerdModel(PATH, NEW).spell_out(nulls)

    assert json.loads(file.content) == {"runtimes": {}, "default-runtime": "runc"}


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ('{"default-runtime": "io.containerd.kata.v2"}', ""),  # a shim needs no definition
        ('{"runtimes": {"x": {}}}', "the runtime x has neither a path nor a runtimeType"),
        (
            '{"runtimes": {"x": {"path": "/x", "runtimeType": "y"}}}',
            "the runtime x has both a path and a runtimeType",
        ),
        (
            '{"runtimes": {"x": {"path": "/x", "options": {"a": 1}}}}',
            "the runtime x has options beside a path",
        ),
        ('{"runtimes": {"x": {"path": "/x", "runtimeArgs": ["a"]}}}', ""),
        (
            '{"runtimes": {"x": {"runtimeType": "y", "runtimeArgs": ["a"]}}}',
            "the runtime x has runtimeArgs beside a runtimeType",
        ),
    ],
)
def test_a_text_that_dockerd_does_not_start_with_says_why(text: str, broken: str) -> None:
    found = DockerdModel(PATH, NEW).start(File(text.encode()))

    assert (found.undefined, found.broken[: len(broken) or None]) == ("", broken)


@pytest.mark.parametrize("version", [OLD, NEW], ids=["20.10", "28"])
def test_dockerd_never_gets_a_map_without_its_live_default(version: tuple[int, ...]) -> None:
    target = File(b'{"runtimes": {"gpu": {"path": "/b/gpu"}}}')
    live = has("nvidia", "nvidia")

    told = DockerdModel(PATH, version).reload(live, target)
    first, last = DockerdModel(PATH, version).find_route(live, target).texts

    assert told == Refusal("specified default runtime 'nvidia' does not exist", dies=version == OLD)
    assert first is not None
    assert parse(first.content.decode(), Syntax.JSON, name="") == {
        "runtimes": {"gpu": {"path": "/b/gpu"}},
        "default-runtime": "runc",
    }
    assert last == target


@pytest.mark.parametrize(("version", "default"), [(OLD, "x"), (NEW, "runc")], ids=["20.10", "28"])
def test_the_default_of_a_text_that_goes_stays_in_an_old_dockerd(
    version: tuple[int, ...], default: str
) -> None:
    model = DockerdModel(PATH, version)

    assert model.reload(has("x", "x"), None) == has(default, "x")
    assert model.reload(has("x", "x"), File(b"{}")) == has("x", "x")
    of_nothing = model.reload(has("runc"), File(b'{"runtimes": null}'))
    assert (isinstance(of_nothing, Refusal) and of_nothing.dies) is (version == OLD)


def test_a_text_that_would_end_dockerd_is_refused_before_it_is_written() -> None:
    target = File(b'{"default-runtime": "io.containerd.runc.v2", "runtimes": {"a": {"path": "/b/a"}}}')

    with pytest.raises(InstallerError, match=r"dockerd would crash.*; correct "):
        DockerdModel(PATH, OLD).find_route(has("io.containerd.runc.v2"), target)


FLAG = Flags("", {"x": "/b/x"})
CHOSEN = Flags("x", {"x": "/b/x"})
NAMES_X = '{"default-runtime": "x"}'
HAS_X = '{"runtimes": {"x": {"path": "/b/x"}}}'
IN_FILE = 'its default-runtime "x" is not defined'


@pytest.mark.parametrize("version", [OLD, NEW, None])
@pytest.mark.parametrize(
    ("text", "flags", "default", "broken"),
    [
        ("{}", Flags(), "runc", ("", "")),
        (NAMES_X, Flags(), "x", (IN_FILE, IN_FILE)),
        (NAMES_X, FLAG, "x", (IN_FILE, "")),  # 20.10 looks for it in the text alone
        (HAS_X, Flags("x"), "x", ("", "")),
        ("{}", CHOSEN, "x", ("", "")),
        ("{}", Flags("x"), "x", ('its --default-runtime "x" is not defined',) * 2),
    ],
)
def test_where_dockerd_looks_for_its_default_depends_on_who_named_it(
    text: str, flags: Flags, default: str, broken: tuple[str, str], version: tuple[int, ...] | None
) -> None:
    found = DockerdModel(PATH, version, flags).start(File(text.encode()))

    said = broken[0 if version == OLD else 1]
    assert (found.default, found.broken, found.ready) == (default, said, not said)
    assert found.undefined == (default if said else "")


@pytest.mark.parametrize("version", [OLD, NEW, None])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", f"read {PATH} as JSON (line 1, column 2: "),
        ("[]", f"read {PATH} as JSON (line 1, column 1: expected an object)"),
        ('{"runtimes": 7}', "runtimes is no object"),
        ('{"default-runtime": 7}', "default-runtime is no string"),
        ('{"runtimes": {"a": 7}}', "the runtime a is no object"),
    ],
)
def test_what_dockerd_cannot_read_keeps_it_from_its_start_and_a_reload_from_being_taken(
    text: str, words: str, version: tuple[int, ...] | None
) -> None:
    file = File(text.encode())

    started = DockerdModel(PATH, version).start(file)
    taken = DockerdModel(PATH, version).reload(has("runc"), file)

    assert (started.ready, started.broken.startswith(words)) == (False, True)
    assert isinstance(taken, Refusal)
    assert (taken.reason.startswith(words), taken.dies) == (True, False)


def test_a_byte_order_mark_is_too_much_for_the_old_dockerd() -> None:
    for version in (OLD, (23, 0, 6), NEW, None):
        assert DockerdModel(PATH, version).start(File(b"{}")).ready
        assert DockerdModel(PATH, version).start(File("\ufeff{}".encode())).ready is (version != OLD)
