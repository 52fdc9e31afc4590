"""Checks of the CDI specifications on the node, and of who takes devices by them."""

import re
from itertools import chain
from typing import Final

from installer.cdi.mode import lacking, read_by
from installer.cdi.specification import ALL_GPUS
from installer.engines import ENGINES
from installer.model.options import GPU_KIND
from installer.report.doctor.model import Node, Spec, Version, given
from installer.report.doctor.verdict import Verdict, bad, judge, list_words, none, ok, spell_version, warn

WRITTEN_IN: Final = re.compile(r"""["']?cdiVersion["']?:\s*["']?(\d{1,3}(?:\.\d{1,3}){1,2})""")
# A device node as YAML or JSON: its path, then, before the next one, its major number.
UVM_MAJOR: Final = re.compile(
    r"""["']?path["']?:\s*["']?/dev/nvidia-uvm["']?[,\s]"""
    r"""(?:(?!["']?path["']?:).){0,400}?["']?major["']?:\s*(\d{1,6})""",
    re.DOTALL,
)
CAP: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,6})")
NEW: Final = (0, 7, 0)  # no engine was seen to refuse an older one
MAKE_IT: Final = (
    "`toolkit-installer reconcile` where `run` waits, else `toolkit-installer install --mode cdi`"
)


def _select_gpu_specs(node: Node) -> list[Spec]:
    return [spec for spec in node.specs if spec.gpus]


def check_cdi_specification(node: Node) -> Verdict:
    if found := [str(spec.path) for spec in _select_gpu_specs(node)]:
        return ok(list_words(found))
    if node.by_cdi is not None:
        return none("cdi-alone judges that of --mode cdi")
    modes = {toolkit.value("nvidia-container-runtime", "mode") for toolkit in node.toolkits}
    if "cdi" in modes and node.driver.loaded:
        return bad('mode is "cdi", and there is no specification for nvidia.com/gpu')
    return none("no mode needs one; nvidia-cdi makes its own")


def check_cdi_alone(node: Node) -> Verdict:
    if node.by_cdi is None:
        return none("engines were not left to CDI alone by us")
    names = {each.name for each in node.engines} & {*node.by_cdi.engines}
    wrong, todo = [], []
    given = [*chain(*(spec.gpus for spec in node.specs))]
    reason = node.by_cdi.lacking
    partly = given and ALL_GPUS not in given and reason  # another's, of a few GPUs alone
    if node.driver.loaded and (partly or not given):
        what = f"{GPU_KIND}={ALL_GPUS}" if given else GPU_KIND
        wrong.append(f"there is no specification of {what} ({reason or 'somebody has removed it'})")
        todo.append("put right what the brackets say; then " + MAKE_IT if reason else MAKE_IT)
    for each in node.engines:
        if each.name in names and each.serving is not None and (reason := lacking(each.engine)):
            wrong.append(f"{each.name} takes no devices by CDI ({reason})")
            todo.append(f"give {each.name} CDI: {ENGINES[each.name].cdi.since}")
    if wrong:
        return bad(list_words(wrong), "; ".join(todo))
    return ok(f"{list_words(sorted(names)) or 'no engine seen here'}: by CDI")


@given(lambda node: node.plugin, "no NRI plugin of ours")
def check_nri_plugin(node: Node) -> Verdict:
    wrong = [state for state, good in node.plugin if not good]
    return judge(wrong, "", list_words([state for state, _ in node.plugin]))


def check_cdi_uvm_number(node: Node) -> Verdict:
    real = node.driver.majors.get("nvidia-uvm")
    majors = {int(found[1]): spec.path for spec in node.specs for found in UVM_MAJOR.finditer(spec.text)}
    if real is None or not majors:
        return none("no specification gives a number, or nvidia-uvm is not served")
    wrong = [f"{path} says {major}" for major, path in majors.items() if major != real]
    return judge(wrong, f"nvidia-uvm has major {real}, ", f"major {real}")


@given(lambda node: node.specs, "no CDI specification")
def check_cdi_paths(node: Node) -> Verdict:
    if gone := [f"{path} ({spec.path})" for spec in node.specs for path in spec.gone]:
        return bad(f"not on the node: {list_words(gone)}")
    unreadable = [spec.unreadable for spec in node.specs if spec.unreadable]
    return judge(unreadable, "", f"{len(node.specs)} specifications", warn)


@given(lambda node: node.driver.mig_minors and _select_gpu_specs(node), "no MIG device, or no specification")
def check_cdi_mig(node: Node) -> Verdict:
    minors = {int(minor) for spec in _select_gpu_specs(node) for minor in CAP.findall(spec.text)}
    absent = [str(minor) for minor in node.driver.mig_minors if minor not in minors]
    fine = f"{len(node.driver.mig_minors)} MIG nodes"
    return judge(absent, "not in any specification: nvidia-cap ", fine)


def check_cdi_version(node: Node) -> Verdict:
    newest: Version = max((_read_version(spec) for spec in node.specs), default=())
    asked = [(exam.label, exam.name, version) for exam in node.engines if (version := exam.engine.version)]
    if not newest or not asked:
        return none("no specification, or no engine that says its version")
    # An engine reads all versions, unless the highest one is known.
    old = [label for label, name, version in asked if (read_by(name, version) or newest) < newest]
    found = f"cdiVersion {spell_version(newest)}"
    return judge(old if newest >= NEW else (), f"{found}, which is too new for ", found)


def _read_version(spec: Spec) -> Version:
    found = WRITTEN_IN.search(spec.text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


@given(_select_gpu_specs, "no CDI specification for nvidia.com/gpu")
def check_cdi_enabled(node: Node) -> Verdict:
    off = [each.name for each in node.engines if each.serving is not None and each.serving.cdi is False]
    return judge(off, "CDI is switched off in ", "no engine has it switched off", warn)
