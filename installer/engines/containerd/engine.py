"""containerd as an engine, and what Kubernetes distributions that bring their own containerd derive from."""

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from installer.config_text import Edit, Key, Tree
from installer.engines.containerd import config as containerd_config
from installer.engines.containerd import effective, load
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, RuntimeEntry
from installer.model.engine import (
    CdiSupport,
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
    Version,
)


class Containerd(Engine):
    """containerd reads its config only at its start: a change needs a restart."""

    __slots__ = ()

    name = "containerd"
    title = "containerd"
    config = PurePosixPath("/etc/containerd/config.toml")
    drop_ins = DropIns(is_imported=True, imports=True)
    default_key = effective.DEFAULT
    cdi_key: Key = (effective.CDI,)
    process = "containerd"
    unit = "containerd.service"
    socket = PurePosixPath("/run/containerd/containerd.sock")
    api = "cri"
    cmdline = effective.FLAGS
    state = Place(PurePosixPath("/run/containerd"), "--state", "state")
    data: Place | None = Place(PurePosixPath("/var/lib/containerd"), "--root", "root")
    needs_handler_since: Version | None = (2,)
    cdi = CdiSupport(
        "containerd 2.0 has CDI on unless its config says enable_cdi = false, 1.7 if it is true; restart it",
        reads=(
            ((2, 3), (1, 1, 0)),
            ((2, 1), (1, 0, 0)),
            ((2, 0), (0, 8, 0)),
            ((1, 7, 16), (0, 7, 0)),
            ((0,), (0, 5, 0)),
        ),
    )
    nri_name = "containerd"

    def propose(
        self,
        state: EngineState,
        configs: Configs,
        entries: tuple[RuntimeEntry, ...],
        extras: Extras,
        before: EffectiveConfig | None = None,
    ) -> Iterable[Proposal]:
        """Return the candidates for config.toml, or for a drop-in if this containerd merges drop-ins."""
        return containerd_config.propose(state, configs, entries, extras, before)

    def predict(self, state: EngineState, configs: Configs) -> EffectiveConfig:
        """Predict the config in force from the root file and the imports."""
        return effective.predict(state, configs)

    def describe_dry_run(self, state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
        """Describe ``containerd config dump`` with the texts of all files that containerd would read."""
        return effective.describe_dry_run(state, texts)

    def read_status(self, status: Mapping[str, Any]) -> EffectiveConfig:
        """Return the config in force by the config in CRI's verbose status."""
        return effective.read_status(status)

    def explain_missing_cri(self, socket: str, plugins: Mapping[str, str]) -> InstallerError:
        """Explain why containerd does not serve CRI: disabled, failed, or too old."""
        return effective.explain_missing_cri(socket, plugins)

    def is_default_key(self, key: Key) -> bool:
        """Tell whether a key names the default runtime, or is in 1.x's table of the default runtime."""
        return super().is_default_key(key) or effective.OLD_TABLE in key[-2:]

    def list_imports(self, config: PurePosixPath, tree: Tree) -> list[PurePosixPath]:
        """Return the patterns in ``imports``; relative patterns begin at the config's directory."""
        return effective.list_imports(config, tree)

    def find_own_import(self, drop_in: PurePosixPath) -> PurePosixPath | None:
        """Return the pattern by which the root file imports our drop-in, and only our drop-in."""
        return effective.make_own_import(drop_in)

    def find_load_errors(self, given: LoadInput) -> Iterable[LoadError]:
        """Find the errors by which CRI would not load, though ``config dump`` accepts the texts."""
        return load.find_load_errors(given)

    def relocate_edits(self, edits: tuple[Edit, ...], tree: Tree) -> tuple[Edit, ...]:
        """Move the keys of edits to their place after ``containerd config migrate``."""
        return effective.relocate(edits, tree)
