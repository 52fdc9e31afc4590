"""k3s and RKE2: at each start they find the toolkit by themselves and write the config of their containerd.

Their start: engine-facts.md#k3s-start.
"""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.engines.containerd.engine import Containerd
from installer.model.effective import RUNC_TYPE, EffectiveConfig, RuntimeEntry
from installer.model.engine import (
    CommandLine,
    Configs,
    DropIns,
    EngineState,
    Extras,
    Place,
    Proposal,
    Template,
    TemplateFlaw,
)
from installer.model.files import DEFAULT_INSTALL_DIR, Layout

# The default template lists the runtimes that k3s has found. An owner's template has our runtime if the
# template includes the default template, or lists these runtimes.
BASE: Final = re.compile(r"""\{\{-?\s{0,9}template\s{1,9}["`]base["`]""")
FOUND_RUNTIMES: Final = ".ExtraRuntimes"
IMPORTS: Final = re.compile(r"(?m)^[ \t]{0,99}imports[ \t]{0,9}=")
BEGINS: Final = "{{/*"
ENDS: Final = "*/}}"
PROGRAM: Final = Layout(DEFAULT_INSTALL_DIR).toolkit / "nvidia-container-runtime"  # k3s looks nowhere else


class K3s(Containerd):
    """k3s serves our runtime after the next start; no config of k3s is edited."""

    __slots__ = ()

    name = "k3s"
    title = "k3s"
    config = PurePosixPath("/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
    drop_ins = DropIns()
    default_key = ""
    config_markers = ("/rancher/", "/k3s/")
    built_in_runtime = "nvidia"
    has_dry_run = False
    templates = MappingProxyType(
        {"config-v3.toml.tmpl": Template(V3_PLUGIN, since=(2,)), "config.toml.tmpl": Template(V2_PLUGIN)}
    )
    inputs: tuple[PurePosixPath, ...] = (
        PurePosixPath("/etc/rancher/k3s/config.yaml"),
        PurePosixPath("/etc/rancher/k3s/registries.yaml"),
    )
    units: tuple[str, ...] = ("k3s.service", "k3s-agent.service")
    start_s = 120.0
    unit = "k3s.service"
    socket = PurePosixPath("/run/k3s/containerd/containerd.sock")
    cmdline = CommandLine(config=("--config", "-c"))
    state = Place(PurePosixPath("/run/k3s/containerd"), "--state", "state")
    data = None
    needs_handler_since = ()

    def propose(
        self,
        _state: EngineState,
        _configs: Configs,
        _entries: tuple[RuntimeEntry, ...],
        _extras: Extras,
        _before: EffectiveConfig | None = None,
    ) -> Iterable[Proposal]:
        """Return a single candidate without files: nothing is written."""
        return [Proposal((), ("runc", "crun"))]

    def predict(self, _state: EngineState, _configs: Configs) -> EffectiveConfig:
        """Return an empty config: k3s generates the config of containerd at each start."""
        return EffectiveConfig({}, "")

    def find_template_flaw(self, path: PurePosixPath, text: str) -> TemplateFlaw | None:
        """Find the flaw of a template without our runtime."""
        if may_define_ours(text):
            return None
        name = self.built_in_runtime
        table = f'plugins."{self.templates[path.name].plugin}".containerd.runtimes.{name}'
        lines = f'[{table}] with runtime_type = "{RUNC_TYPE}"'
        lines += f' and [{table}.options] with BinaryName = "{PROGRAM}"'
        return TemplateFlaw(
            f"its template {path} defines no runtime {name} that starts {PROGRAM}",
            f'add {lines} there, or put {{{{ template "base" . }}}} in the place of its own copy of that',
        )


class Rke2(K3s):
    """RKE2 works like k3s and listens on the same socket, with its own paths and units."""

    __slots__ = ()

    name = "rke2"
    title = "RKE2"
    config = PurePosixPath("/var/lib/rancher/rke2/agent/etc/containerd/config.toml")
    inputs = (
        PurePosixPath("/etc/rancher/rke2/config.yaml"),
        PurePosixPath("/etc/rancher/rke2/registries.yaml"),
    )
    unit = "rke2-server.service"
    units = ("rke2-server.service", "rke2-agent.service")


def may_define_ours(template: str) -> bool:
    """Tell whether a template defines our runtime, or may define the runtime by imports or a base."""
    text = _drop_comments(template)
    if BASE.search(text) or FOUND_RUNTIMES in text or IMPORTS.search(text):
        return True
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(str(PROGRAM) in line for line in lines)


def _drop_comments(template: str) -> str:
    """Drop the comments of a template: lines in comments are not in force."""
    kept: list[str] = []
    for part in template.replace("{{- /*", BEGINS).replace("*/ -}}", ENDS).split(BEGINS):
        _, ends, rest = part.partition(ENDS)
        kept.append(rest if ends and kept else part)
    return "".join(kept)
