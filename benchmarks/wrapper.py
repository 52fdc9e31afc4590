"""What a wrapper costs per runtime call, over starting the program itself, with dash as the shell.

The same loop measures a wrapper of the shape NVIDIA's installer writes: a pipe to find the module and a
shell that stays as the parent. Calls take turns, and a cost is the median of the differences within a
turn, so that a busy machine slows all of them alike; of several rounds the quietest counts, because what
else runs on the machine only ever adds.
"""

import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from statistics import median
from time import perf_counter

from benchmarks.rows import Row
from installer.payload.files import EXECUTABLES, wrapper_script

NAME = "nvidia-container-runtime"
OVER_UPSTREAM = 0.4
ROUNDS = 6
CALLS_PER_ROUND = 50
WARM_UP_CALLS = 20
# A node has some hundred modules loaded; nvidia is among the first, for it was loaded late.
MODULES = "".join(f"module_{number} 16384 0 - Live 0x0000000000000000\n" for number in range(150))

UPSTREAM = """\
#! /bin/sh
cat {modules} | grep -e "^nvidia " >/dev/null 2>&1
if [ "${{?}}" != "0" ]; then
	echo "nvidia driver modules are not yet loaded, invoking runc directly" >&2
	exec runc "$@"
fi
NVIDIA_CTK_CONFIG_FILE_PATH={toolkit}/.config/nvidia-container-runtime/config.toml \\
PATH={toolkit}:$PATH \\
	{toolkit}/nvidia-container-runtime.real \\
		"$@"
"""


def measure() -> list[Row]:
    """Return the cost of a wrapper over that of a wrapper of NVIDIA's shape."""
    with tempfile.TemporaryDirectory() as name:
        programs = _programs(PurePosixPath(name))
        for _ in range(WARM_UP_CALLS):
            _turn(programs)
        rounds = [[_turn(programs) for _ in range(CALLS_PER_ROUND)] for _ in range(ROUNDS)]
    ours = min(median(ours - bare for bare, ours, _ in turns) for turns in rounds)
    upstream = min(median(upstream - bare for bare, _, upstream in turns) for turns in rounds)
    name = f"wrapper cost per runtime call, dash, over one of NVIDIA's shape ({upstream:.2f} ms)"
    return [Row(name, ours / upstream, OVER_UPSTREAM, "x", f"{upstream:.2f} ms")]


def _programs(toolkit: PurePosixPath) -> tuple[Path, Path, Path]:
    """Write the program, our wrapper of it and one of NVIDIA's shape, on a node that has the driver."""
    bare = Path(toolkit / f"{NAME}.real")
    shutil.copy(_found("true"), bare)
    modules = Path(toolkit / "modules")
    modules.write_text(f"nvidia 62255104 0 - Live 0x0000000000000000\n{MODULES}")
    (variables,) = (executable.variables for executable in EXECUTABLES if executable.name == NAME)
    ours = wrapper_script(NAME, variables, toolkit_dir=toolkit, fallback="runc", module=toolkit)
    upstream = UPSTREAM.format(modules=modules, toolkit=toolkit)
    return bare, _script(Path(toolkit / NAME), ours), _script(Path(toolkit / "upstream"), upstream)


def _script(path: Path, text: str) -> Path:
    _, _, body = text.partition("\n")
    path.write_text(f"#!{_found('dash')}\n{body}")
    path.chmod(0o755)
    return path


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"the wrapper benchmark needs {program}; install it")
    return path


def _turn(programs: tuple[Path, Path, Path]) -> tuple[float, float, float]:
    bare, ours, upstream = programs
    return _call_ms(bare), _call_ms(ours), _call_ms(upstream)


def _call_ms(program: Path) -> float:
    started = perf_counter()
    pid = os.posix_spawn(program, [str(program), "--version"], os.environ, file_actions=_QUIET)
    _, status = os.waitpid(pid, 0)
    taken = perf_counter() - started
    assert status == 0, program
    return taken * 1000


_QUIET = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
