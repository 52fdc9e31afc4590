"""k0s: it generates containerd's config from drop-ins, watches the drop-ins, and restarts containerd."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.config_text import Edit, Syntax, Tree, WantedKey, leaves, table
from installer.config_text.change import apply, parse
from installer.engines.containerd import config as containerd
from installer.engines.containerd import effective
from installer.engines.containerd.engine import Containerd
from installer.errors import InstallerError
from installer.model.effective import RUNC_TYPE, EffectiveConfig, RuntimeEntry
from installer.model.engine import (
    CommandLine,
    Configs,
    DropIns,
    DryRunCommand,
    EngineState,
    Extras,
    Place,
    Proposal,
)

DIRECTORY: Final = PurePosixPath("/etc/k0s/containerd.d")
NAMES: Final = "*.toml"
# k0s before 1.36, with containerd 1.7, merges the CRI settings of the drop-ins into this file, on top of
# containerd's defaults (k0s v1.35.7 pkg/component/worker/containerd/configurer.go). Later releases leave that
# to containerd 2, which imports the directory.
MERGED: Final = PurePosixPath("/run/k0s/containerd-cri.toml")
DROP_IN_SCHEMA: Final = 3
DEFAULTS: Final[Tree] = {
    "version": 2,
    "plugins": {
        effective.V2_PLUGIN: {
            "containerd": {
                effective.DEFAULT: effective.BUILT_IN,
                "runtimes": {effective.BUILT_IN: {"runtime_type": RUNC_TYPE}},
            }
        }
    },
}


def _propose(
    state: EngineState,
    configs: Configs,
    entries: tuple[RuntimeEntry, ...],
    extras: Extras,
    before: EffectiveConfig | None,
) -> Iterator[Proposal]:
    """Yield the proposals with our runtimes in the drop-in alone: the root file belongs to k0s.

    Raises:
        InstallerError: the root file is missing, or has another owner and does not take the drop-in.
    """
    trees = configs.trees
    if state.config not in trees:
        raise InstallerError(
            f"configure k0s in {state.drop_in} ({state.config} is not there: k0s writes it when it starts)",
            remedy="restart k0s, then run again",
        )
    if _merges(state.config, trees):
        root = effective.merge(DEFAULTS, {"imports": [str(DIRECTORY / NAMES)]})
        # k0s merges as containerd 2 does.
        configs = replace(configs, trees={**trees, state.config: root})
        state = replace(state, version=(2,))
    proposals = []
    for proposal in containerd.propose(state, configs, entries, extras, before):
        if _writes_only(proposal, state.drop_in):
            proposals.append(proposal)
    if not proposals:
        raise InstallerError(
            f"configure k0s in {state.drop_in} ({state.config} is not managed by k0s and imports no drop-in)",
            remedy=f"remove {state.config} and restart k0s, which writes it anew, or import "
            f"{DIRECTORY / NAMES} there for a containerd 2",
        )
    yield from proposals


def _writes_only(proposal: Proposal, path: PurePosixPath | None) -> bool:
    """Tell whether a proposal has keys for a single file."""
    return {file.path for file in proposal.files} == {path}


def _describe_dry_run(state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
    """Describe the dry run by containerd, with the config that k0s would generate from its drop-ins."""
    config = state.config
    trees = {path: parse(text, Syntax.TOML, name=str(path)) for path, text in texts.items()}
    if _merges(config, trees):
        merged = _merge_drop_ins(config, trees)
        wanted_keys = [WantedKey(key, value) for key, value in leaves(merged[config])]
        root, _ = apply("", wanted_keys, Syntax.TOML, name=str(config))
        rest = {path: texts[path] for path in merged if path != config}
        texts = {config: root, **rest}
    return effective.describe_dry_run(state, texts)


def _merges(config: PurePosixPath, trees: Mapping[PurePosixPath, Tree]) -> bool:
    """Tell whether k0s itself merges the CRI settings of the drop-ins: the root file imports the result."""
    imports = effective.list_imports(config, trees.get(config, {}))
    return any(path.name == MERGED.name for path in imports)


def _merge_drop_ins(
    config: PurePosixPath, trees: Mapping[PurePosixPath, Tree]
) -> Mapping[PurePosixPath, Tree]:
    """Return the files as containerd reads them, with the merged settings in the root file."""
    if not _merges(config, trees):
        return trees
    imported = {path: tree for path, tree in trees.items() if path != config}
    root = DEFAULTS
    for path in sorted(imported):
        if effective.V2_PLUGIN in table(imported[path], ("plugins",), path):
            root = effective.merge(root, imported.pop(path))
    imports = [str(path) for path in imported]
    return {config: {**root, "imports": imports}, **imported}


class K0s(Containerd):
    """k0s watches drop-ins, generates the config of containerd from them, and restarts containerd."""

    __slots__ = ()

    name = "k0s"
    title = "k0s"
    config = PurePosixPath("/etc/k0s/containerd.toml")
    # Our drop-in is named as in k0s's own documentation for the GPU Operator.
    drop_ins = DropIns(usual=DIRECTORY / "nvidia.toml", directory=DIRECTORY, pattern=NAMES, imports=True)
    config_markers = ("/k0s/",)
    units = ("k0sworker.service", "k0scontroller.service")
    # k0s waits 3 s for more changes, ends containerd, and starts it 5 s later (component.go, supervisor.go).
    start_s = 20.0
    generated_config = MERGED
    program = PurePosixPath("/var/lib/k0s/bin/containerd")
    unit = "k0sworker.service"
    socket = PurePosixPath("/run/k0s/containerd.sock")
    cmdline = CommandLine(config=("--config", "-c"))
    restarts_itself = True
    reload_event = "engine restarted by itself"
    state = Place(PurePosixPath("/run/k0s/containerd"), "--state", "state")
    data = None

    def propose(
        self,
        state: EngineState,
        configs: Configs,
        entries: tuple[RuntimeEntry, ...],
        extras: Extras,
        before: EffectiveConfig | None = None,
    ) -> Iterable[Proposal]:
        """Propose our runtimes in the drop-in alone: k0s writes the root file.

        Raises:
            InstallerError: the root file is missing, or has another owner and does not take the drop-in.
        """
        return _propose(state, configs, entries, extras, before)

    def predict(self, state: EngineState, configs: Configs) -> EffectiveConfig:
        """Predict the config in force, with the settings merged by k0s from its drop-ins."""
        merged = _merge_drop_ins(state.config, configs.trees)
        return effective.predict(state, replace(configs, trees=merged))

    def describe_dry_run(self, state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
        """Describe the dry run by containerd, with the config that k0s would generate from its drop-ins."""
        return _describe_dry_run(state, texts)

    def describe_reload(self) -> str:
        """Describe the wait for k0s to restart its containerd after a write."""
        return f"wait until {self.title} has restarted containerd by itself"

    def relocate_edits(self, edits: tuple[Edit, ...], _tree: Tree) -> tuple[Edit, ...]:
        """Return the edits unchanged: nobody migrates a drop-in of k0s."""
        return edits

    def explain_refused_drop_in(self, drop_in: Tree) -> str:
        """Return why k0s from 1.36 on does not start (internal/pkg/sysinfo/probes/containerd.go)."""
        if drop_in.get("version", DROP_IN_SCHEMA) != DROP_IN_SCHEMA:
            return f"is of version {drop_in['version']}, which k0s refuses from 1.36 on"
        plugins = drop_in.get("plugins")
        if isinstance(plugins, Mapping) and effective.V2_PLUGIN in plugins:
            return f"names {effective.V2_PLUGIN}, which k0s refuses from 1.36 on"
        return ""
