"""The output of ``crio config``: the settings of CRI-O's next start, files, variables and flags included."""

import re
import tomllib
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from installer.config_text import Tree

# CRI-O prints a setting as a comment if the setting is a default, its own or that of storage.conf.
_SETTING: Final = re.compile(
    r'^(?:# )?(root|runroot|storage_driver|listen|default_runtime|cgroup_manager) = "(.+)"$', re.MULTILINE
)
# runtime-handler is the name in the documentation of the table.
_RUNTIME: Final = re.compile(
    r"^(?:# )?\[crio\.runtime\.runtimes\.(?!runtime-handler\])([^\]\"]+)\]$", re.MULTILINE
)
_PLACES: Final = ("root", "runroot", "listen")


class PrintedConfig(Struct, frozen=True):
    """The settings printed by ``crio config``."""

    changed: Tree  # the settings that differ from the defaults
    places: Mapping[str, str]  # by the name of the setting
    runtimes: frozenset[str]  # the names, with the runtimes that CRI-O has built in
    default: str = ""  # the default runtime; "" if not printed
    cgroup_driver: str = ""
    # "" if CRI-O leaves the choice to containers/storage (engine-facts.md#crio-storage).
    storage_driver: str = ""

    @classmethod
    def read(cls, output: str) -> "PrintedConfig":
        """Parse the settings in an output, "" without an output of the program."""
        settings = dict(_SETTING.findall(output))
        return cls(
            changed=read_changed(output),
            places={name: settings[name] for name in _PLACES if name in settings},
            runtimes=frozenset(_RUNTIME.findall(output)),
            default=settings.get("default_runtime", ""),
            cgroup_driver=settings.get("cgroup_manager", ""),
            storage_driver=settings.get("storage_driver", ""),
        )


def read_changed(output: str) -> Tree:
    """Return the printed settings that differ from CRI-O's defaults: lines without a comment sign."""
    try:
        return tomllib.loads(output)
    except (tomllib.TOMLDecodeError, RecursionError):  # a release that prints a value without escaping it
        return {}
