"""Programs of the toolkit that are run on this machine."""

from pathlib import Path, PurePosixPath

from installer.host.programs import Ran, run_until_stopped


def test_one_that_takes_its_time_is_given_its_text_once_and_whole(tmp_path: Path) -> None:
    program, text = tmp_path / "slow", "specification\n" * 20_000  # more than a pipe holds
    program.write_text("#!/bin/sh\nsleep 0.5\nexec cat\n")
    program.chmod(0o755)

    assert run_until_stopped(PurePosixPath(program), (), text, timeout_s=60) == Ran(0, text, "")
