"""Checks of the CDI specifications on the node."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final

from installer.decide.doctor.facts import ROOT, Node, RunningEngine, Spec, Version
from installer.decide.doctor.model import Check, Level, Verdict, bad, dotted, listed, none, ok, warn
from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.mode import WITH_CDI, lacking, read_by
from installer.decide.options import GPU_KIND
from installer.decide.read_specification import devices
from installer.decide.specification import ALL_GPUS

GROUP: Final = "CDI"
WRITTEN_IN: Final = re.compile(r"""["']?cdiVersion["']?:\s*["']?(\d{1,3}(?:\.\d{1,3}){1,2})""")
# A device node as YAML or JSON: its path, then, before the next one, its major number.
UVM_MAJOR: Final = re.compile(
    r"""["']?path["']?:\s*["']?/dev/nvidia-uvm["']?[,\s]"""
    r"""(?:(?!["']?path["']?:).){0,400}?["']?major["']?:\s*(\d{1,6})""",
    re.DOTALL,
)
CAP: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,6})")
NO_SPEC: Final = none("no CDI specification for nvidia.com/gpu")
NEW: Final = (0, 7, 0)  # no engine was seen to refuse an older one
ALL: Final = (1 << 31,)
MAKE_IT: Final = (
    "`toolkit-installer reconcile` where `run` waits, else `toolkit-installer install --mode cdi`"
)


def _gpu_specs(node: Node) -> Iterator[Spec]:
    return (spec for spec in node.specs if not _unread(spec) and devices(spec.text, GPU_KIND))


def _unread(spec: Spec) -> str:
    """Return why a specification is out of the bounds within which one is read; "" where it is not."""
    try:
        devices(spec.text, GPU_KIND)
    except InstallerError as error:
        return f"{spec.path}: cannot {error.problem}"
    return ""


def specification(node: Node) -> Verdict:
    """Judge whether there is a specification where the toolkit needs one."""
    found = [str(spec.path) for spec in _gpu_specs(node)]
    if found:
        return ok(listed(found))
    if node.by_cdi is not None:
        return none("cdi-alone judges that of --mode cdi")
    modes = {_mode(toolkit.config) for toolkit in node.toolkits}
    if "cdi" in modes and node.driver.loaded:
        return bad('mode is "cdi", and there is no specification for nvidia.com/gpu')
    return none("no mode needs one; nvidia-cdi makes its own")


def alone(node: Node) -> Verdict:
    """Judge whether containers get their GPUs where no engine has a runtime of ours, as it was asked for."""
    if node.by_cdi is None:
        return none("engines were not left to CDI alone by us")
    names = {each.name for each in node.engines} & {*node.by_cdi.engines}
    wrong, todo = [], []
    given = [*chain(*(devices(spec.text, GPU_KIND) for spec in _gpu_specs(node)))]
    why = node.by_cdi.lacking
    partly = given and ALL_GPUS not in given and why  # another's, of a few GPUs alone
    if node.driver.loaded and (partly or not given):
        what = f"{GPU_KIND}={ALL_GPUS}" if given else GPU_KIND
        wrong.append(f"there is no specification of {what} ({why or 'somebody has removed it'})")
        todo.append("put right what the brackets say; then " + MAKE_IT if why else MAKE_IT)
    for each in node.engines:
        if each.name in names and each.serving is not None and (why := lacking(_facts(each))):
            wrong.append(f"{each.name} takes no devices by CDI ({why})")
            todo.append(f"give {each.name} CDI: {WITH_CDI[ENGINES[each.name].process]}")
    if wrong:
        return bad(listed(wrong), "; ".join(todo))
    return ok(f"{listed(sorted(names)) or 'no engine seen here'}: by CDI")


def _facts(engine: RunningEngine) -> EngineFacts:
    return EngineFacts(
        *(engine.name, engine.config, None, None, (), ROOT, engine.unit),
        version=engine.version,
        serving=engine.serving,
        silence=engine.silence,
    )


def plugin(node: Node) -> Verdict:
    """Judge whether the NRI plugin gives devices to the pods that ask by annotation."""
    if not node.plugin:
        return none("no NRI plugin of ours")
    wrong = [state for state, good in node.plugin if not good]
    return bad(listed(wrong)) if wrong else ok(listed([state for state, _ in node.plugin]))


def _mode(config: object) -> object:
    table = config.get("nvidia-container-runtime") if isinstance(config, dict) else None
    return table.get("mode") if isinstance(table, dict) else None


def uvm_major(node: Node) -> Verdict:
    """Judge whether specifications have the number that the kernel gave nvidia-uvm at this boot."""
    real = node.driver.majors.get("nvidia-uvm")
    named = {int(found[1]): spec.path for spec in node.specs for found in UVM_MAJOR.finditer(spec.text)}
    if real is None or not named:
        return none("no specification gives a number, or nvidia-uvm is not served")
    wrong = [f"{path} says {major}" for major, path in named.items() if major != real]
    return bad(f"nvidia-uvm has major {real}, {listed(wrong)}") if wrong else ok(f"major {real}")


def paths(node: Node) -> Verdict:
    """Judge whether what specifications mount and create is on the node, and each can be read."""
    if not node.specs:
        return none("no CDI specification")
    gone = [f"{path} ({spec.path})" for spec in node.specs for path in spec.gone]
    if gone:
        return bad(f"not on the node: {listed(gone)}")
    unread = [*filter(None, map(_unread, node.specs))]
    return warn(listed(unread)) if unread else ok(f"{len(node.specs)} specifications")


def mig(node: Node) -> Verdict:
    """Judge whether the MIG devices of now are in a specification."""
    specs = list(_gpu_specs(node))
    if not node.driver.mig_minors or not specs:
        return none("no MIG device, or no specification")
    named = {int(minor) for spec in specs for minor in CAP.findall(spec.text)}
    absent = [str(minor) for minor in node.driver.mig_minors if minor not in named]
    if absent:
        return bad(f"not in any specification: nvidia-cap {listed(absent)}")
    return ok(f"{len(node.driver.mig_minors)} MIG nodes")


def version(node: Node) -> Verdict:
    """Judge whether each engine understands the specifications."""
    newest: Version = max((_written_in(spec) for spec in node.specs), default=())
    asked = [each for each in node.engines if each.version]
    if not newest or not asked:
        return none("no specification, or no engine that says its version")
    old = [f"{each.name} {each.said}" for each in asked if _reads(each.name, each.version) < newest]
    if newest >= NEW and old:
        return bad(f"cdiVersion {dotted(newest)}, which is too new for {listed(old)}")
    return ok(f"cdiVersion {dotted(newest)}")


def _reads(name: str, version: Version) -> Version:
    """Return up to which version of a specification an engine reads, all where nobody knows."""
    return read_by(name, version) or ALL


def _written_in(spec: Spec) -> Version:
    found = WRITTEN_IN.search(spec.text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def enabled(node: Node) -> Verdict:
    """Judge whether engines take devices by CDI where somebody made a specification."""
    if not any(_gpu_specs(node)):
        return NO_SPEC
    off = [each.name for each in node.engines if each.serving is not None and each.serving.cdi is False]
    return warn(f"CDI is switched off in {listed(off)}") if off else ok("no engine has it switched off")


CHECKS: Final = (
    Check(
        "cdi-specification",
        GROUP,
        "/etc/cdi and /var/run/cdi, and the toolkit's mode",
        "the mode is cdi and there is no specification: `unresolvable CDI devices`",
        "`nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml`, or set mode to auto or legacy",
        specification,
        seen=("NVIDIA/nvidia-container-toolkit#1239", "kaito-project/kaito#2326"),
    ),
    Check(
        "cdi-uvm-number",
        GROUP,
        "the major number of nvidia-uvm in specifications and in /proc/devices",
        "they differ: `CUDA_ERROR_UNKNOWN`, while nvidia-smi works",
        "generate the specification again, once the modules are loaded",
        uvm_major,
        seen=("NVIDIA/nvidia-container-toolkit#1934",),
    ),
    Check(
        "cdi-paths",
        GROUP,
        "each path of the node that a specification names, and whether it can be read",
        "one is not there, as after an upgrade of the driver",
        "generate the specification again",
        paths,
        seen=("NVIDIA/nvidia-container-toolkit#1934",),
    ),
    Check(
        "cdi-mig",
        GROUP,
        "MIG devices in /proc/driver/nvidia/capabilities and in specifications",
        "one is in no specification: the refresh service does not see changes of MIG",
        "generate the specification again, then restart the pods that use MIG",
        mig,
        seen=("NVIDIA/libnvidia-container#203", "NVIDIA/nvidia-container-toolkit#1828"),
    ),
    Check(
        "cdi-version",
        GROUP,
        "cdiVersion of specifications, and the engines' versions",
        "newer than one reads, such as 0.7.0 with containerd before 1.7.16 or Docker before 26.1",
        "upgrade the engine, or generate 0.5.0 with `--feature-flag no-additional-gids-for-device-nodes`",
        version,
    ),
    Check(
        "cdi-enabled",
        GROUP,
        "whether engines serve CDI devices, as they say",
        "a warning where it is switched off and a specification exists",
        "switch CDI on in the engine's config (`enable_cdi`, `features.cdi`), or use the runtime nvidia-cdi",
        enabled,
        worst=Level.WARN,
        seen=("NixOS/nixpkgs#420638",),
    ),
    Check(
        "cdi-alone",
        GROUP,
        "the specification and the engines' own words, where `--mode cdi` or `--mode nri` is installed",
        "there is no specification although the driver is loaded, or an engine takes no devices by CDI",
        "put right why there is no specification, or switch CDI on in that engine, as the line says; then"
        f" {MAKE_IT}",
        alone,
    ),
    Check(
        "nri-plugin",
        GROUP,
        "the NRI plugin that is to run beside `run`, or the one at `--nri-socket`: its lock, its process, and"
        " what it tells beside its socket",
        "it is not there, hangs, is not registered, or has missed containers, which run without devices",
        "`toolkit-installer run --mode nri` (or `nri`) has to run, and NRI to be on in the engine; its log"
        " says why it is `not registered`. Delete the pods that were missed",
        plugin,
    ),
)
