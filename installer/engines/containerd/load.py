"""What containerd refuses only while it loads: ``config dump`` accepts all of that.

The rules are those of containerd's source from 1.6 to 2.3 (engine-facts.md#containerd-load). Where containerd
asks more than can be seen from here, such as the kernel or a free port, there is no rule.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.config_text import Key, Tree, Value, value_at
from installer.engines.containerd.effective import (
    DEFAULT,
    OLD_TABLE,
    RUNTIMES,
    V2_PLUGIN,
    V3_PLUGIN,
    binary_of,
    merge,
    parse_dump,
)
from installer.errors import InstallerError
from installer.model.engine_spec import LoadError, LoadInput, Version, is_ours
from installer.model.files import Kind

IMAGES_PLUGIN: Final = "io.containerd.cri.v1.images"
NRI_PLUGIN: Final = "io.containerd.nri.v1.nri"
TRANSFER_PLUGIN: Final = "io.containerd.transfer.v1.local"
DIFF_SERVICE: Final = "io.containerd.service.v1.diff-service"
BOLT: Final = "io.containerd.metadata.v1.bolt"
SNAPSHOTTERS: Final = "io.containerd.snapshotter.v1."
DIFFERS: Final = "io.containerd.differ.v1."
PLUGINS_OF_CRI: Final = ("cri", V2_PLUGIN, V3_PLUGIN, IMAGES_PLUGIN)
LINUX_V1: Final = "io.containerd.runtime.v1.linux"
# In some release from 1.6 on. A vendor's own is known by its table in the dump.
BUILT_IN_SNAPSHOTTERS: Final = frozenset(
    ("overlayfs", "native", "btrfs", "devmapper", "zfs", "aufs", "blockfile", "erofs")
)
BUILT_IN_DIFFERS: Final = frozenset(("walking", "erofs"))
SHARING_POLICIES: Final = frozenset(("", "shared", "isolated"))
# What CRI does not load without (1.6.20, 1.7.24 and 2.1.9: each plugin was switched off by itself),
# from one release on up to another.
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
    """Yield why containerd would come up without CRI, or not at all, with configs that it can read."""
    loading = _Loading.of(given)
    for find in _RULES:
        yield from find(loading)


class _Loading(Struct, frozen=True):
    """The settings that containerd loads with, and where they come from."""

    given: LoadInput
    whole: Tree  # all settings
    cri: Tree  # those of CRI's plugins in one table; 2.x has three plugins
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
            cri = merge(cri, _table(whole, "plugins", name))
        return cls(given, whole, cri, is_new)

    @property
    def runtimes(self) -> dict[str, Tree]:
        """The runtimes by name."""
        found = _table(self.cri, "containerd", RUNTIMES)
        return {name: _table(found, name) for name in found}

    @property
    def disabled(self) -> frozenset[str]:
        """The ids of the plugins that are switched off."""
        off = self.whole.get("disabled_plugins")
        return frozenset(map(str, off)) if isinstance(off, list) else frozenset()

    def list_plugins(self, prefix: str, kind: str, built_in: frozenset[str]) -> frozenset[str]:
        """Return the plugins of a kind that this containerd may have: built in, a vendor's, or a proxy."""
        listed = {name.removeprefix(prefix) for name in _table(self.whole, "plugins")}
        proxies = _table(self.whole, "proxy_plugins")
        kinds = {kind, prefix.removesuffix(".")}
        listed |= {name for name in proxies if _table(proxies, name).get("type") in kinds}
        return frozenset((built_in | listed) - {name.removeprefix(prefix) for name in self.disabled})

    def is_dead(self, address: str) -> bool:
        """Tell whether nobody listens on an address; False where that cannot be seen from here."""
        host = self.given.host
        return address.startswith("/") and bool(host.names(RUN)) and host.is_dead(PurePosixPath(address))

    def find_file(self, *key: str) -> PurePosixPath:
        """Return the file that sets a key: the last that is read and does, else the root file."""
        for path, tree in reversed([*self.given.files.trees.items()]):
            if value_at(tree, key) is not None:
                return path
        return self.given.files.config

    def find_file_of_cri(self, *key: str) -> PurePosixPath:
        """Return the file that sets a key of CRI's, whichever of its plugins has it."""
        files = (self.find_file("plugins", plugin, *key) for plugin in PLUGINS_OF_CRI)
        return next((path for path in files if path != self.given.files.config), self.given.files.config)

    def refuse_cri(self, key: Key, reason: str, remedy: str = "", *, what: str = "") -> LoadError:
        """Return why CRI would not load for one of its own keys."""
        return _refuse(what or CRI_STAYS_AWAY, self.find_file_of_cri(*key), key, reason, remedy)

    def refuse_start(self, key: Key, reason: str, *, what: str = "") -> LoadError:
        """Return why containerd would not start for a key of the whole config."""
        return _refuse(what or NO_START, self.find_file(*key), key, reason, "")


def _refuse(what: str, path: PurePosixPath, key: Key, reason: str, remedy: str) -> LoadError:
    name = ".".join(key)
    return LoadError(f"{what}: {path} sets {name}, {reason}", remedy or f"correct {name} in {path}")


def _find_registry_conflicts(loading: _Loading) -> Iterator[LoadError]:
    registry = _table(loading.cri, "registry")
    configs = _table(registry, "configs")
    tls = any(isinstance(one, Mapping) and one.get("tls") for one in configs.values())
    found = {"mirrors": bool(registry.get("mirrors")), "configs": tls and not loading.is_new}
    for name in (name for name, conflicts in found.items() if conflicts and registry.get("config_path")):
        path = loading.find_file_of_cri("registry", name)
        key = f"registry.{name}" + (".tls" if name == "configs" else "")
        yield LoadError(
            f"{CRI_STAYS_AWAY}: {path} sets {key}, and registry.config_path is set too",
            f"remove {key} from {path}, or empty registry.config_path",
        )
    for address in _table(registry, "auths"):
        if reason := _explain_bad_url(address):
            yield loading.refuse_cri(("registry", "auths", address), f"which is no URL: {reason}")


def _explain_bad_url(text: str) -> str:
    """Return why Go's url.Parse refuses an address, as far as its usual mistakes go; "" where it may not."""
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
    host = rest[2:].split("/")[0].split("?")[0].split("#")[0] if rest.startswith("//") else ""
    if " " in host:
        return "its host has a blank"
    if re.search(r":(?!\d*$)[^:\]]*$", host):
        return "its port is no number"
    return ""


def _find_missing_specs(loading: _Loading) -> Iterator[LoadError]:
    runtimes = loading.runtimes
    # Ours inherit the setting: the runtime of the owner is named, if there is one.
    for name in sorted(runtimes, key=lambda name: (is_ours(binary_of(runtimes[name])), name)):
        spec = runtimes[name].get("base_runtime_spec")
        if isinstance(spec, str) and spec and (flaw := _find_flaw_of_spec(loading, spec)):
            key = ("containerd", RUNTIMES, name, "base_runtime_spec")
            path = loading.find_file_of_cri(*key)
            yield LoadError(
                f"{CRI_STAYS_AWAY}: base_runtime_spec of the runtime {name} in {path} names {spec}, {flaw}",
                f"put {spec} right, or remove base_runtime_spec from {path}",
            )


def _find_flaw_of_spec(loading: _Loading, spec: str) -> str:
    """Return what is wrong with a file that is to hold an OCI spec; "" where nothing is."""
    path = PurePosixPath("/", spec)  # containerd's working directory is the root
    host = loading.given.host
    try:
        kind = host.kind(path)
        if kind is Kind.ABSENT:
            return "which is not there"
        if kind is not Kind.FILE:
            return "which is no regular file" if kind is Kind.DIRECTORY else ""
        file = host.read(path)
    except InstallerError:  # containerd itself may read more than we do
        return ""
    text = file.content.decode(errors="replace").lstrip(" \t\r\n") if file else ""
    try:
        found, _ = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode(text)
    except (ValueError, RecursionError):
        return "which is no whole JSON"
    return "" if isinstance(found, dict) or found is None else "which is no JSON object"


def _refuse_constant(word: str) -> None:
    raise ValueError(word)  # NaN and Infinity, which Go does not read


def _find_bad_durations(loading: _Loading) -> Iterator[LoadError]:
    names = ("stream_idle_timeout", "image_pull_progress_timeout", "drain_exec_sync_io_timeout")
    for name in (*names, "stats_collect_period", "stats_retention_period"):
        value = loading.cri.get(name)
        if isinstance(value, str) and value and not DURATION.fullmatch(value):
            yield loading.refuse_cri((name,), f'and "{value}" is no duration such as 30s')
    for name, value in _table(loading.whole, "timeouts").items():
        if not (isinstance(value, str) and DURATION.fullmatch(value)):
            yield loading.refuse_start(("timeouts", name), f'and "{value}" is no duration such as 30s')


def _find_bad_runtimes(loading: _Loading) -> Iterator[LoadError]:
    containerd, runtimes = _table(loading.cri, "containerd"), loading.runtimes
    old_table = _table(containerd, OLD_TABLE).get("runtime_type")
    if containerd.get(DEFAULT) == "" and not old_table:
        yield loading.refuse_cri(("containerd", DEFAULT), "and it is empty")
    default = runtimes.get(str(containerd.get(DEFAULT)), {}) if not old_table else {"runtime_type": old_table}
    if not loading.is_new and default.get("runtime_type") != LINUX_V1:
        for key in (("systemd_cgroup",), ("containerd", "no_pivot")):
            if value_at(loading.cri, key) is True:
                yield loading.refuse_cri(key, f"and the default runtime is not of the type {LINUX_V1}")
    for name, runtime in runtimes.items():
        for word, reason in _find_flaws_of_runtime(loading, runtime):
            yield loading.refuse_cri(("containerd", RUNTIMES, name, word), reason)


def _find_flaws_of_runtime(loading: _Loading, runtime: Tree) -> Iterator[tuple[str, str]]:
    """Yield the keys of a runtime that CRI refuses, and why."""
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
    cni = _table(loading.cri, "cni")
    # Its own default, which packagers change, gives way to bin_dir.
    trees = loading.given.files.trees.values()
    keys = [("plugins", plugin, "cni", "bin_dirs") for plugin in PLUGINS_OF_CRI]
    asked = next((found for tree in trees for key in keys if (found := value_at(tree, key))), None)
    if loading.is_new and cni.get("bin_dir") and asked and asked not in USUAL_BIN_DIRS:
        yield loading.refuse_cri(("cni", "bin_dir"), "and cni.bin_dirs is set too", "remove one of the two")
    places: dict[Key, Value] = {("cni", "conf_dir"): cni.get("conf_dir")}
    for name, runtime in loading.runtimes.items():
        places["containerd", RUNTIMES, name, "cni_conf_dir"] = runtime.get("cni_conf_dir")
    for key, place in places.items():
        if isinstance(place, str) and (blocking := _find_blocking(loading, place)):
            yield loading.refuse_cri(key, f"and {blocking} is no directory")


def _find_blocking(loading: _Loading, place: str) -> PurePosixPath | None:
    """Return what stands in the way of a directory that containerd makes; None for nothing."""
    directory = PurePosixPath(place)
    if not directory.is_absolute():
        return None
    for path in (*reversed(directory.parents), directory):
        try:
            kind = loading.given.host.kind(path)
        except InstallerError:
            return None
        if kind is not Kind.DIRECTORY:
            return path if kind is Kind.FILE else None
    return None


def _find_bad_streaming(loading: _Loading) -> Iterator[LoadError]:
    pair = _table(loading.cri, "x509_key_pair_streaming")
    table, names = "x509_key_pair_streaming", ("tls_cert_file", "tls_key_file")
    is_on = loading.cri.get("enable_tls_streaming") is True
    given = [name for name in names if pair.get(name)]
    if given and not is_on:
        yield loading.refuse_cri((table, given[0]), "and enable_tls_streaming is off")
    elif len(given) == 1:
        other = next(name for name in names if name not in given)
        yield loading.refuse_cri((table, given[0]), f"without {other}")
    for name in given if is_on and len(given) == len(names) else ():
        if flaw := _find_flaw_of_pem(loading, str(pair[name])):
            yield loading.refuse_cri((table, name), f"and {pair[name]} {flaw}")


def _find_flaw_of_pem(loading: _Loading, place: str) -> str:
    try:
        file = loading.given.host.read(PurePosixPath("/", place))
    except InstallerError:
        return ""
    if file is None:
        return "is not there"
    return "" if b"-----BEGIN " in file.content else "holds no PEM block"


def _find_missing_snapshotters(loading: _Loading) -> Iterator[LoadError]:
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
    place = plugin.get("root_path")
    if isinstance(place, str) and (blocking := _find_blocking(loading, place)):
        where = ("plugins", f"{SNAPSHOTTERS}{name}", "root_path")
        yield loading.refuse_start(where, f"and {blocking} is no directory", what=CRI_STAYS_AWAY)


def _find_missing_plugins(loading: _Loading) -> Iterator[LoadError]:
    """Yield the plugins that others name and that are not there, or are switched off."""
    snapshotters = loading.list_plugins(SNAPSHOTTERS, "snapshot", BUILT_IN_SNAPSHOTTERS)
    differs = loading.list_plugins(DIFFERS, "diff", BUILT_IN_DIFFERS)
    key = ("plugins", TRANSFER_PLUGIN, "unpack_config")
    unpack = value_at(loading.whole, key)
    for one in unpack if loading.is_new and isinstance(unpack, list) else ():
        asked = one if isinstance(one, Mapping) else {}
        for word, known in (("snapshotter", snapshotters), ("differ", differs)):
            if asked.get(word) and asked[word] not in known:
                yield loading.refuse_start(key, f"and there is no {word} {asked[word]}", what=CRI_STAYS_AWAY)
    key = ("plugins", DIFF_SERVICE, "default")
    default = value_at(loading.whole, key)
    for name in default if isinstance(default, list) else ():
        if name not in differs:
            yield loading.refuse_start(key, f"and there is no differ {name}", what=CRI_STAYS_AWAY)
    key = ("plugins", BOLT, "content_sharing_policy")
    policy = value_at(loading.whole, key)
    if isinstance(policy, str) and policy not in SHARING_POLICIES:
        yield loading.refuse_start(key, "and it is neither shared nor isolated", what=CRI_STAYS_AWAY)


def _find_disabled_plugins(loading: _Loading) -> Iterator[LoadError]:
    """Yield the plugins that are switched off and that CRI, or the config itself, does not do without."""
    version = loading.given.files.version
    key = ("disabled_plugins",)
    for (first, end), needed in NEEDED_PLUGINS.items():
        # Of a release that is not known only what all need.
        applies = (first, end) == _ANY if version is None else first <= version < end
        for name in sorted(loading.disabled.intersection(needed)) if applies else ():
            yield loading.refuse_start(key, f"and CRI needs {name}", what=CRI_STAYS_AWAY)
    required = loading.whole.get("required_plugins")
    known = {
        SNAPSHOTTERS: loading.list_plugins(SNAPSHOTTERS, "snapshot", BUILT_IN_SNAPSHOTTERS),
        DIFFERS: loading.list_plugins(DIFFERS, "diff", BUILT_IN_DIFFERS),
    }
    for name in map(str, required) if isinstance(required, list) else ():
        missing = any(
            name.startswith(prefix) and name.removeprefix(prefix) not in names
            for prefix, names in known.items()
        )
        if missing or name in loading.disabled:
            yield loading.refuse_start(("required_plugins",), f"and {name} is not there, or is switched off")


def _find_bad_nri(loading: _Loading) -> Iterator[LoadError]:
    """Yield why NRI would not start: containerd ends then (log.Fatal in ``criService.Run``)."""
    nri = _table(loading.whole, "plugins", NRI_PLUGIN)
    if nri.get("disable") is not False or NRI_PLUGIN in loading.disabled:
        return
    socket, plugins = str(nri.get("socket_path") or ""), str(nri.get("plugin_path") or "")
    key = ("plugins", NRI_PLUGIN, "socket_path")
    above = str(PurePosixPath(socket).parent)
    if not nri.get("disable_connections") and (blocking := _find_blocking(loading, above)):
        yield loading.refuse_start(key, f"and {blocking} is no directory")
    key = ("plugins", NRI_PLUGIN, "plugin_path")
    if blocking := _find_blocking(loading, plugins):
        yield loading.refuse_start(key, f"and {blocking} is no directory")
        return
    for name in loading.given.host.names(PurePosixPath(plugins)) if plugins.startswith("/") else ():
        program = PurePosixPath(plugins, name)
        if not NRI_NAME.fullmatch(name) and loading.given.host.is_program(program):
            yield LoadError(
                f"{NO_START}: NRI looks for plugins in {plugins}, and the name of {program} does not begin "
                "with two digits and a hyphen",
                f"rename {program} or move it away",
            )


def _find_bad_server(loading: _Loading) -> Iterator[LoadError]:
    """Yield what the server itself refuses, besides its plugins."""
    whole, words = loading.whole, loading.given.words
    debug = _table(whole, "debug")
    overruled = any(word.partition("=")[0] in {"--log-level", "-l"} for word in words)
    level, form = debug.get("level"), debug.get("format")
    if isinstance(level, str) and level and level.lower() not in LOG_LEVELS and not overruled:
        yield loading.refuse_start(("debug", "level"), f"and there is no level {level}")
    if isinstance(form, str) and form not in LOG_FORMATS:
        yield loading.refuse_start(("debug", "format"), "and it is neither text nor json")
    for key in (("metrics", "address"), ("grpc", "tcp_address"), ("debug", "address")):
        address = value_at(whole, key)
        if isinstance(address, str) and address and not address.startswith("/") and _is_bad_address(address):
            yield loading.refuse_start(key, "and it is not of the form host:port")
    port = loading.cri.get("stream_server_port")
    if isinstance(port, str) and _is_bad_address(f":{port}"):
        yield loading.refuse_cri(("stream_server_port",), "and it is no port", what=NO_START)
    grpc = _table(whole, "grpc")
    for name in ("tcp_tls_cert", "tcp_tls_key", "tcp_tls_ca") if grpc.get("tcp_tls_cert") else ():
        place = str(grpc.get(name) or "")
        if (place or name == "tcp_tls_key") and (flaw := _find_flaw_of_pem(loading, place)):
            yield loading.refuse_start(("grpc", name), f"and {place or 'nothing'} {flaw}")
    places = {name: str(whole.get(name) or "") for name in ("root", "state")}
    given = {name for name in places if any(word.partition("=")[0] == f"--{name}" for word in words)}
    if places["root"] and places["root"] == places["state"] and not given:
        yield loading.refuse_start(("root",), "and state is the same directory")


def _is_bad_address(text: str) -> bool:
    """Tell whether Go's net.Listen refuses an address for its form; a service may have a name."""
    found = re.search(r":([^:\]]*)$", text)
    return found is None or (found[1].isdigit() and int(found[1]) > LAST_PORT)


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
    _find_bad_server,
)


def _table(tree: Tree, *key: str) -> Tree:
    """Return a table, an empty one where there is none: containerd itself has checked the types."""
    found = value_at(tree, key)
    return found if isinstance(found, Mapping) else {}
