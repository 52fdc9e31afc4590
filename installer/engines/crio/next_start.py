"""The settings of CRI-O's next start: its files, then the variables and the flags of its unit."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.config_text import Key, Tree, Value, value_at
from installer.engines.crio.printed import PrintedConfig
from installer.model.engine import HostReader, LoadInput

RUNTIMES: Final[Key] = ("crio", "runtime", "runtimes")
# The parts of a runtime in ``--runtimes``, divided by colons, and the least number of parts.
RUNTIME_PARTS: Final = ("", "runtime_path", "runtime_root", "runtime_type")
LEAST_PARTS: Final = 3
RELOAD_UNIT: Final = "in the unit of CRI-O and run systemctl daemon-reload"


class Setting(Struct, frozen=True):
    """A key of CRI-O's config, with the overruling flag and variable."""

    key: Key
    flag: str
    variable: str = ""
    is_list: bool = False


def _make_setting(
    table: str, name: str, *, flag: str = "", variable: str | None = None, is_list: bool = False
) -> Setting:
    """Return a setting; most flags and variables have the name of the key."""
    if variable is None:
        variable = f"CONTAINER_{name.upper()}"
    return Setting(
        key=(*table.split("."), name), flag=flag or name.replace("_", "-"), variable=variable, is_list=is_list
    )


# The settings of internal/criocli/criocli.go of 1.37.0 that load.py or config.py read.
SETTINGS: Final = (
    _make_setting("crio", "root"),
    _make_setting("crio", "runroot"),
    _make_setting("crio", "imagestore"),
    _make_setting("crio", "storage_driver"),
    _make_setting("crio", "log_dir"),
    _make_setting("crio", "version_file"),
    _make_setting("crio", "version_file_persist"),
    _make_setting("crio.api", "listen"),
    _make_setting("crio.api", "stream_port"),
    _make_setting("crio.api", "stream_idle_timeout", variable="STREAM_IDLE_TIMEOUT"),
    _make_setting("crio.runtime", "default_runtime"),
    _make_setting("crio.runtime", "conmon"),
    _make_setting("crio.runtime", "conmon_cgroup"),
    _make_setting("crio.runtime", "cgroup_manager"),
    _make_setting("crio.runtime", "pinns_path"),
    _make_setting("crio.runtime", "hooks_dir", is_list=True),
    _make_setting("crio.runtime", "namespaces_dir"),
    _make_setting("crio.runtime", "container_exits_dir", variable="CONTAINER_EXITS_DIR"),
    _make_setting("crio.runtime", "container_attach_socket_dir", variable="CONTAINER_ATTACH_SOCKET_DIR"),
    _make_setting("crio.runtime", "seccomp_profile"),
    _make_setting("crio.runtime", "apparmor_profile"),
    _make_setting("crio.runtime", "blockio_config_file", variable=""),
    _make_setting("crio.runtime", "rdt_config_file", variable=""),
    _make_setting("crio.runtime", "uid_mappings"),
    _make_setting("crio.runtime", "gid_mappings"),
    _make_setting("crio.network", "network_dir", flag="cni-config-dir", variable="CONTAINER_CNI_CONFIG_DIR"),
    _make_setting(
        "crio.network",
        "plugin_dirs",
        flag="cni-plugin-dir",
        variable="CONTAINER_CNI_PLUGIN_DIR",
        is_list=True,
    ),
    _make_setting("crio.image", "signature_policy_dir"),
    _make_setting("crio.image", "namespaced_auth_dir"),
    _make_setting("crio.nri", "nri_listen", variable=""),
    _make_setting("crio.nri", "nri_plugin_dir", variable=""),
)


class NextStart(Struct, frozen=True):
    """The settings of CRI-O's next start, each with its source."""

    given: LoadInput
    whole: Tree
    from_unit: Mapping[Key, str]  # the flag or the variable of each setting of the unit

    @classmethod
    def of(cls, given: LoadInput) -> "NextStart":
        """Combine the settings of files and unit with the settings printed by CRI-O, if printed."""
        whole: Tree = {}
        for tree in given.trees.values():
            whole = overlay(whole, tree)
        of_unit, from_unit = _read_unit(given.words, given.environment)
        whole = overlay(whole, of_unit)
        printed = PrintedConfig.read(given.printed).changed
        in_files = _table(whole, RUNTIMES)
        whole = overlay(whole, printed)
        # CRI-O does not print all keys of a runtime.
        printed_runtimes = _table(printed, RUNTIMES)
        runtimes: dict[str, Tree] = {}
        for name in {**in_files, **printed_runtimes}:
            runtimes[name] = {**_table(in_files, (name,)), **_table(printed_runtimes, (name,))}
        whole = overlay(whole, _nest(RUNTIMES, runtimes))
        return cls(given, whole, from_unit)

    @property
    def host(self) -> HostReader:
        """The host of CRI-O."""
        return self.given.host

    @property
    def paths(self) -> tuple[PurePosixPath, ...]:
        """The directories of CRI-O's PATH; none for an unknown start."""
        directories = self.given.environment.get("PATH", "").split(":")
        return tuple(PurePosixPath(path) for path in directories if path.startswith("/"))

    @property
    def runtimes(self) -> dict[str, Tree]:
        """The runtimes by name."""
        tables = _table(self.whole, RUNTIMES)
        return {name: _table(tables, (name,)) for name in tables}

    def text(self, *key: str) -> str:
        """Return a text setting; "" for a value of another type."""
        value = value_at(self.whole, key)
        return value if isinstance(value, str) else ""

    def texts(self, *key: str) -> tuple[str, ...]:
        """Return the texts of a text setting or a list of texts."""
        value = value_at(self.whole, key)
        values = value if isinstance(value, list) else [value]
        return tuple(each for each in values if isinstance(each, str) and each)

    def find_file(self, key: Key) -> PurePosixPath | None:
        """Find the deciding file of a setting: the last file with the setting."""
        for path, tree in reversed([*self.given.trees.items()]):
            if value_at(tree, key) is not None:
                return path
        return None

    def tell_source(self, *key: str) -> str:
        """Return the source of a setting, as part of a sentence; "" for a default of CRI-O's."""
        source = self._find_in_unit(key)
        if source:
            return f"its unit sets {source}"
        file = self.find_file(key)
        return f"in {file}" if file else ""

    def tell_remedy(self, *key: str) -> str:
        """Tell the owner's act to correct a setting."""
        source = self._find_in_unit(key)
        if source:
            return f"correct {source} {RELOAD_UNIT}"
        name = f"the runtime {key[-1]}" if key[:-1] == RUNTIMES else key[-1]
        return f"correct {name} in {self.find_file(key) or 'the config of CRI-O'}"

    def _find_in_unit(self, key: Key) -> str:
        """Return the deciding flag or variable of a setting, or of a table above; "" for none."""
        for number in range(len(key), 0, -1):
            source = self.from_unit.get(key[:number])
            if source:
                return source
        return ""


def overlay(under: Tree, over: Tree, key: Key = ()) -> Tree:
    """Return two configs as CRI-O merges them, ``over`` wins: key by key, but a runtime as a whole."""
    merged = dict(under)
    for name, value in over.items():
        below = merged.get(name)
        is_table = isinstance(value, Mapping) and isinstance(below, Mapping)
        if is_table and key != RUNTIMES:
            merged[name] = overlay(_table(merged, (name,)), _table(over, (name,)), (*key, name))
        else:
            merged[name] = value
    return merged


def _read_unit(words: Sequence[str], environment: Mapping[str, str]) -> tuple[Tree, dict[Key, str]]:
    """Return the settings of a unit, and the flag or the variable of each setting."""
    tree: Tree = {}
    from_unit: dict[Key, str] = {}
    for setting in SETTINGS:
        text, source = _find_value(words, environment, setting.flag, setting.variable)
        if text is None:
            continue
        from_unit[setting.key] = source
        value: Value = text
        if setting.is_list:
            value = [*text.split(",")]
        tree = overlay(tree, _nest(setting.key, value))

    text, source = _find_value(words, environment, "runtimes", "CONTAINER_RUNTIMES")
    for word in (text or "").split(","):
        name, *parts = word.split(":")
        if len(parts) + 1 < LEAST_PARTS:  # the dry run by CRI-O reports too few parts
            continue
        from_unit[(*RUNTIMES, name)] = source
        runtime = dict(zip(RUNTIME_PARTS[1:], parts, strict=False))
        tree = overlay(tree, _nest((*RUNTIMES, name), runtime))
    return tree, from_unit


def _find_value(
    words: Sequence[str], environment: Mapping[str, str], flag: str, variable: str
) -> tuple[str | None, str]:
    """Return the value of a flag, or else of a variable, with its name; None if neither is given."""
    values = [*_list_values(words, flag)]
    if values:
        value = ",".join(values) if flag == "runtimes" else values[-1]
        return value, f"--{flag}"
    if variable and variable in environment:
        return environment[variable], variable
    return None, ""


def _list_values(words: Sequence[str], name: str) -> Iterator[str]:
    """Yield the values of a flag with a single dash or two, as Go's package flag reads flags."""
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag in {f"-{name}", f"--{name}"}:
            yield value if equals else next(rest, "")


def _nest(key: Key, value: Value) -> Tree:
    """Build a tree with a single value."""
    for part in reversed(key[1:]):
        value = {part: value}
    return {key[0]: value}


def _table(tree: Tree, key: Key) -> Tree:
    """Return a table, {} for another value: CRI-O itself has checked the types."""
    table = value_at(tree, key)
    return table if isinstance(table, Mapping) else {}
