"""Settings that containerd refuses only while it loads: ``config dump`` accepts all of them.

The rules are those of containerd's source from 1.6 to 2.3 (engine-facts.md#containerd-load). Where containerd
needs something that cannot be seen from here, such as the kernel or a free port, no rule exists.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.config_text import Key, Tree, Value, value_at
from installer.engines import cdi_load
from installer.engines.containerd.effective import (
    CDI,
    DEFAULT,
    IMAGES_PLUGIN,
    OLD_TABLE,
    RUNTIMES,
    V2_PLUGIN,
    V3_PLUGIN,
    binary_of,
    merge,
    parse_dump,
)
from installer.engines.pipes import find_pipe, list_names
from installer.errors import InstallerError
from installer.model.effective import is_ours
from installer.model.engine import LoadError, LoadInput, Version
from installer.model.files import Kind

NRI_PLUGIN: Final = "io.containerd.nri.v1.nri"
TRANSFER_PLUGIN: Final = "io.containerd.transfer.v1.local"
DIFF_SERVICE: Final = "io.containerd.service.v1.diff-service"
BOLT: Final = "io.containerd.metadata.v1.bolt"
SNAPSHOTTERS: Final = "io.containerd.snapshotter.v1."
DIFFERS: Final = "io.containerd.differ.v1."
PLUGINS_OF_CRI: Final = ("cri", V2_PLUGIN, V3_PLUGIN, IMAGES_PLUGIN)
LINUX_V1: Final = "io.containerd.runtime.v1.linux"
# Built into some release from 1.6 on. The snapshotter of a vendor is known by its table in the dump.
BUILT_IN_SNAPSHOTTERS: Final = frozenset(
    ("overlayfs", "native", "btrfs", "devmapper", "zfs", "aufs", "blockfile", "erofs")
)
BUILT_IN_DIFFERS: Final = frozenset(("walking", "erofs"))
SHARING_POLICIES: Final = frozenset(("", "shared", "isolated"))
# Plugins without which CRI does not load (1.6.20, 1.7.24 and 2.1.9: each plugin was switched off by itself),
# by the first release and the first release that is no longer meant.
_SERVICES: Final = (
    "containers",
    "content",
    "diff",
    "images",
    "introspection",
    "namespaces",
    "snapshots",
    "tasks",
)
_ANY: Final = ((0,), (99,))
NEEDED_PLUGINS: Final[Mapping[tuple[Version, Version], tuple[str, ...]]] = {
    _ANY: (
        "io.containerd.content.v1.content",
        "io.containerd.differ.v1.walking",
        "io.containerd.event.v1.exchange",
        "io.containerd.gc.v1.scheduler",
        "io.containerd.metadata.v1.bolt",
        "io.containerd.runtime.v2.task",
        *(f"io.containerd.service.v1.{name}-service" for name in _SERVICES),
    ),
    ((1,), (1, 7)): ("io.containerd.service.v1.leases-service",),
    ((1,), (2,)): ("io.containerd.runtime.v1.linux",),
    ((1, 7), (2,)): ("io.containerd.runtime.v2.shim", "io.containerd.sandbox.controller.v1.local"),
    ((1, 7), (99,)): (
        "io.containerd.lease.v1.manager",
        "io.containerd.sandbox.store.v1.local",
        "io.containerd.warning.v1.deprecations",
    ),
    ((2,), (99,)): (
        IMAGES_PLUGIN,
        TRANSFER_PLUGIN,
        "io.containerd.image-verifier.v1.bindir",
        "io.containerd.podsandbox.controller.v1.podsandbox",
        "io.containerd.sandbox.controller.v1.shim",
        "io.containerd.shim.v1.manager",
    ),
}
CDI_SINCE: Final = (1, 7)
CNI_DIRECTORY: Final = "/etc/cni/net.d"
CNI_SUFFIXES: Final = (".conf", ".conflist", ".json")  # also of a name without anything before it
USUAL_BIN_DIRS: Final = (["/opt/cni/bin"], ["/usr/lib/cni"])
LOG_LEVELS: Final = frozenset(("trace", "debug", "info", "warn", "warning", "error", "fatal", "panic"))
LOG_FORMATS: Final = frozenset(("", "text", "json"))
CGROUPS: Final = PurePosixPath("/sys/fs/cgroup")
RUN: Final = PurePosixPath("/run")
LAST_PORT: Final = 65535
# As Go's time.ParseDuration reads them.
DURATION: Final = re.compile(r"[-+]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)")
NRI_NAME: Final = re.compile(r"\d\d-.+")
CRI_STAYS_AWAY: Final = "its CRI would not load"
NO_START: Final = "it would not start"


def find_load_errors(given: LoadInput) -> Iterator[LoadError]:
    """Yield the errors by which containerd would start without CRI, or not at all, with readable configs."""
    loading = _Loading.of(given)
    for find in _RULES:
        yield from find(loading)


class _Loading(Struct, frozen=True):
    """The settings for containerd's load, and the files with these settings."""

    given: LoadInput
    whole: Tree  # all settings
    cri: Tree  # the settings of CRI's plugins in a single table; 2.x has three plugins
    is_new: bool  # 2.x

    @classmethod
    def of(cls, given: LoadInput) -> "_Loading":
        """Return the settings as containerd prints them, or else as the texts set them."""
        version = given.state.version
        names: tuple[str, ...] = PLUGINS_OF_CRI
        if given.printed:
            whole = parse_dump(given.printed)
            is_new = whole.get("version") not in {1, 2}
            names = (V2_PLUGIN,)
            if is_new:
                # 2.x keeps only the settings of its server under the older id.
                names = (V2_PLUGIN, V3_PLUGIN, IMAGES_PLUGIN)
        else:
            whole = {}
            for tree in given.trees.values():
                whole = merge(whole, tree)
            is_new = version is None or version >= (2,)

        cri: Tree = {}
        for name in names:
            cri = merge(cri, _table(whole, "plugins", name))
        return cls(given, whole, cri, is_new)

    @property
    def runtimes(self) -> dict[str, Tree]:
        """The runtimes by name."""
        table = _table(self.cri, "containerd", RUNTIMES)
        return {name: _table(table, name) for name in table}

    @property
    def disabled(self) -> frozenset[str]:
        """The ids of the disabled plugins."""
        ids = self.whole.get("disabled_plugins")
        if not isinstance(ids, list):
            return frozenset()
        return frozenset(map(str, ids))

    def list_plugins(self, prefix: str, kind: str, built_in: frozenset[str]) -> frozenset[str]:
        """List the possible plugins of a kind in this containerd: built in, a vendor's, or a proxy.

        Args:
            prefix: the beginning of the ids of these plugins.
            kind: the type of a proxy of this kind.
            built_in: the names of the plugins contained in some release.
        """
        configured = {name.removeprefix(prefix) for name in _table(self.whole, "plugins")}

        proxy_tables = _table(self.whole, "proxy_plugins")
        types = {kind, prefix.removesuffix(".")}
        proxies = {name for name in proxy_tables if _table(proxy_tables, name).get("type") in types}

        disabled = {name.removeprefix(prefix) for name in self.disabled}
        return frozenset((built_in | configured | proxies) - disabled)

    def is_dead(self, address: str) -> bool:
        """Tell whether no process listens on an address; False if the address cannot be seen from here."""
        host = self.given.host
        return address.startswith("/") and bool(host.names(RUN)) and host.is_dead(PurePosixPath(address))

    def find_file(self, *key: str) -> PurePosixPath:
        """Find the last file with a key; the root file without any."""
        for path, tree in reversed([*self.given.trees.items()]):
            if value_at(tree, key) is not None:
                return path
        return self.given.state.config

    def find_file_of_cri(self, *key: str) -> PurePosixPath:
        """Find the file with a key in any of CRI's plugins; the root file without any."""
        root = self.given.state.config
        for plugin in PLUGINS_OF_CRI:
            path = self.find_file("plugins", plugin, *key)
            if path != root:
                return path
        return root

    def refuse_cri(self, key: Key, reason: str, remedy: str = "", *, what: str = "") -> LoadError:
        """Make the error of a CRI key with which CRI would not load."""
        return _refuse(what or CRI_STAYS_AWAY, self.find_file_of_cri(*key), key, reason, remedy)

    def refuse_start(self, key: Key, reason: str, *, what: str = "") -> LoadError:
        """Make the error of a key of the whole config with which containerd would not start."""
        return _refuse(what or NO_START, self.find_file(*key), key, reason, "")


def _refuse(what: str, path: PurePosixPath, key: Key, reason: str, remedy: str) -> LoadError:
    name = ".".join(key)
    return LoadError(f"{what}: {path} sets {name}, {reason}", remedy or f"correct {name} in {path}")


def _find_registry_conflicts(loading: _Loading) -> Iterator[LoadError]:
    """Yield the registry settings in conflict with ``config_path``, and addresses with invalid URLs."""
    registry = _table(loading.cri, "registry")
    configs = _table(registry, "configs")
    has_tls = any(isinstance(config, Mapping) and config.get("tls") for config in configs.values())

    conflicts = {}
    if registry.get("config_path"):
        if registry.get("mirrors"):
            conflicts["mirrors"] = "registry.mirrors"
        if has_tls and not loading.is_new:
            conflicts["configs"] = "registry.configs.tls"
    for name, key in conflicts.items():
        path = loading.find_file_of_cri("registry", name)
        yield LoadError(
            f"{CRI_STAYS_AWAY}: {path} sets {key}, and registry.config_path is set too",
            f"remove {key} from {path}, or empty registry.config_path",
        )

    for address in _table(registry, "auths"):
        if reason := _explain_bad_url(address):
            yield loading.refuse_cri(("registry", "auths", address), f"which is no URL: {reason}")


def _explain_bad_url(text: str) -> str:
    """Explain a usual mistake by which Go's url.Parse refuses an address; "" for none."""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        return "it has a control character"
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", text)
    rest = text[scheme.end() :] if scheme else text
    if text.startswith(":"):
        return "its scheme is missing"
    if not scheme and ":" in rest.split("/")[0].split("?")[0].split("#")[0]:
        return "an address with a port needs a scheme such as https://"
    if re.search(r"%(?![0-9A-Fa-f]{2})", rest.split("?")[0]):
        return "its percent sign begins no escape"
    host = ""
    if rest.startswith("//"):
        host = rest[2:].split("/")[0].split("?")[0].split("#")[0]
    if " " in host:
        return "its host has a blank"
    if re.search(r":(?!\d*$)[^:\]]*$", host):
        return "its port is no number"
    return ""


def _find_missing_specs(loading: _Loading) -> Iterator[LoadError]:
    """Yield the runtimes with a missing or unusable base spec, the owner's runtimes first."""
    runtimes = loading.runtimes

    def order(name: str) -> tuple[bool, str]:
        return is_ours(binary_of(runtimes[name])), name

    # Our runtimes inherit the setting: the error names the owner's runtime if possible.
    for name in sorted(runtimes, key=order):
        spec = runtimes[name].get("base_runtime_spec")
        if isinstance(spec, str) and spec and (flaw := _find_flaw_of_spec(loading, spec)):
            key = ("containerd", RUNTIMES, name, "base_runtime_spec")
            path = loading.find_file_of_cri(*key)
            yield LoadError(
                f"{CRI_STAYS_AWAY}: base_runtime_spec of the runtime {name} in {path} names {spec}, {flaw}",
                f"put {spec} right, or remove base_runtime_spec from {path}",
            )


def _find_flaw_of_spec(loading: _Loading, spec: str) -> str:
    """Find the flaw of a file for an OCI spec; "" for no flaw."""
    path = PurePosixPath("/", spec)  # containerd's working directory is the root
    host = loading.given.host
    try:
        kind = host.kind(path)
        if kind is Kind.ABSENT:
            return "which is not there"
        if kind in {Kind.DIRECTORY, Kind.FIFO}:
            return "which is no regular file"
        if kind is not Kind.FILE:
            return ""
        file = host.read(path)
    except InstallerError:  # containerd itself may read more than we do
        return ""

    text = file.content.decode(errors="replace") if file else ""
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    try:
        value, _ = decoder.raw_decode(text.lstrip(" \t\r\n"))
    except (ValueError, RecursionError):
        return "which is no whole JSON"
    if value is not None and not isinstance(value, dict):
        return "which is no JSON object"
    return ""


def _refuse_constant(word: str) -> None:
    """Refuse NaN and Infinity: Go does not read them."""
    raise ValueError(word)


def _find_bad_durations(loading: _Loading) -> Iterator[LoadError]:
    """Yield the settings with an invalid duration."""
    names = ("stream_idle_timeout", "image_pull_progress_timeout", "drain_exec_sync_io_timeout")
    for name in (*names, "stats_collect_period", "stats_retention_period"):
        value = loading.cri.get(name)
        if isinstance(value, str) and value and not DURATION.fullmatch(value):
            yield loading.refuse_cri((name,), f'and "{value}" is no duration such as 30s')
    for name, value in _table(loading.whole, "timeouts").items():
        if not (isinstance(value, str) and DURATION.fullmatch(value)):
            yield loading.refuse_start(("timeouts", name), f'and "{value}" is no duration such as 30s')


def _find_bad_runtimes(loading: _Loading) -> Iterator[LoadError]:
    """Yield the settings of runtimes, and of the default runtime, refused by CRI."""
    containerd = _table(loading.cri, "containerd")
    runtimes = loading.runtimes
    # The type of the runtime in the table ``default_runtime``, which 1.x prefers to the name of the default.
    default_type = _table(containerd, OLD_TABLE).get("runtime_type")
    if not default_type:
        if containerd.get(DEFAULT) == "":
            yield loading.refuse_cri(("containerd", DEFAULT), "and it is empty")
        default_type = runtimes.get(str(containerd.get(DEFAULT)), {}).get("runtime_type")

    if not loading.is_new and default_type != LINUX_V1:
        for key in (("systemd_cgroup",), ("containerd", "no_pivot")):
            if value_at(loading.cri, key) is True:
                yield loading.refuse_cri(key, f"and the default runtime is not of the type {LINUX_V1}")

    for name, runtime in runtimes.items():
        for word, reason in _find_flaws_of_runtime(loading, runtime):
            yield loading.refuse_cri(("containerd", RUNTIMES, name, word), reason)


def _find_flaws_of_runtime(loading: _Loading, runtime: Tree) -> Iterator[tuple[str, str]]:
    """Yield the keys of a runtime refused by CRI, each with the reason."""
    if not loading.is_new and runtime.get("runtime_type") != LINUX_V1:
        for word in ("runtime_engine", "runtime_root"):
            if runtime.get(word):
                yield word, f"and the runtime is not of the type {LINUX_V1}"
    devices = "privileged_without_host_devices"
    if runtime.get(f"{devices}_all_devices_allowed") is True and runtime.get(devices) is not True:
        yield f"{devices}_all_devices_allowed", f"without {devices}"
    if loading.is_new:
        cgroups = loading.given.host.names(CGROUPS)
        if runtime.get("cgroup_writable") is True and cgroups and "cgroup.controllers" not in cgroups:
            yield "cgroup_writable", "and this node has cgroups of version 1"
        if runtime.get("io_type") not in {None, "", "fifo", "streaming"}:
            yield "io_type", "and it is neither fifo nor streaming"


def _find_bad_networks(loading: _Loading) -> Iterator[LoadError]:
    """Yield the directories of CNI in conflict with others or impossible to make."""
    cni = _table(loading.cri, "cni")
    # The default of bin_dirs, which packagers change, does not conflict with bin_dir.
    bin_dirs = next(_list_bin_dirs(loading), None)
    if loading.is_new and cni.get("bin_dir") and bin_dirs and bin_dirs not in USUAL_BIN_DIRS:
        yield loading.refuse_cri(("cni", "bin_dir"), "and cni.bin_dirs is set too", "remove one of the two")

    directories: dict[Key, Value] = {("cni", "conf_dir"): cni.get("conf_dir")}
    for name, runtime in loading.runtimes.items():
        directories["containerd", RUNTIMES, name, "cni_conf_dir"] = runtime.get("cni_conf_dir")
    for key, directory in directories.items():
        if isinstance(directory, str) and (obstacle := _find_obstacle(loading, directory)):
            yield loading.refuse_cri(key, f"and {obstacle} is no directory")


def _list_bin_dirs(loading: _Loading) -> Iterator[Value]:
    """Yield the values of ``bin_dirs`` in the files."""
    for tree in loading.given.trees.values():
        for plugin in PLUGINS_OF_CRI:
            bin_dirs = value_at(tree, ("plugins", plugin, "cni", "bin_dirs"))
            if bin_dirs:
                yield bin_dirs


def _find_obstacle(loading: _Loading, place: str) -> PurePosixPath | None:
    """Find the file in place of a directory to be made by containerd, or above; None for none."""
    directory = PurePosixPath(place)
    if not directory.is_absolute():
        return None
    for path in (*reversed(directory.parents), directory):
        try:
            kind = loading.given.host.kind(path)
        except InstallerError:
            return None
        if kind is Kind.FILE:
            return path
        if kind is not Kind.DIRECTORY:
            return None
    return None


def _find_bad_streaming(loading: _Loading) -> Iterator[LoadError]:
    """Yield the flaws of the key pair of CRI's streaming server."""
    table = "x509_key_pair_streaming"
    names = ("tls_cert_file", "tls_key_file")
    pair = _table(loading.cri, table)
    is_on = loading.cri.get("enable_tls_streaming") is True
    given = [name for name in names if pair.get(name)]
    if not given:
        return

    if not is_on:
        yield loading.refuse_cri((table, given[0]), "and enable_tls_streaming is off")
    elif len(given) == 1:
        missing = next(name for name in names if name not in given)
        yield loading.refuse_cri((table, given[0]), f"without {missing}")
    else:
        for name in names:
            if flaw := _find_flaw_of_pem(loading, str(pair[name])):
                yield loading.refuse_cri((table, name), f"and {pair[name]} {flaw}")


def _find_flaw_of_pem(loading: _Loading, place: str) -> str:
    """Find the flaw of a PEM file; "" for no flaw, or for an unreadable file."""
    try:
        file = loading.given.host.read(PurePosixPath("/", place))
    except InstallerError:
        return ""
    if file is None:
        return "is not there"
    if b"-----BEGIN " not in file.content:
        return "holds no PEM block"
    return ""


def _find_missing_snapshotters(loading: _Loading) -> Iterator[LoadError]:
    """Yield the flaws of the snapshotter chosen by CRI."""
    key = ("snapshotter",) if loading.is_new else ("containerd", "snapshotter")
    name = value_at(loading.cri, key)
    if not (isinstance(name, str) and name):
        name = "overlayfs"
    plugin = _table(loading.whole, "plugins", f"{SNAPSHOTTERS}{name}")
    path = loading.find_file_of_cri(*key)
    proxy = _table(loading.whole, "proxy_plugins", name)
    address = proxy.get("address")
    if name not in loading.list_plugins(SNAPSHOTTERS, "snapshot", BUILT_IN_SNAPSHOTTERS):
        remedy = f"add [proxy_plugins.{name}], or name another snapshotter in {path}"
        yield loading.refuse_cri(key, f"and there is no snapshotter {name}", remedy)
    elif name == "devmapper" and not plugin.get("pool_name"):
        yield loading.refuse_cri(key, "and the plugin devmapper has no pool_name")
    elif isinstance(address, str) and loading.is_dead(address):
        reason = f"the snapshotter {name} of {path} does not answer on {address}"
        yield LoadError(f"its CRI could start no container: {reason}", f"start {name}")

    root = plugin.get("root_path")
    if isinstance(root, str) and (obstacle := _find_obstacle(loading, root)):
        root_key = ("plugins", f"{SNAPSHOTTERS}{name}", "root_path")
        yield loading.refuse_start(root_key, f"and {obstacle} is no directory", what=CRI_STAYS_AWAY)


def _find_missing_plugins(loading: _Loading) -> Iterator[LoadError]:
    """Yield the missing or disabled plugins named by other plugins."""
    snapshotters = loading.list_plugins(SNAPSHOTTERS, "snapshot", BUILT_IN_SNAPSHOTTERS)
    differs = loading.list_plugins(DIFFERS, "diff", BUILT_IN_DIFFERS)

    key = ("plugins", TRANSFER_PLUGIN, "unpack_config")
    unpack_configs = value_at(loading.whole, key)
    if loading.is_new and isinstance(unpack_configs, list):
        for config in unpack_configs:
            if not isinstance(config, Mapping):
                continue
            for kind, known in (("snapshotter", snapshotters), ("differ", differs)):
                name = config.get(kind)
                if name and name not in known:
                    yield loading.refuse_start(key, f"and there is no {kind} {name}", what=CRI_STAYS_AWAY)

    key = ("plugins", DIFF_SERVICE, "default")
    default_differs = value_at(loading.whole, key)
    if isinstance(default_differs, list):
        for name in default_differs:
            if name not in differs:
                yield loading.refuse_start(key, f"and there is no differ {name}", what=CRI_STAYS_AWAY)

    key = ("plugins", BOLT, "content_sharing_policy")
    policy = value_at(loading.whole, key)
    if isinstance(policy, str) and policy not in SHARING_POLICIES:
        yield loading.refuse_start(key, "and it is neither shared nor isolated", what=CRI_STAYS_AWAY)


def _find_disabled_plugins(loading: _Loading) -> Iterator[LoadError]:
    """Yield the disabled plugins needed by CRI or required by the config."""
    version = loading.given.state.version
    key = ("disabled_plugins",)
    for (first, end), needed in NEEDED_PLUGINS.items():
        # Of an unknown release only the plugins that all releases need.
        applies = (first, end) == _ANY if version is None else first <= version < end
        if not applies:
            continue
        for name in sorted(loading.disabled.intersection(needed)):
            yield loading.refuse_start(key, f"and CRI needs {name}", what=CRI_STAYS_AWAY)

    required = loading.whole.get("required_plugins")
    if not isinstance(required, list):
        return
    known = {
        SNAPSHOTTERS: loading.list_plugins(SNAPSHOTTERS, "snapshot", BUILT_IN_SNAPSHOTTERS),
        DIFFERS: loading.list_plugins(DIFFERS, "diff", BUILT_IN_DIFFERS),
    }
    for name in map(str, required):
        is_missing = any(
            name.startswith(prefix) and name.removeprefix(prefix) not in names
            for prefix, names in known.items()
        )
        if is_missing or name in loading.disabled:
            yield loading.refuse_start(("required_plugins",), f"and {name} is not there, or is switched off")


def _find_bad_nri(loading: _Loading) -> Iterator[LoadError]:
    """Yield the settings that stop NRI: containerd ends then (log.Fatal in ``criService.Run``)."""
    nri = _table(loading.whole, "plugins", NRI_PLUGIN)
    if nri.get("disable") is not False or NRI_PLUGIN in loading.disabled:
        return

    socket = str(nri.get("socket_path") or "")
    directory = str(PurePosixPath(socket).parent)
    if not nri.get("disable_connections") and (obstacle := _find_obstacle(loading, directory)):
        key = ("plugins", NRI_PLUGIN, "socket_path")
        yield loading.refuse_start(key, f"and {obstacle} is no directory")

    plugins = str(nri.get("plugin_path") or "")
    if obstacle := _find_obstacle(loading, plugins):
        key = ("plugins", NRI_PLUGIN, "plugin_path")
        yield loading.refuse_start(key, f"and {obstacle} is no directory")
        return
    if not plugins.startswith("/"):
        return
    for name in loading.given.host.names(PurePosixPath(plugins)):
        program = PurePosixPath(plugins, name)
        if not NRI_NAME.fullmatch(name) and loading.given.host.is_program(program):
            yield LoadError(
                f"{NO_START}: NRI looks for plugins in {plugins}, and the name of {program} does not begin "
                "with two digits and a hyphen",
                f"rename {program} or move it away",
            )


def _find_bad_log(loading: _Loading) -> Iterator[LoadError]:
    """Yield an invalid level or format of containerd's log."""
    debug = _table(loading.whole, "debug")
    level = debug.get("level")
    is_overruled = not _list_flags(loading).isdisjoint(("--log-level", "-l"))
    if isinstance(level, str) and level and level.lower() not in LOG_LEVELS and not is_overruled:
        yield loading.refuse_start(("debug", "level"), f"and there is no level {level}")
    log_format = debug.get("format")
    if isinstance(log_format, str) and log_format not in LOG_FORMATS:
        yield loading.refuse_start(("debug", "format"), "and it is neither text nor json")


def _find_bad_addresses(loading: _Loading) -> Iterator[LoadError]:
    """Yield the addresses and the port at which containerd cannot listen."""
    for key in (("metrics", "address"), ("grpc", "tcp_address"), ("debug", "address")):
        address = value_at(loading.whole, key)
        if isinstance(address, str) and address and not address.startswith("/") and _is_bad_address(address):
            yield loading.refuse_start(key, "and it is not of the form host:port")
    port = loading.cri.get("stream_server_port")
    if isinstance(port, str) and _is_bad_address(f":{port}"):
        yield loading.refuse_cri(("stream_server_port",), "and it is no port", what=NO_START)


def _find_bad_certificates(loading: _Loading) -> Iterator[LoadError]:
    """Yield the unusable files of the key pair of containerd's own server."""
    grpc = _table(loading.whole, "grpc")
    if not grpc.get("tcp_tls_cert"):
        return
    for name in ("tcp_tls_cert", "tcp_tls_key", "tcp_tls_ca"):
        place = str(grpc.get(name) or "")
        is_needed = bool(place) or name == "tcp_tls_key"
        if is_needed and (flaw := _find_flaw_of_pem(loading, place)):
            yield loading.refuse_start(("grpc", name), f"and {place or 'nothing'} {flaw}")


def _find_same_directories(loading: _Loading) -> Iterator[LoadError]:
    """Yield the root of containerd if its state is the same directory."""
    root = str(loading.whole.get("root") or "")
    state = str(loading.whole.get("state") or "")
    if root and root == state and _list_flags(loading).isdisjoint(("--root", "--state")):
        yield loading.refuse_start(("root",), "and state is the same directory")


def _list_flags(loading: _Loading) -> set[str]:
    """Return the names of the flags on containerd's command line."""
    return {word.partition("=")[0] for word in loading.given.words}


def _is_bad_address(text: str) -> bool:
    """Tell whether Go's net.Listen refuses the form of an address; a port may be the name of a service."""
    port = re.search(r":([^:\]]*)$", text)
    return port is None or (port[1].isdigit() and int(port[1]) > LAST_PORT)


def _find_bad_files(loading: _Loading) -> Iterator[LoadError]:
    """Yield the specifications of CDI that CRI does not survive, and the FIFO at which it would wait."""
    host = loading.given.host
    is_on = loading.cri.get(CDI)
    version = loading.given.state.version
    if not isinstance(is_on, bool):
        is_on = loading.is_new
    if is_on and (version is None or version >= CDI_SINCE):
        directories = loading.cri.get("cdi_spec_dirs")
        if not isinstance(directories, list):
            directories = [*cdi_load.DIRECTORIES]
        yield from cdi_load.find_cdi_flaws(host, map(str, directories), CRI_STAYS_AWAY)

    directory = PurePosixPath(str(_table(loading.cri, "cni").get("conf_dir") or CNI_DIRECTORY))
    for name in list_names(host, directory):
        path = directory / name
        if not name.endswith(CNI_SUFFIXES):
            continue
        error = find_pipe(host, path, CRI_STAYS_AWAY)
        if error is not None:
            yield error
            return
        if host.kind(path) is not Kind.DIRECTORY:
            return  # CRI reads them in this order, and may stop at the first network


_RULES: Final = (
    _find_registry_conflicts,
    _find_missing_specs,
    _find_bad_durations,
    _find_bad_runtimes,
    _find_bad_networks,
    _find_bad_streaming,
    _find_missing_snapshotters,
    _find_missing_plugins,
    _find_disabled_plugins,
    _find_bad_nri,
    _find_bad_log,
    _find_bad_addresses,
    _find_bad_certificates,
    _find_same_directories,
    _find_bad_files,
)


def _table(tree: Tree, *key: str) -> Tree:
    """Return a table, empty if the tree has none: containerd itself has checked the types."""
    table = value_at(tree, key)
    return table if isinstance(table, Mapping) else {}
