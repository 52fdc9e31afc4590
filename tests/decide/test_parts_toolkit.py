"""Which version is kept beside the new one, and what has the toolkit's name after an undo."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import dumps, loads
from installer.change.plan import plan_install
from installer.engines.reloading import in_progress
from installer.model.facts import ADOPTED, STAND_IN, ConfigRow, Facts, Record, ToolkitFacts, ToolkitRow
from installer.model.files import VERSIONS, Entry, File, Kind
from installer.model.options import Options
from installer.model.steps import RemoveToolkit, RemoveVersion, SwitchToolkit, WriteConfig
from installer.payload import plan as toolkit
from tests.decide.golden import Case, cases

CASE: Case = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")


def facts(found: ToolkitFacts, row: ToolkitRow | None) -> Facts:
    held = Record(toolkit=row)
    return replace(CASE.facts(CASE.before, held, {}), toolkit=found, held=held)


def version() -> str:
    final = plan_install(facts(ToolkitFacts(), None), CASE.options).final
    assert final is not None
    assert final.toolkit is not None
    return final.toolkit.version


NEW = version()


@pytest.mark.parametrize(
    ("link", "row", "previous"),
    [
        pytest.param("", None, None, id="the first one"),
        pytest.param(f"{VERSIONS}old", ToolkitRow("old", None, ""), "old", id="an upgrade"),
        pytest.param(f"{VERSIONS}old", ToolkitRow("old", "older", ""), "old", id="a second upgrade"),
        pytest.param(f"{VERSIONS}{NEW}", ToolkitRow(NEW, "old", ""), "old", id="the same once more"),
        pytest.param(f"{VERSIONS}{NEW}", ToolkitRow(NEW, None, ""), None, id="the same, and no other"),
        pytest.param(f"{VERSIONS}old", None, "old", id="one that no ledger knows"),
        pytest.param(f"{VERSIONS}{STAND_IN}", ToolkitRow("old", None, ""), None, id="what stood in for one"),
        pytest.param(f"{VERSIONS}old.bak", ToolkitRow(NEW, None, ""), None, id="an admin's copy"),
        pytest.param(f"{VERSIONS}../versions/old", ToolkitRow(NEW, None, ""), None, id="an admin's detour"),
        pytest.param(f"{VERSIONS}old/bin", ToolkitRow(NEW, None, ""), None, id="what is within one"),
    ],
)
def test_the_version_of_before_is_kept(link: str, row: ToolkitRow | None, previous: str | None) -> None:
    there = {name: dict[PurePosixPath, Entry]() for name in ("old", "older", NEW)}
    found = ToolkitFacts(Kind.LINK if link else Kind.ABSENT, link, there)

    plan = plan_install(facts(found, row), CASE.options)

    assert plan.final is not None
    assert plan.final.toolkit is not None
    assert (plan.final.toolkit.version, plan.final.toolkit.previous) == (NEW, previous)
    gone = {step.version for step in plan.steps if isinstance(step, RemoveVersion)}
    assert gone == {"old", "older", NEW} - {NEW, previous}
    assert loads(dumps(plan.final)) == plan.final


ROW = ToolkitRow("1", None, "")
OURS = ToolkitFacts(Kind.LINK, f"{VERSIONS}1")
THEIRS = ToolkitFacts(Kind.DIRECTORY)
ASIDE = replace(ROW, replaced=True)


@pytest.mark.parametrize(
    ("found", "row", "step"),
    [
        (OURS, ROW, SwitchToolkit(OURS.link, "")),
        (OURS, replace(ROW, linked="/their/toolkit"), SwitchToolkit(OURS.link, "/their/toolkit")),
        (replace(OURS, replaced=True), ASIDE, SwitchToolkit(OURS.link, None)),
        (ToolkitFacts(), ROW, None),
        (THEIRS, ROW, None),
        (THEIRS, replace(ROW, version=ADOPTED), RemoveToolkit()),
        (ToolkitFacts(), replace(ROW, version=ADOPTED), None),
        (ToolkitFacts(replaced=True), ASIDE, SwitchToolkit("", None)),
        (replace(THEIRS, superseded=True), None, SwitchToolkit(None, None)),
        (replace(THEIRS, superseded=True), ROW, SwitchToolkit(None, None)),
        (replace(OURS, superseded=True), None, None),
        (THEIRS, None, None),
        (ToolkitFacts(Kind.LINK, "elsewhere"), ROW, None),
        (ToolkitFacts(Kind.LINK, "elsewhere"), None, None),
    ],
)
def test_what_has_the_name_of_the_toolkit_after_an_undo(
    found: ToolkitFacts, row: ToolkitRow | None, step: SwitchToolkit | RemoveToolkit | None
) -> None:
    part = toolkit.undo(facts(found, row), Options(), (), ())

    assert list(part.steps) == ([step] if step else [])
    assert not part.obstacles


def test_another_in_its_name_keeps_what_stands_aside() -> None:
    found = ToolkitFacts(Kind.LINK, "elsewhere", replaced=True)

    part = toolkit.undo(facts(found, ASIDE), Options(), (), ())

    assert [error.problem for error in part.obstacles] == [
        "restore the toolkit directory of another installer (something else has its name)"
    ]


GOES, STAYS = PurePosixPath("/goes"), PurePosixPath("/stays")


def row(path: PurePosixPath, *ours: str) -> ConfigRow:
    return ConfigRow("docker", path, None, None, ours, ())


def test_while_steps_are_under_way_all_texts_of_ours_are_known() -> None:
    held = Record(configs=(row(GOES, "a"), row(STAYS, "b")), finished=True)
    final = Record(configs=(row(STAYS, "c"),), finished=True)
    write = WriteConfig("docker", STAYS, None, File(b"new"))

    now = in_progress(held, final, [write])

    assert {each.path: each.ours for each in now.configs} == {
        GOES: ("a",),
        STAYS: ("c", "b", File(b"new").digest),
    }
    assert not now.finished
    assert in_progress(held, held, []) is held
    assert in_progress(held, held, [write]) is not held
    assert in_progress(held, final, []) is not held
