"""What CRI-O has in force, from its own words: GET /config on its socket, or its program's ``config``."""

from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from installer.config_text import Tree, Value
from installer.model.effective import EffectiveConfig, Runtime, flatten
from installer.model.engine_spec import table, text

HOOK_DIR: Final = "/usr/share/containers/oci/hooks.d"
RUN_ROOT: Final = "/run/containers/storage"
DRIVER: Final = "overlay"
STATE: Final = PurePosixPath(RUN_ROOT, f"{DRIVER}-containers")
SOURCE: Final = PurePosixPath("/config")
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What CRI-O fills into each runtime at its start, ours too: from these keys of crio.runtime, or by itself.
FILLED_IN: Final = {"monitor_cgroup": "conmon_cgroup", "monitor_path": "conmon", "monitor_env": "conmon_env"}
USUAL: Final = ("system.slice", *(f"{place}/conmon" for place in SYSTEM_PATH.split(":")))


def read_effective(tree: Tree) -> EffectiveConfig:
    """Return what a whole config of CRI-O has in force.

    What ``crio config`` leaves out, or comments out, is CRI-O's default.

    Raises:
        InstallerError: a value has another type than CRI-O gives it.
        KeyError: it is no config of CRI-O's.
    """
    storage, runtime = table(tree, ("crio",), SOURCE), table(tree, ("crio", "runtime"), SOURCE)
    if not runtime:
        raise KeyError("crio.runtime")
    runtimes = table(runtime, ("runtimes",), SOURCE)
    handlers = {}
    for name in runtimes:
        one = _drop_filled_in(table(runtimes, (name,), SOURCE), runtime)
        handlers[name] = Runtime(text(one, "runtime_path", SOURCE), one)
    run_root = text(storage, "runroot", SOURCE) or RUN_ROOT
    driver = text(storage, "storage_driver", SOURCE) or DRIVER
    places = {"root": text(storage, "root", SOURCE), "runroot": text(storage, "runroot", SOURCE)}
    places["listen"] = text(table(storage, ("api",), SOURCE), "listen", SOURCE)
    hook_dirs, cdi_dirs = _read_paths(runtime.get("hooks_dir")), _read_paths(runtime.get("cdi_spec_dirs"))
    nri = table(storage, ("nri",), SOURCE)
    return EffectiveConfig(
        handlers,
        text(runtime, "default_runtime", SOURCE),
        cdi=None if cdi_dirs is None else bool(cdi_dirs),
        cdi_dirs=cdi_dirs or (),
        rest_digest=_digest_rest(tree),
        state=PurePosixPath(run_root, f"{driver}-containers"),
        hook_dirs=(PurePosixPath(HOOK_DIR),) if hook_dirs is None else hook_dirs,
        places={name: said for name, said in places.items() if said},
        nri=nri.get("enable_nri") is not False and not nri.get("nri_disable_connections") if nri else None,
    )


def _read_paths(value: Value) -> tuple[PurePosixPath, ...] | None:
    return tuple(PurePosixPath(str(each)) for each in value) if isinstance(value, list) else None


def _drop_filled_in(one: Tree, runtime: Tree) -> Tree:
    """Return a runtime less what was filled in, which a reloaded CRI-O does not say."""
    filled = {key: (*USUAL, runtime.get(said)) for key, said in FILLED_IN.items()}
    return {key: value for key, value in one.items() if value not in filled.get(key, ())}


def read_runtimes(tree: Tree) -> dict[str, str]:
    """Return the runtimes that a file names, with their programs."""
    runtimes = table(tree, ("crio", "runtime", "runtimes"), SOURCE)
    return {name: text(table(runtimes, (name,), SOURCE), "runtime_path", SOURCE) for name in runtimes}


def _digest_rest(tree: Tree) -> str:
    """Return the digest of everything but the runtimes and the default."""
    ours = {("crio", "runtime", "runtimes"), ("crio", "runtime", "defaultruntime")}
    said = sorted(
        (key, repr(value)) for key, value in flatten(tree) if key[:3] not in ours and (value or value == 0)
    )
    return sha256(repr(said).encode()).hexdigest()
