"""The wrapper as shells run it: every argument and name arrives, nothing is forked, and no driver is no error."""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.payload.files import Variable, wrapper_script
from tests.engines import debs
from tests.support.neighbours import NOBODY

PATH = Variable("PATH", PurePosixPath(), prepended=True)
LIBRARY_PATH = Variable("LD_LIBRARY_PATH", PurePosixPath(), prepended=True)
CONFIG_PATH = Variable("NVIDIA_CTK_CONFIG_FILE_PATH", PurePosixPath("config.toml"))

NAME = "nvidia-container-runtime"
PRESENT = PurePosixPath("/")
ABSENT = PurePosixPath("/sys/module/nvidia of no node")

SHELLS = {"dash": ("dash",), "bash": ("bash", "--posix"), "busybox": ("busybox", "sh")}
ODD_NAMES = {
    "substitution": "a b$(touch owned)`touch owned`${HOME}",
    "quotes": 'it\'s "quoted"',
    "newline and backslash": "two\nlines\\nslash\\",
    "glob and operators": "*[a-z]?;&|<>#~!",
    "unicode": "größe-🦊",
}
ARGUMENTS = ["", " ", "a b", "--", "-c", "--log={}", "it's", '"', "\\", "$HOME", "`id`", "*", "\n", "\t"]


@cache
def shell_of(name: str) -> str:
    """Return a shell of the machine, or busybox from Debian: minimal images have it, few machines do."""
    if name == "busybox" and not debs.needed():
        return debs.program(name, "busybox-static", "bookworm")
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


@pytest.fixture(params=SHELLS.values(), ids=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> tuple[str, ...]:
    name, *options = request.param
    return shell_of(name), *options


def write_script(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


def write_wrapper(
    toolkit: Path,
    real: str,
    *,
    variables: Sequence[Variable] = (CONFIG_PATH, PATH),
    fallback: str | None = None,
    module: PurePosixPath = PRESENT,
) -> Path:
    write_script(toolkit / f"{NAME}.real", f"#!/bin/sh\n{real}\n")
    script = wrapper_script(
        NAME, variables, toolkit_dir=PurePosixPath(toolkit), fallback=fallback, module=module
    )
    return write_script(toolkit / NAME, script)


def run(*command: str | Path, **how: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **how)


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
def test_any_directory_can_hold_the_toolkit(shell: tuple[str, ...], tmp_path: Path, name: str) -> None:
    toolkit = tmp_path / name / "toolkit"
    low_level = write_script(tmp_path / name / "crun", '#!/bin/sh\nprintf %s "$1"\n')
    real = 'printf "%s\\0" "$NVIDIA_CTK_CONFIG_FILE_PATH" "${PATH%":$TAIL"}"'
    tail = os.environ["PATH"]

    wrapper = write_wrapper(toolkit, real, fallback=str(low_level))
    started = run(*shell, wrapper, cwd=tmp_path, env={"PATH": tail, "TAIL": tail})
    wrapper = write_wrapper(toolkit, real, fallback=str(low_level), module=ABSENT)
    without_driver = run(*shell, wrapper, "state", cwd=tmp_path)

    assert started.stdout.decode().split("\0") == [str(toolkit / "config.toml"), str(toolkit), ""]
    assert (started.returncode, started.stderr) == (0, b"")
    assert (without_driver.returncode, without_driver.stdout, without_driver.stderr) == (0, b"state", b"")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("arguments", [[], ARGUMENTS], ids=["none", "odd ones"])
def test_arguments_streams_open_files_and_the_exit_code_are_passed_on(
    shell: tuple[str, ...], tmp_path: Path, arguments: list[str]
) -> None:
    real = 'printf "%s\\0" "$#" "$@"; cat /dev/fd/3 /dev/fd/9; cat; echo problem >&2; exit 42'
    wrapper = write_wrapper(tmp_path, real, fallback="runc")
    passed = tmp_path / "passed"
    passed.write_text("open\n")
    opens = ("sh", "-c", 'exec 3<"$1" 9<"$1"; shift; exec "$@"', "sh", passed)

    ended = run(*opens, *shell, wrapper, *arguments, input=b"\xffno text\r\n")

    *words, rest = ended.stdout.split(b"\0")
    assert [word.decode() for word in words] == [str(len(arguments)), *arguments]
    assert (rest, ended.stderr) == (b"open\nopen\n\xffno text\r\n", b"problem\n")
    assert ended.returncode == 42


@pytest.mark.parametrize(
    ("module", "real", "said"), [(PRESENT, True, "real"), (ABSENT, True, "low"), (PRESENT, False, "low")]
)
def test_a_container_is_started_by_the_runtime_that_is_left_also_where_the_working_directory_has_vanished(
    shell: tuple[str, ...], tmp_path: Path, module: PurePosixPath, said: str, *, real: bool
) -> None:
    low_level = str(write_script(tmp_path / "crun", '#!/bin/sh\necho "low $1"; exit 7\n'))
    toolkit, gone = tmp_path / "toolkit", tmp_path / "gone"
    wrapper = write_wrapper(toolkit, 'echo "real $1"; exit 7', fallback=low_level, module=module)
    if not real:
        (toolkit / f"{NAME}.real").unlink()
    gone.mkdir()
    leave = ("sh", "-c", 'rmdir "$1"; shift; exec "$@"', "sh", gone)

    for ended in (run(*shell, wrapper, "kill"), run(*leave, *shell, wrapper, "kill", cwd=gone)):
        assert (ended.returncode, ended.stdout) == (7, f"{said} kill\n".encode())


def test_the_low_level_runtime_alone_is_started_to_tell_its_features(
    shell: tuple[str, ...], tmp_path: Path
) -> None:
    low_level = write_script(tmp_path / "crun", '#!/bin/sh\necho "low $1"\n')
    wrapper = write_wrapper(tmp_path / "toolkit", "echo real", fallback=str(low_level))

    assert run(*shell, wrapper, "features").stdout == b"low features\n"
    assert run(*shell, wrapper, "state", "features").stdout == b"real\n"


def test_a_bare_word_is_looked_up_outside_our_directory(shell: tuple[str, ...], tmp_path: Path) -> None:
    write_script(tmp_path / "toolkit" / "runc", "#!/bin/sh\necho ours\n")
    write_script(tmp_path / "bin" / "runc", '#!/bin/sh\necho "theirs $PATH"\n')
    wrapper = write_wrapper(tmp_path / "toolkit", "", fallback="runc", module=ABSENT)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    ended = run(*shell, wrapper, env={"PATH": path})

    assert ended.stdout.decode() == f"theirs {path}\n"


@pytest.mark.parametrize(
    ("variable", "given", "seen"),
    [
        (LIBRARY_PATH, {}, "{}"),
        (LIBRARY_PATH, {"LD_LIBRARY_PATH": ""}, "{}"),
        (LIBRARY_PATH, {"LD_LIBRARY_PATH": "/a b:/c"}, "{}:/a b:/c"),
        (PATH, {"PATH": ""}, "{}"),
        (PATH, {"PATH": "/a b:/bin"}, "{}:/a b:/bin"),
        (CONFIG_PATH, {"NVIDIA_CTK_CONFIG_FILE_PATH": "/else"}, "{}/config.toml"),
    ],
)
def test_a_search_path_grows_by_our_directory_and_never_by_the_working_directory(
    shell: tuple[str, ...], tmp_path: Path, variable: Variable, given: Mapping[str, str], seen: str
) -> None:
    wrapper = write_wrapper(tmp_path, f'printf %s "${{{variable.name}}}"', variables=(variable,))

    ended = run(*shell, wrapper, env=given)

    assert (ended.returncode, ended.stdout.decode()) == (0, seen.format(tmp_path))


def run_where_forks_fail(*command: str | Path) -> subprocess.CompletedProcess[bytes]:
    root = os.geteuid() == 0  # whom the limit does not bind
    other = {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if root else {}
    no_fork = partial(resource.setrlimit, resource.RLIMIT_NPROC, (0, 0))
    return run(*command, cwd="/", preexec_fn=no_fork, **other)


@pytest.mark.parametrize("fallback", [None, "runc"], ids=["hook", "runtime"])
def test_the_way_to_the_program_takes_no_fork(shell: tuple[str, ...], fallback: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # every user may enter it, unlike those of pytest
        wrapper = write_wrapper(Path(name), "echo reached", fallback=fallback)
        for words in (shell, ()):
            ended = run_where_forks_fail(*words, wrapper)
            assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"reached\n", b"")

        wrapper.write_text(f"#!/bin/sh\ncat /dev/null | cat\nexec {wrapper}.real\n")
        assert run_where_forks_fail(wrapper).stdout == b"", "one that forks is noticed"
