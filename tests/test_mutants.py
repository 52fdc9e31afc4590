"""The patches that take a guard away still fit; ``make mutants`` sees that each turns a test red."""

from tests.mutants.__main__ import PROJECT, apply, patches, promise_of


def test_each_fits_and_names_tests_that_are_there() -> None:
    for patch in patches():
        promise, words = promise_of(patch)

        apply(patch, PROJECT, "--check")

        assert promise.endswith("."), patch
        files = [word for word in words if word.startswith("tests/")]
        assert files, patch
        assert [word for word in files if not (PROJECT / word).exists()] == [], patch
