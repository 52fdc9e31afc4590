"""Configs as texts, and what an engine's function makes of them, as plain keys."""

from pathlib import PurePosixPath

from msgspec.structs import replace

from installer.change.plan import entries_for
from installer.config_text import Value
from installer.config_text.change import apply, parse
from installer.engines import ENGINES
from installer.engines.config_texts import read_configs
from installer.model.effective import EffectiveConfig, RuntimeEntry
from installer.model.engine import EngineState, Extras, Proposal
from installer.model.files import File
from installer.model.options import Options

TOOLKIT = "/usr/local/nvidia/toolkit"
NVIDIA = f"{TOOLKIT}/nvidia-container-runtime"
V2, V3 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
CRI2, CRI3 = f'plugins."{V2}".containerd', f'plugins."{V3}".containerd'


def entries(name: str = "nvidia", *, default: bool = False) -> tuple[RuntimeEntry, ...]:
    return entries_for(Options(runtime_name=name, set_as_default=default))


def decided(  # noqa: PLR0913 - what a case may differ in
    engine: str,
    texts: str | dict[str, str],
    *,
    name: str = "nvidia",
    default: bool = False,
    version: str = "",
    drop_in: str = "",
    serving: EffectiveConfig | None = None,
) -> Proposal:
    """Return the proposal over ``texts``: the root file's, or several by path."""
    row = ENGINES[engine]
    state = replace(
        EngineState.usual(row),
        version=tuple(int(part) for part in version.split(".")) if version else None,
        serving=serving,
    )
    if drop_in:
        state = replace(state, drop_in=PurePosixPath(drop_in))
    files = {str(row.config): texts} if isinstance(texts, str) else texts
    configs = read_configs(state, {PurePosixPath(path): File(text.encode()) for path, text in files.items()})
    proposals = row.propose(state, configs, entries(name, default=default), Extras())
    first = next(iter(proposals))
    if first.doubt is not None:  # the texts alone doubt it
        raise first.doubt
    return first


def result(proposal: Proposal, path: str = "", text: str = "") -> Value:
    """Return the tree of one file once ``proposal`` is carried out; the only file's without a ``path``."""
    (wanted,) = (one for one in proposal.files if not path or str(one.path) == path)
    after, _ = apply(text, wanted.keys, wanted.syntax, name=str(wanted.path))
    return parse(after, wanted.syntax, name=str(wanted.path))


def at(tree: Value, *key: str) -> Value:
    """Return what stands at ``key``; None where there is none."""
    for part in key:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree
