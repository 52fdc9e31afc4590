"""CDI specifications at which an engine would wait for ever or crash while it loads.

containerd and CRI-O share the library of CDI. It opens each name of its suffixes in the directories of the
engine, and passes over other flaws of a specification.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.engines.pipes import is_pipe, list_names, make_error
from installer.errors import InstallerError
from installer.model.engine import HostReader, LoadError

DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
SUFFIXES: Final = frozenset((".json", ".yaml"))
# The library checks the characters between the first and the last: of the vendor, and then of the class.
CRASHING: Final = re.compile(r"[A-Za-z]/.+|[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z]")
VERSION: Final = re.compile(r"""cdiVersion["']?\s*:\s*["']?v?(?:0\.[1-8]|1\.[01])\.0\b""")
KIND: Final = re.compile(r"""^["']?kind["']?\s*:\s*["']?([^\s"'#]+)""", re.MULTILINE)


def find_cdi_flaws(host: HostReader, directories: Iterable[str], what: str) -> Iterator[LoadError]:
    """Yield an error for each specification with which an engine would not load.

    Args:
        host: the host.
        directories: the engine's directories for CDI specifications.
        what: the engine's failure, as the beginning of the error.
    """
    for directory in map(PurePosixPath, directories):
        for name in list_names(host, directory):
            path = directory / name
            if path.suffix not in SUFFIXES:
                continue
            if is_pipe(host, path):
                yield make_error(path, what)
                continue
            kind = _read_kind(host, path)
            if CRASHING.fullmatch(kind):
                problem = (
                    f"{what}: {path} has the kind {kind}, and a vendor or class of one letter crashes it"
                )
                yield LoadError(problem, f"give that kind longer words, or remove {path}")


def _read_kind(host: HostReader, path: PurePosixPath) -> str:
    """Return the kind of a specification; "" if unknown."""
    with suppress(InstallerError):
        file = host.read(path)
        if file is None:
            return ""
        text = file.content.decode(errors="replace")
        if not VERSION.search(text):  # the library refuses it before it looks at the kind
            return ""
        with suppress(ValueError, RecursionError):
            specification = json.loads(text)
            kind = specification.get("kind") if isinstance(specification, dict) else ""
            return str(kind or "")
        found = KIND.search(text)
        return found[1] if found else ""
    return ""
