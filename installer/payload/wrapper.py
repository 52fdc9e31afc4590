"""A wrapper is a script between an engine and a program we ship that costs one shell and no fork.

It speaks POSIX sh and nothing more, for a node's /bin/sh may be dash, busybox ash or bash. Nothing in
it depends on the working directory: an engine may start a runtime in a bundle that is already gone.
"""

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

# A directory while the driver is loaded: `test` sees it without the fork that reading /proc/modules takes.
NVIDIA_MODULE: Final = PurePosixPath("/sys/module/nvidia")


class Variable(Struct, frozen=True):
    """An environment variable that a wrapper sets to ``path``, relative to the toolkit directory.

    ``prepended`` puts it before what the variable holds, as one more entry of a search path.
    """

    name: str
    path: PurePosixPath
    prepended: bool = False


def real_name(name: str) -> str:
    """Return the name under which the program behind the wrapper ``name`` is installed."""
    return f"{name}.real"


def wrapper_script(
    name: str,
    variables: Sequence[Variable],
    *,
    toolkit_dir: PurePosixPath,
    fallback: str | None = None,
    module: PurePosixPath = NVIDIA_MODULE,
) -> str:
    """Return the script installed as ``name``: it becomes ``name``.real with ``variables`` set.

    ``fallback`` makes it a runtime: without the driver's kernel module, or without ``name``.real, the
    low-level runtime of that path or bare word runs instead, so that containers that need no GPU start
    and those that run can be stopped. A bare word is looked up before our directory joins ``PATH``. Nothing
    is said on stderr: containerd reads it with the answer (engine-facts.md#containerd-runtime-stderr).

    The program is named by its path in ``toolkit_dir``, the link that switches versions, and not in the
    directory of one version: a shell that began to read the wrapper of the old version finds the program
    of the new one instead of none, even when the old version is gone by then. It also keeps the text free
    of the version's name, which is a digest over this text.
    """
    real = shlex.quote(str(toolkit_dir / real_name(name)))
    lines = ["#!/bin/sh"]
    if fallback is not None:
        lines.append(
            f'[ -d {shlex.quote(str(module))} ] && [ -x {real} ] || exec {shlex.quote(fallback)} "$@"'
        )
    lines += [_export(variable, toolkit_dir) for variable in variables]
    lines.append(f'exec {real} "$@"')
    return "\n".join(lines) + "\n"


def _export(variable: Variable, toolkit_dir: PurePosixPath) -> str:
    path = shlex.quote(str(toolkit_dir / variable.path))
    # An empty entry of a search path is the working directory, so none may be left where nothing was.
    rest = f'"${{{variable.name}:+:${variable.name}}}"' if variable.prepended else ""
    return f"export {variable.name}={path}{rest}"
