"""The low-level runtime, such as runc, that our runtimes call."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.engines.config_texts import text_of, toolkit_runtimes
from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.programs import can_be_started
from installer.model.facts import Record
from installer.model.files import PATH, Kind, Layout

USUAL: Final = ("runc", "crun")


def find_substitute_runtime(host: Host, record: Record) -> PurePosixPath | None:
    """Find the path of the runtime wrapped by our runtimes, as the host finds it; None if not found."""
    words = toolkit_runtimes(record.toolkit.rendered) if record.toolkit else ()
    for path in _list_candidates((*words, *USUAL)):
        if host.kind(path) is Kind.FILE:
            return path
    return None


def find_low_level_runtime(host: Host, layout: Layout, record: Record) -> PurePosixPath | None:
    """Find the runtime called by our runtimes under the present config.toml; None if not found."""
    if record.toolkit is None or record.cdi is not None:
        return None
    words = toolkit_runtimes(record.toolkit.rendered)
    with suppress(InstallerError):  # the plan reports a file that cannot be parsed
        file = host.read(layout.config)
        if file:
            words = toolkit_runtimes(text_of(file, layout.config))
    for path in _list_candidates(words or USUAL):
        if can_be_started(host, path):
            return path
    return None


def _list_candidates(words: Collection[str]) -> Iterator[PurePosixPath]:
    """Yield the paths of programs: a path itself, a name in each directory of the PATH."""
    for word in words:
        if word.startswith("/"):
            yield PurePosixPath(word)
        else:
            for directory in PATH:
                yield directory / word
