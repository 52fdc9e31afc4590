"""A config that its owner puts back after an undo that had to leave something: it is ours again."""

from dataclasses import replace

import pytest

from installer.decide.former import after_undo, revived
from installer.decide.inode import File
from installer.decide.rows import Record
from tests.decide.golden import Case, Disk, cases, installed, written

CASES = [
    next(case for case in cases(engine) if case.path.name == name)
    for engine, name in (("containerd", "kubeadm-tabs"), ("docker", "artifactory-two-hundred-registries"))
]
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.engine)


def _undone(case: Case) -> tuple[Record, Record, Disk]:
    """Return what was held, what an undo has left that took everything but the toolkit, and the configs of before."""
    plan, _ = installed(case, case.before, Record())
    assert plan.final is not None
    held = plan.final
    return held, after_undo(held, replace(held, engines=(), configs=())), written(case.before, plan)


def _edited(file: File | None) -> File:
    """Return a text to which its owner has added an empty line since."""
    assert file is not None
    return replace(file, content=file.content + b"\n")


@EACH
def test_a_config_as_we_wrote_it_is_ours_again_with_its_engine(case: Case) -> None:
    held, left, disk = _undone(case)

    again = revived(left, disk)

    assert (again.engines, again.configs) == (held.engines, held.configs)


@EACH
def test_a_copy_that_its_owner_has_edited_since_is_ours_again(case: Case) -> None:
    held, left, disk = _undone(case)

    again = revived(left, {path: _edited(file) for path, file in disk.items()})

    assert {row.path for row in again.configs} == {row.path for row in held.configs if row.syntax}


@EACH
def test_what_the_undo_left_and_what_is_not_there_are_not_ours(case: Case) -> None:
    held, left, _ = _undone(case)
    nothing: Disk = {row.path: None for row in held.configs}

    assert revived(left, case.before) == left
    assert revived(left, nothing) == left


@EACH
def test_a_text_that_the_undo_itself_has_written_is_not_taken_for_one_that_was_put_back(case: Case) -> None:
    held, _, disk = _undone(case)
    kept = tuple(replace(row, edits=()) for row in held.configs)  # which has them as digests all the same
    left = after_undo(held, replace(held, configs=kept))

    assert revived(left, disk) == left
