"""The patches that take a guard away still fit; ``make mutants`` sees that each turns a test red."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import PROJECT, apply, patches, promise_of


@pytest.mark.parametrize("patch", patches(), ids=lambda patch: patch.stem)
def test_it_fits_and_names_tests_that_are_there(patch: Path) -> None:
    promise, words = promise_of(patch)

    apply(patch, PROJECT, "--check")

    assert promise.endswith(".")
    files = [word for word in words if word.startswith("tests/")]
    assert files
    assert [word for word in files if not (PROJECT / word).exists()] == []


def test_there_are_enough_of_them() -> None:
    assert len(patches()) >= 20
