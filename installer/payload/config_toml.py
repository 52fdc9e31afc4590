"""The toolkit's config.toml: NVIDIA's document, and what an administrator has made of it since."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Final

from installer.config_text import ABSENT, Key, Syntax, Tree, Value, WantedKey, dotted, leaves, same, value_at
from installer.config_text.change import apply, parse
from installer.errors import InstallerError
from installer.model.facts import DriverFacts
from installer.model.options import ToolkitConfig

# The config.toml of a toolkit of the host's own, such as NVIDIA's package.
HOST_CONFIG: Final = PurePosixPath("/etc/nvidia-container-runtime/config.toml")
ENVVAR_WHEN_UNPRIVILEGED: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
# The flags of settings; other settings are edited in the file, where edits are kept.
FLAGS: Final = {
    ENVVAR_WHEN_UNPRIVILEGED: f"--[no-]{ENVVAR_WHEN_UNPRIVILEGED}",
    "accept-nvidia-visible-devices-as-volume-mounts": "--[no-]accept-nvidia-visible-devices-as-volume-mounts",
    "nvidia-container-cli.root": "--driver-root",
}
# Settings that go by what is installed: programs of the toolkit and of the node, and how ours are started.
NOT_COMPARED: Final = frozenset({
    "nvidia-container-cli.ldconfig",
    "nvidia-container-cli.path",
    "nvidia-container-runtime.runtimes",
    "nvidia-container-runtime-hook.path",
    "nvidia-container-runtime-hook.skip-mode-detection",
    "nvidia-ctk.path",
})  # fmt: skip


def is_hardened(host_config: str) -> bool:
    """Tell whether the host's config.toml forbids unprivileged containers to choose GPUs by a variable."""
    with suppress(InstallerError):
        return parse(host_config, Syntax.TOML, name=str(HOST_CONFIG)).get(ENVVAR_WHEN_UNPRIVILEGED) is False
    return False


def explain_host_settings(host_config: str, installed: str, place: PurePosixPath) -> Iterator[str]:
    """Explain in notes which settings of the host's config.toml the installed one does not have.

    Args:
        host_config: The text of the host's config.toml, "" for none.
        installed: The text of our config.toml.
        place: The path of our config.toml.
    """
    try:
        theirs = parse(host_config, Syntax.TOML, name=str(HOST_CONFIG))
    except InstallerError:  # no toolkit can read it
        return
    ours = parse(installed, Syntax.TOML, name=str(place))
    without_flag = []
    for key, value in leaves(theirs):
        name = dotted(key)
        if isinstance(value, Mapping) or name in NOT_COMPARED or same(value_at(ours, key), value):
            continue
        if name in FLAGS:
            yield f"{name} is not as in the host's {HOST_CONFIG}: {FLAGS[name]} sets it"
        else:
            without_flag.append(name)
    if without_flag:
        names = ", ".join(sorted(without_flag))
        yield f"not as in the host's {HOST_CONFIG}: {names}; edit {place} afterwards, where edits are kept"


def config_tree(
    config: ToolkitConfig, driver: DriverFacts, *, toolkit_dir: PurePosixPath, low_level: Sequence[str]
) -> Tree:
    """Return the document of config.toml for this node, before any edit of an administrator."""
    # On Debian sbin/ldconfig is a script that no container can run.
    ldconfig_name = "ldconfig.real" if driver.ldconfig_real else "ldconfig"
    ldconfig = PurePosixPath(driver.root, "sbin", ldconfig_name)
    # SUSE gives the device nodes to the group video.
    user = "root:video" if driver.suse else ""
    document: dict[str, Value] = {
        "accept-nvidia-visible-devices-as-volume-mounts": config.accept_volume_mounts,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": config.accept_envvar_when_unprivileged,
        "disable-require": False,
        "supported-driver-capabilities": "compat32,compute,display,graphics,ngx,utility,video",
        "swarm-resource": "",
        "nvidia-container-cli": {
            "debug": config.cli_debug,
            "environment": [],
            "ldcache": "",
            # @ means the host's own program: anybody could have put a program into a container's image.
            "ldconfig": f"@{ldconfig}",
            "load-kmods": True,
            "no-cgroups": False,
            "path": str(toolkit_dir / "nvidia-container-cli"),
            "root": driver.root,
            "user": user,
        },
        "nvidia-container-runtime": {
            "debug": config.runtime_debug,
            "log-level": config.log_level,
            "mode": config.mode,
            "runtimes": list(low_level),
            "modes": {
                "cdi": {
                    "annotation-prefixes": list(config.cdi_annotation_prefixes),
                    "default-kind": config.cdi_default_kind,
                    "spec-dirs": ["/etc/cdi", "/var/run/cdi"],
                },
                "csv": {"mount-spec-path": "/etc/nvidia-container-runtime/host-files-for-container.d"},
                "legacy": {"cuda-compat-mode": "ldconfig"},
            },
        },
        "nvidia-container-runtime-hook": {
            "path": str(toolkit_dir / "nvidia-container-runtime-hook"),
            "skip-mode-detection": config.skip_mode_detection,
        },
        "nvidia-ctk": {"path": str(toolkit_dir / "nvidia-ctk")},
    }
    if config.features:
        document["features"] = _nest_features(config.features)
    return document


def render_config(tree: Tree, before: str = "") -> str:
    """Return the text of config.toml for the document ``tree``.

    ``before`` is the text of an earlier run, returned unchanged if the document is the same.
    """
    with suppress(InstallerError):
        if same(parse(before, Syntax.TOML, name="config.toml"), tree):
            return before
    return "\n".join(_render_lines(tree, "", "")) + "\n"


def _render_lines(tree: Tree, table: str, indent: str) -> Iterator[str]:
    """Yield the lines of ``tree`` in NVIDIA's order: sorted, scalars first, a blank line before tables."""
    # Loading tomlkit takes as long as all edits together; a start that changes nothing renders nothing.
    import tomlkit

    nested = {key: value for key, value in tree.items() if isinstance(value, Mapping)}
    for key in sorted(tree.keys() - nested.keys()):
        yield f"{indent}{tomlkit.key(key).as_string()} = {tomlkit.item(tree[key]).as_string()}"
    for key in sorted(nested):
        name = f"{table}{tomlkit.key(key).as_string()}"
        yield f"\n{indent}[{name}]"
        yield from _render_lines(nested[key], f"{name}.", f"{indent}  ")


def carry_over(
    previous_rendered: str, installed_now: str, rendered: str, *, name: str
) -> tuple[str, tuple[str, ...]]:
    """Return the new config.toml with an administrator's edits, and the dotted names of the edited keys.

    The result is the text ``installed_now`` with all comments and the layout. A key with the unchanged
    value of ``previous_rendered`` gets the value of ``rendered``. Where both sides changed a key, the
    administrator's value stays.

    Raises:
        InstallerError: ``installed_now`` does not parse; an upgrade must not discard this text.
    """
    installed = _parse_installed(installed_now, name)
    before = parse(previous_rendered, Syntax.TOML, name=name)
    after = parse(rendered, Syntax.TOML, name=name)
    wanted_keys = []
    for key in _keys(before, after):
        edited = not same(value_at(before, key), value_at(installed, key))
        if edited or _has_value_above(installed, key):
            continue
        value = value_at(after, key)
        wanted_keys.append(WantedKey(key, ABSENT if value is None else value))
    text, _ = apply(installed_now, wanted_keys, Syntax.TOML, name=name)
    return text, edited_keys(rendered, text, name=name)


def _has_value_above(tree: Tree, key: Key) -> bool:
    """Tell whether an administrator's value replaces a table above ``key``."""
    for depth in range(1, len(key)):
        above = value_at(tree, key[:depth])
        if above is not None and not isinstance(above, Mapping):
            return True
    return False


def edited_keys(rendered: str, installed_now: str, *, name: str) -> tuple[str, ...]:
    """Return the dotted names of the keys edited since ``rendered``.

    Raises:
        InstallerError: ``installed_now`` does not parse.
    """
    installed = _parse_installed(installed_now, name)
    ours = parse(rendered, Syntax.TOML, name=name)
    edited = []
    for key in _keys(ours, installed):
        if not same(value_at(ours, key), value_at(installed, key)):
            edited.append(key)
    return tuple(dotted(key) for key in edited)


def _nest_features(names: Sequence[str]) -> Tree:
    tree: dict[str, Any] = {}
    for name in names:
        inner = [each for each in names if each.startswith(f"{name}.")]
        if inner:
            problem = f"opt in to the features {name} and {inner[0]} (config.toml cannot hold both)"
            remedy = f"opt in to {name} alone, or to {inner[0]} alone"
            raise InstallerError(problem, remedy=remedy, code="toolkit-config-unusable")
        *parents, last = name.split(".")
        table = tree
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = True
    return tree


def _parse_installed(text: str, name: str) -> Tree:
    try:
        return parse(text, Syntax.TOML, name=name)
    except InstallerError as error:
        problem = f"tell what was edited in {name} (it is not valid TOML)"
        remedy = "correct it, or delete it to have it written anew"
        raise InstallerError(problem, remedy=remedy, code="toolkit-config-unusable") from error


def _keys(one: Tree, other: Tree) -> list[Key]:
    """Return the sorted keys of the values of both trees.

    If a key has a value in the first tree and a table in the second, or the reverse, the keys inside the
    table are left out.
    """
    found: set[Key] = set()
    for tree in (one, other):
        for key, value in leaves(tree):
            # The toolkit ignores an empty table.
            if not isinstance(value, Mapping):
                found.add(key)
    return sorted(key for key in found if not _is_inside(key, found))


def _is_inside(key: Key, keys: set[Key]) -> bool:
    """Tell whether ``keys`` has a key above ``key``."""
    return any(key[:depth] in keys for depth in range(1, len(key)))
