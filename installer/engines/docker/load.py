"""What dockerd refuses only when it loads or reloads: ``dockerd --validate`` accepts all of that.

The rule is that of dockerd's source from 20.10 to 28 (engine-facts.md#dockerd-load).
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.model.engine import HostReader, LoadError, LoadInput
from installer.model.files import Kind

PLUGINS: Final = "authorization-plugins"
RUN: Final = PurePosixPath("/run/docker")
SPEC_DIRECTORIES: Final = (PurePosixPath("/etc/docker/plugins"), PurePosixPath("/usr/lib/docker/plugins"))
MANAGED: Final = re.compile("[0-9a-f]{64}")  # the directory of a plugin that dockerd itself runs


def find_load_errors(given: LoadInput) -> Iterator[LoadError]:
    """Yield why dockerd would not start, nor live on after a reload, with a config that it can read."""
    flag = any(word.partition("=")[0] == "--exec-root" for word in given.words)
    for path, tree in given.files.trees.items():
        names = tree.get(PLUGINS)
        if flag or "exec-root" in tree or not isinstance(names, list):
            continue
        for name in names:
            if isinstance(name, str) and _is_missing(given.host, name):
                yield LoadError(
                    f"{path} names the authorization plugin {name}, which does not run",
                    f"start that plugin, or take it out of {PLUGINS} in {path}",
                )


def _is_missing(host: HostReader, name: str) -> bool:
    """Tell whether dockerd finds no plugin of a name; False where that is not known."""
    sockets = RUN / "plugins"
    if host.kind(RUN) is Kind.ABSENT or not name or "/" in name:
        return False  # the directory is not mounted here, or the plugin is a managed one
    if any(MANAGED.fullmatch(each) for each in host.names(sockets)):
        return False  # a managed plugin may have that name
    for directory in SPEC_DIRECTORIES:
        for place in (directory, directory / name):
            if any(host.kind(place / f"{name}{ending}") is Kind.FILE for ending in (".spec", ".json")):
                return False
    return all(host.is_dead(place / f"{name}.sock") for place in (sockets, sockets / name))
