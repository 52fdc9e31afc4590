"""What containerd's CRI refuses only while it loads: ``config dump`` accepts all of that.

The rules are those of containerd's source from 1.6 to 2.3 (engine-facts.md#containerd-load).
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.config_text import Key, Tree, value_at
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN, merge, parse_dump
from installer.model.engine_spec import LoadError, LoadInput

IMAGES_PLUGIN: Final = "io.containerd.cri.v1.images"
PLUGINS_OF_CRI: Final = ("cri", V2_PLUGIN, V3_PLUGIN, IMAGES_PLUGIN)


def find_load_errors(given: LoadInput) -> Iterator[LoadError]:
    """Yield why containerd would come up without CRI, or not at all, with configs that it can read."""
    loading = _Loading.of(given)
    for find in (_find_registry_conflicts,):
        yield from find(loading)


class _Loading(Struct, frozen=True):
    """The settings that containerd loads with, and where they come from."""

    given: LoadInput
    whole: Tree  # all settings
    cri: Tree  # those of CRI's plugins, which 2.x has in three tables
    is_new: bool  # 2.x

    @classmethod
    def of(cls, given: LoadInput) -> "_Loading":
        """Return the settings as containerd prints them, or as the texts tell by themselves."""
        version = given.files.version
        if given.printed:
            whole = parse_dump(given.printed)
            is_new = whole.get("version") not in {1, 2}
            # 2.x keeps nothing but its server's settings under the older id.
            names: tuple[str, ...] = (V2_PLUGIN, V3_PLUGIN, IMAGES_PLUGIN) if is_new else (V2_PLUGIN,)
        else:
            whole = {}
            for tree in given.files.trees.values():
                whole = merge(whole, tree)
            is_new = version is None or version >= (2,)
            names = PLUGINS_OF_CRI
        cri: Tree = {}
        for name in names:
            cri = merge(cri, _table(whole, ("plugins", name)))
        return cls(given, whole, cri, is_new)

    def find_file(self, key: Key) -> PurePosixPath:
        """Return the file that sets a key of CRI: the last one read that does, else the root file."""
        for path, tree in reversed([*self.given.files.trees.items()]):
            if any(value_at(tree, ("plugins", name, *key)) is not None for name in PLUGINS_OF_CRI):
                return path
        return self.given.files.config


def _find_registry_conflicts(loading: _Loading) -> Iterator[LoadError]:
    """Yield the settings of registries that do not go with the directory that replaces them."""
    registry = _table(loading.cri, ("registry",))
    directory = registry.get("config_path")
    if not directory:
        return
    configs = _table(registry, ("configs",))
    tls = any(isinstance(one, Mapping) and one.get("tls") for one in configs.values())
    found = {"mirrors": bool(registry.get("mirrors")), "configs": tls and not loading.is_new}
    for name in (name for name, conflicts in found.items() if conflicts):
        key = f"registry.{name}" + (".tls" if name == "configs" else "")
        path = loading.find_file(("registry", name))
        yield LoadError(
            f"its CRI would not load: {path} sets {key}, and registry.config_path is set too",
            f"remove {key} from {path}, or empty registry.config_path",
        )


def _table(tree: Tree, key: Key) -> Tree:
    """Return a table, an empty one where there is none: containerd itself has checked the types."""
    found = value_at(tree, key)
    return found if isinstance(found, Mapping) else {}
