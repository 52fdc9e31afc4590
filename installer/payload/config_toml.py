"""The toolkit's config.toml: NVIDIA's document, and what an administrator has made of it since."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from installer.config_text import ABSENT, Key, Syntax, Tree, Value, Want, dotted, leaves, same, value_at
from installer.config_text.change import apply, parse
from installer.errors import InstallerError
from installer.model.facts import DriverFacts
from installer.model.options import ToolkitConfig


def config_tree(
    config: ToolkitConfig, driver: DriverFacts, *, toolkit_dir: PurePosixPath, low_level: Sequence[str]
) -> Tree:
    """Return what config.toml says."""
    # On Debian sbin/ldconfig is a script that no container can run. On SUSE nodes belong to the group video.
    ldconfig = PurePosixPath(driver.root, "sbin", "ldconfig.real" if driver.ldconfig_real else "ldconfig")
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
            # @ means the host's own program: one from the image could be anybody's.
            "ldconfig": f"@{ldconfig}",
            "load-kmods": True,
            "no-cgroups": False,
            "path": str(toolkit_dir / "nvidia-container-cli"),
            "root": driver.root,
            "user": "root:video" if driver.suse else "",
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
    """Return the text of a config.toml that says ``tree``: the text ``before`` of ours where that says it."""
    with suppress(InstallerError):
        if same(parse(before, Syntax.TOML, name="config.toml"), tree):
            return before
    return "\n".join(_render_lines(tree, "", "")) + "\n"


def _render_lines(tree: Tree, table: str, indent: str) -> Iterator[str]:
    """Yield what ``tree`` says as NVIDIA writes it: sorted, scalars first, a blank line before each table."""
    # Loading it takes as long as all of the edits do; a start that changes nothing renders nothing.
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

    The text is ``installed_now``, comments and layout included, in which every key that still holds what
    was ``previous_rendered`` holds what is ``rendered`` now. Where both sides changed a key, the
    administrator's value stays. InstallerError: it does not parse; an upgrade must not throw it away.
    """
    installed = _parse_installed(installed_now, name)
    before = parse(previous_rendered, Syntax.TOML, name=name)
    after = parse(rendered, Syntax.TOML, name=name)
    wants = [
        Want(key, ABSENT if (value := value_at(after, key)) is None else value)
        for key in _keys(before, after)
        if same(value_at(before, key), value_at(installed, key))
        # Whoever put a value in the place of a table meant it.
        and all(
            (above := value_at(installed, key[:depth])) is None or isinstance(above, Mapping)
            for depth in range(1, len(key))
        )
    ]
    text, _ = apply(installed_now, wants, Syntax.TOML, name=name)
    return text, edited_keys(rendered, text, name=name)


def edited_keys(rendered: str, installed_now: str, *, name: str) -> tuple[str, ...]:
    """Return the dotted names of keys edited since ``rendered``; InstallerError: the file does not parse."""
    installed = _parse_installed(installed_now, name)
    ours = parse(rendered, Syntax.TOML, name=name)
    keys = _keys(ours, installed)
    return tuple(dotted(key) for key in keys if not same(value_at(ours, key), value_at(installed, key)))


def _nest_features(names: Sequence[str]) -> Tree:
    tree: dict[str, Any] = {}
    for name in names:
        for inner in (each for each in names if each.startswith(f"{name}.")):
            problem = f"opt in to the features {name} and {inner} (config.toml cannot hold both)"
            remedy = f"opt in to {name} alone, or to {inner} alone"
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
    """Return where the trees hold something; where only one of them has a table, its keys are one key."""
    # An empty table says nothing to the toolkit.
    held = {key for tree in (one, other) for key, value in leaves(tree) if not isinstance(value, Mapping)}
    return sorted(key for key in held if not any(key[:depth] in held for depth in range(1, len(key))))
