"""The toolkits on the node: ours, NVIDIA's own of the same place, and a package's."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import tree_of
from installer.decide.doctor.facts import Toolkit, Version
from installer.decide.edits import Tree
from installer.decide.errors import InstallerError
from installer.decide.options import Options
from installer.host.files import Host
from installer.record.examine.programs import says, version_in
from installer.record.texts import is_file

PACKAGED: Final = (PurePosixPath("/usr/bin"), PurePosixPath("/usr/local/bin"))
CONFIG: Final = PurePosixPath("/etc/nvidia-container-runtime/config.toml")
RUNTIME: Final = "nvidia-container-runtime"
CLI: Final = "nvidia-container-cli"
CTK: Final = "nvidia-ctk"
HOOK: Final = "nvidia-cdi-hook"
# 1.0 has one line "version: 1.0.0"; later ones tell themselves and their library apart.
SAYS_CLI: Final = re.compile(r"^(?:cli-)?version:\s*(\S{1,60})", re.MULTILINE)
SAYS_LIBRARY: Final = re.compile(r"^lib-version:\s*(\S{1,60})", re.MULTILINE)
SAYS_CTK: Final = re.compile(r"\bCLI version\s+(\S{1,60})")


def toolkits(host: Host, options: Options) -> tuple[Toolkit, ...]:
    """Return them, ours first."""
    return tuple(_toolkits(host, options))


def _toolkits(host: Host, options: Options) -> Iterator[Toolkit]:
    layout = options.layout
    places = ((layout.toolkit, layout.config), *((place, CONFIG) for place in PACKAGED))
    for directory, config in places:
        if not any(is_file(host, directory / name) for name in (RUNTIME, CLI)):
            continue
        cli = says(host, directory / CLI, "--version")
        itself, library = _version(SAYS_CLI, cli), _version(SAYS_LIBRARY, cli)
        yield Toolkit(
            directory,
            library=library or itself,
            cli=itself,
            ctk=_version(SAYS_CTK, says(host, directory / CTK, "--version")),
            config=_tree(host, config),
            config_path=config,
            starts=_starts(host, directory),
        )


def _starts(host: Host, directory: PurePosixPath) -> PurePosixPath | None:
    """Return where the programs are that a toolkit of ours leads to; None for one that has its own."""
    target = host.link_target(directory / HOOK) or ""
    return PurePosixPath(target).parent if target.startswith("/") and directory not in PACKAGED else None


def _version(pattern: "re.Pattern[str]", said: str) -> Version:
    found = pattern.search(said[:2000])
    return version_in(found[1])[0] if found else ()


def _tree(host: Host, path: PurePosixPath) -> Tree | None:
    try:
        file = host.read(path)
        return tree_of(file, path) if file is not None else None
    except InstallerError:
        return None
