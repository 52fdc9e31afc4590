"""Checks of the CDI specifications on the node."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from installer.cdi.mode import lacking, read_by
from installer.cdi.specification import ALL_GPUS, devices
from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.model.options import GPU_KIND
from installer.report.doctor.model import Judge, Node, Spec, Version
from installer.report.doctor.verdict import Verdict, bad, dotted, listed, none, ok, warn

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
    modes = {toolkit.value("nvidia-container-runtime", "mode") for toolkit in node.toolkits}
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
        if each.name in names and each.serving is not None and (why := lacking(each.engine)):
            wrong.append(f"{each.name} takes no devices by CDI ({why})")
            todo.append(f"give {each.name} CDI: {ENGINES[each.name].cdi.since}")
    if wrong:
        return bad(listed(wrong), "; ".join(todo))
    return ok(f"{listed(sorted(names)) or 'no engine seen here'}: by CDI")


def plugin(node: Node) -> Verdict:
    """Judge whether the NRI plugin gives devices to the pods that ask by annotation."""
    if not node.plugin:
        return none("no NRI plugin of ours")
    wrong = [state for state, good in node.plugin if not good]
    return bad(listed(wrong)) if wrong else ok(listed([state for state, _ in node.plugin]))


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
    asked = [(exam.label, exam.name, version) for exam in node.engines if (version := exam.engine.version)]
    if not newest or not asked:
        return none("no specification, or no engine that says its version")
    # Where nobody knows up to which version one reads, it reads all.
    old = [label for label, name, version in asked if (read_by(name, version) or newest) < newest]
    if newest >= NEW and old:
        return bad(f"cdiVersion {dotted(newest)}, which is too new for {listed(old)}")
    return ok(f"cdiVersion {dotted(newest)}")


def _written_in(spec: Spec) -> Version:
    found = WRITTEN_IN.search(spec.text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def enabled(node: Node) -> Verdict:
    """Judge whether engines take devices by CDI where somebody made a specification."""
    if not any(_gpu_specs(node)):
        return NO_SPEC
    off = [each.name for each in node.engines if each.serving is not None and each.serving.cdi is False]
    return warn(f"CDI is switched off in {listed(off)}") if off else ok("no engine has it switched off")


JUDGES: Final[Mapping[str, Judge]] = {
    "cdi-specification": specification,
    "cdi-uvm-number": uvm_major,
    "cdi-paths": paths,
    "cdi-mig": mig,
    "cdi-version": version,
    "cdi-enabled": enabled,
    "cdi-alone": alone,
    "nri-plugin": plugin,
}
