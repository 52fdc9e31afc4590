"""What stands against the NRI plugin beside ``run``."""

from pathlib import PurePosixPath

import pytest

from installer.decide.data import replace
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts, PluginFile, ToolkitFacts
from installer.decide.inode import File, Meta
from installer.decide.nri.relay import script
from installer.decide.nri.wishes import Allowed, Nri
from installer.decide.options import Mode, Options
from installer.decide.parts import nri
from installer.decide.rows import ConfigRow, Record
from installer.decide.steps import WriteConfig

ALLOWED = (Allowed("operator", "management.nvidia.com/gpu"),)
BESIDE = Options(nri=Nri(allowed=ALLOWED, beside=True))


def engine(name: str, *version: int) -> EngineFacts:
    path = PurePosixPath("/x")
    return EngineFacts(name, path, None, None, (), path, "x.service", version=version or None)


def against(options: Options, *engines: EngineFacts) -> list[str]:
    facts = Facts(engines, {}, {}, frozenset(), (), ToolkitFacts(), Record())
    return [error.problem for error in nri.install(facts, options).obstacles]


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        pytest.param([("containerd", 2, 0, 8)], ["containerd 2.0.8 takes them and starts"], id="drops"),
        pytest.param([("crio", 1, 33, 1)], ["cri-o 1.33.1 takes them and starts"], id="CRI-O drops"),
        pytest.param([("docker", 28, 3, 0)], ["Docker by NRI (it has no NRI)"], id="has none"),
        pytest.param([("containerd", 2, 1, 9)], [], id="injects"),
        pytest.param([("crio", 1, 34, 0)], [], id="CRI-O injects"),
        pytest.param([("containerd",)], [], id="nobody knows yet"),
        pytest.param([], [], id="nobody asked"),
        pytest.param([("docker", 28, 3, 0), ("containerd", 2, 1, 9)], [], id="one of two"),
    ],
)
def test_a_plugin_that_no_engine_would_serve_is_refused(
    engines: list[tuple[str, *tuple[int, ...]]], words: list[str]
) -> None:
    found = against(BESIDE, *(engine(name, *version) for name, *version in engines))

    assert len(found) == len(words)
    assert [word for word, problem in zip(words, found, strict=True) if word not in problem] == []


def test_the_mode_asks_for_the_plugin_and_other_modes_do_not() -> None:
    dropping = engine("containerd", 2, 0, 8)

    assert against(replace(BESIDE, nri=Nri(allowed=ALLOWED), mode=Mode.NRI), dropping)
    assert not against(Options(), dropping)


DIRECTORY = PurePosixPath("/opt/nri/plugins")
PROGRAM = DIRECTORY / "10-toolkit-installer"
STARTED = replace(BESIDE, nri=replace(BESIDE.nri, preinstalled=True))
TEXT = script(STARTED.nri).encode()
ROW = ConfigRow(nri.ID, PROGRAM, None, None, (File(TEXT).digest,), ())


def found(
    now: File | None, *rows: ConfigRow, path: PurePosixPath = PROGRAM, lacking: tuple[str, ...] = ()
) -> Facts:
    facts = Facts(
        (engine("containerd", 2, 1, 9),),
        {PROGRAM: now, path: now if path == PROGRAM else None},
        dict.fromkeys([row.path for row in rows]),
        frozenset(),
        (),
        ToolkitFacts(),
        Record(configs=rows),
    )
    refused = tuple(InstallerError(problem, remedy="x", code="nri-unusable") for problem in lacking)
    return replace(facts, plugin=PluginFile(path, refused))


def of_mode(mode: int, content: bytes = TEXT) -> File:
    return File(content, Meta(mode))


@pytest.mark.parametrize(
    ("now", "rows", "written", "held"),
    [
        pytest.param(None, (), [True], [ROW], id="new"),
        pytest.param(of_mode(0o755), (ROW,), [], [ROW], id="as it should be"),
        pytest.param(of_mode(0o644), (ROW,), [True], [ROW], id="killed before it was made executable"),
        pytest.param(of_mode(0o755, b"x"), (ROW,), [True], [ROW], id="edited by others"),
        pytest.param(None, (ROW,), [True], [ROW], id="removed by others"),
        pytest.param(of_mode(0o755), (), [], [ROW], id="ours, of a ledger that was lost"),
        pytest.param(of_mode(0o755, b"x"), (), [], [], id="of another owner"),
    ],
)
def test_the_program_that_the_engine_starts_is_made_executable_under_its_own_name_alone(
    now: File | None, rows: tuple[ConfigRow, ...], written: list[bool], held: list[ConfigRow]
) -> None:
    part = nri.install(found(now, *rows), STARTED)

    writes = [step for step in part.steps if isinstance(step, WriteConfig)]
    assert [step.executable for step in writes] == written
    assert list(part.rows.configs) == held
    assert bool(part.obstacles) is (held == [])
    for step in (*writes, *(replace(each, before=each.after, after=each.before) for each in writes)):
        texts = [file for file in (step.before, step.after) if file]
        assert [file.meta.mode & 0o111 for file in texts] == [0] * len(texts)
        assert step.executable


WORDS = ("/usr/bin/containerd", "--log-level", "debug")
FOR_ONE = script(STARTED.nri, WORDS).encode()
ROW_FOR_ONE = replace(ROW, ours=(File(FOR_ONE).digest,))


@pytest.mark.parametrize(
    ("now", "row", "words", "then", "why"),
    [
        pytest.param(TEXT, ROW, WORDS, FOR_ONE, [nri.RENEWED], id="its command line is known by now"),
        pytest.param(FOR_ONE, ROW_FOR_ONE, WORDS, FOR_ONE, [], id="the same engine"),
        pytest.param(FOR_ONE, ROW_FOR_ONE, (), FOR_ONE, [], id="it does not run for the moment"),
        pytest.param(b"x", ROW_FOR_ONE, (), TEXT, [nri.CHANGED], id="edited while it does not run"),
        pytest.param(
            FOR_ONE,
            ROW_FOR_ONE,
            ("/usr/bin/containerd",),
            script(STARTED.nri, ("/usr/bin/containerd",)).encode(),
            [nri.RENEWED],
            id="started in another way",
        ),
    ],
)
def test_the_program_is_for_the_engine_that_runs_and_stays_while_none_does(
    now: bytes, row: ConfigRow, words: tuple[str, ...], then: bytes, why: list[str]
) -> None:
    facts = replace(found(of_mode(0o755, now), row), plugin=PluginFile(PROGRAM, (), words))

    part = nri.install(facts, STARTED)

    assert [step.after and step.after.content for step in part.steps if isinstance(step, WriteConfig)] == (
        [then] if why else []
    )
    assert list(part.why) == why
    assert [each.ours for each in part.rows.configs] == [(File(then).digest,)]


def test_a_program_that_leads_elsewhere_is_written_anew_while_no_engine_runs() -> None:
    moved = replace(STARTED, nri=replace(STARTED.nri, socket=PurePosixPath("/run/other/nri.sock")))
    facts = replace(found(of_mode(0o755, FOR_ONE), ROW_FOR_ONE), plugin=PluginFile(PROGRAM))

    part = nri.install(facts, moved)

    assert [step.after for step in part.steps if isinstance(step, WriteConfig)] == [
        File(script(moved.nri).encode(), of_mode(0o644).meta)
    ]


@pytest.mark.parametrize("options", [BESIDE, Options(), replace(STARTED, nri=Nri(preinstalled=True))])
def test_a_program_that_is_not_asked_for_any_more_goes(options: Options) -> None:
    part = nri.install(replace(found(of_mode(0o755), ROW), plugin=None), options)

    assert [(step.path, step.after) for step in part.steps if isinstance(step, WriteConfig)] == [
        (PROGRAM, None)
    ]
    assert not part.rows.configs


def test_a_program_that_gets_another_name_leaves_none_under_the_first() -> None:
    path = DIRECTORY / "20-other"

    part = nri.install(found(of_mode(0o755), ROW, path=path), STARTED)

    writes = [(step.path, step.after is None) for step in part.steps if isinstance(step, WriteConfig)]
    assert writes == [(PROGRAM, True), (path, False)]
    assert [row.path for row in part.rows.configs] == [path]


def test_an_undo_removes_what_is_ours_and_leaves_what_somebody_has_put_in_its_place() -> None:
    ours, theirs = nri.undo(found(of_mode(0o755), ROW)), nri.undo(found(of_mode(0o755, b"x"), ROW))

    assert [step.after for step in ours.steps if isinstance(step, WriteConfig)] == [None]
    assert ours.in_progress == theirs.in_progress == (ROW,)
    assert not theirs.steps


def test_what_keeps_the_engine_from_starting_a_program_keeps_the_install_from_beginning() -> None:
    part = nri.install(found(None, lacking=("start it",)), STARTED)

    assert [error.problem for error in part.obstacles] == ["start it"]
