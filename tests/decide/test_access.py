"""What is wrong with the access to a file of the toolkit, in words."""

from pathlib import PurePosixPath

import pytest

from installer.model.files import Entry
from installer.payload.files import access_flaw

PROGRAM, LIBRARY = PurePosixPath("nvidia-ctk"), PurePosixPath("libnvidia-container.so.1")


@pytest.mark.parametrize(
    ("path", "entry", "flaw"),
    [
        pytest.param(PROGRAM, Entry(1, 0o755), "", id="a program"),
        pytest.param(LIBRARY, Entry(1, 0o644), "", id="a library"),
        pytest.param(
            PROGRAM, Entry(1, 0o644), "not executable by everybody", id="a program that nobody may start"
        ),
        pytest.param(
            PurePosixPath(".config"),
            Entry(0, 0o700, directory=True),
            "not accessible to everybody",
            id="a closed directory",
        ),
    ],
)
def test_a_file_of_the_toolkit_is_accessible_to_all_who_use_it(
    path: PurePosixPath, entry: Entry, flaw: str
) -> None:
    assert access_flaw(path, entry) == flaw
