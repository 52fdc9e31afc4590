"""CRI-O as an engine."""

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from installer.config_text import Tree, Value
from installer.engines.crio import config as crio_config
from installer.engines.crio import load
from installer.model.effective import EffectiveConfig, RuntimeEntry
from installer.model.engine import (
    CdiSupport,
    CommandLine,
    Configs,
    DropIns,
    DryRunCommand,
    Engine,
    EngineState,
    Extras,
    LoadError,
    LoadInput,
    Place,
    Proposal,
    RuntimeFlags,
    Version,
)


class Crio(Engine):
    """CRI-O is restarted: after a reload CRI-O reports settings without serving them."""

    __slots__ = ()

    name = "crio"
    title = "CRI-O"
    config = PurePosixPath("/etc/crio/crio.conf")
    drop_ins = DropIns(usual=crio_config.DIRECTORY / "99-nvidia.toml", directory=crio_config.DIRECTORY)
    hook_dir = PurePosixPath(crio_config.HOOK_DIR)
    default_key = crio_config.DEFAULT
    process = "crio"
    unit = "crio.service"
    socket = PurePosixPath("/var/run/crio/crio.sock")
    api = "cri"
    cmdline = CommandLine(
        config=crio_config.CONFIG_FLAGS,
        drop_ins=crio_config.DROP_IN_FLAGS,
        places={"root": ("--root", "-r"), "runroot": ("--runroot",), "listen": ("--listen",)},
        variables={"root": "CONTAINER_ROOT", "runroot": "CONTAINER_RUNROOT", "listen": "CONTAINER_LISTEN"},
        # engine-facts.md#crio-flags
        runtimes=RuntimeFlags(
            "--default-runtime", "--runtimes", ":", "CONTAINER_DEFAULT_RUNTIME", "CONTAINER_RUNTIMES"
        ),
    )
    started_programs = (*crio_config.BUILT_IN, crio_config.CONMON, crio_config.CONMON_RS, crio_config.PINNS)
    looks_up_programs = True
    reload_misreports = True
    finishes_calls = True
    state = Place(crio_config.STATE, "", "")
    has_shims = False
    monitor_program = crio_config.CONMON
    monitor_keys = ("monitorpath",)
    needs_handler_since = ()
    finds_by_handler = True
    cdi = CdiSupport(
        "CRI-O passes such devices on from 1.28 on",
        reads=(((1, 35), (1, 1, 0)), ((1, 34), (1, 0, 0)), ((1, 30), (0, 7, 0)), ((0,), (0, 6, 0))),
        hands_over=(1, 28),  # earlier releases only read files
    )
    nri_name = "cri-o"

    def propose(
        self,
        state: EngineState,
        configs: Configs,
        entries: tuple[RuntimeEntry, ...],
        _extras: Extras,
        _before: EffectiveConfig | None = None,
    ) -> Iterable[Proposal]:
        """Return the candidate for our drop-in with whole runtime tables, or for our OCI hook."""
        return crio_config.propose(state, configs, entries)

    def predict(self, state: EngineState, configs: Configs) -> EffectiveConfig:
        """Return the config in force by the root file and the drop-ins, in the order of their names."""
        return crio_config.predict(state, configs)

    def describe_dry_run(self, state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
        """Return ``crio config`` with the root file and all drop-ins."""
        return crio_config.describe_dry_run(state, texts)

    def read_status(self, status: Mapping[str, Any]) -> EffectiveConfig:
        """Return the config in force by CRI-O's answer to ``GET /config``."""
        return crio_config.read_effective(status)

    def find_load_errors(self, given: LoadInput) -> Iterable[LoadError]:
        """Find the errors of CRI-O's own validation, which end CRI-O at its start, unlike ``crio config``."""
        return load.find_load_errors(given)

    def read_runtimes(self, tree: Tree) -> Mapping[str, str]:
        """Return the runtimes of a text: CRI-O looks for a program by the runtime's name."""
        return crio_config.read_runtimes(tree)

    def list_programs(self, tree: Tree) -> Iterable[tuple[Value, bool]]:
        """List the runtimes and monitors of a text: CRI-O looks for these programs at its start."""
        return crio_config.list_programs(tree)

    def find_runtime_root(self, config: EffectiveConfig, handler: str, version: Version | None) -> str:
        """Return the ``runtime_root`` of a handler, or of the default."""
        return crio_config.find_runtime_root(config, handler, version)
