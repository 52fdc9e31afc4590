"""Known security holes by version: a table, because it ages. Distributions mend without a new version."""

from collections.abc import Iterable
from typing import Final

from installer.decide.advisories import advice
from installer.decide.data import dataclass
from installer.decide.doctor.facts import Node, Version
from installer.decide.doctor.model import Check, Level, Verdict, listed, none, ok, warn
from installer.decide.engines.containerd import CONTAINERD

GROUP: Final = "Known holes"
TABLE_DATE: Final = "2026-11-21"
AGES: Final = f"The table is of {TABLE_DATE}."


@dataclass(frozen=True, slots=True)
class Hole:
    """Holes that were closed together: ``fixed`` has a version for each branch, ``since`` is the first."""

    names: tuple[str, ...]
    fixed: tuple[Version, ...]
    since: Version = ()

    def in_version(self, version: Version) -> bool:
        """Tell whether a version has the hole: its branch counts, and one without a fix has it for good."""
        branch = [fixed for fixed in self.fixed if fixed[:2] == version[:2]]
        return self.since <= version < (branch[0] if branch else max(self.fixed))


RUNC: Final = (
    Hole(("CVE-2024-21626",), ((1, 1, 12),)),
    Hole(("CVE-2024-45310",), ((1, 1, 14),)),
    Hole(("CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"), ((1, 2, 8), (1, 3, 3))),
    Hole(("CVE-2026-41579",), ((1, 3, 6), (1, 4, 3))),
)
CONTAINERD_HOLES: Final = (
    Hole(("CVE-2025-47291",), ((2, 0, 5),), (2, 0, 0)),
    Hole(("CVE-2024-25621", "CVE-2025-64329"), ((1, 7, 29), (2, 0, 7), (2, 1, 5))),
    Hole(
        ("CVE-2026-53488", "CVE-2026-53489", "CVE-2026-53492"),
        ((1, 7, 33), (2, 0, 10), (2, 1, 9), (2, 2, 5), (2, 3, 2)),
    ),
    Hole(("CVE-2026-95839",), ((2, 2, 10), (2, 3, 7), (2, 4, 2)), (2, 2, 0)),
)


def _known(said: str, version: Version, table: Iterable[Hole]) -> str:
    names = [name for hole in table if hole.in_version(version) for name in hole.names]
    return f"{said} by its version has {listed(names)}" if names else ""


def runc(node: Node) -> Verdict:
    """Judge whether the node's runc has known holes."""
    asked = {path: told for path, told in node.runc.items() if told[0] and path.endswith("/runc")}
    if not asked:
        return none("no runc says its version")
    found = [holes for version, said in asked.values() if (holes := _known(said, version, RUNC))]
    return warn(listed(found)) if found else ok(listed([said for _, said in asked.values()]))


def containerd(node: Node) -> Verdict:
    """Judge whether the containerd that runs has known holes."""
    asked = {
        each.said: each.version for each in node.processes if each.name == CONTAINERD.process and each.version
    }
    if not asked:
        return none("no containerd says its version")
    found = [holes for said, version in asked.items() if (holes := _known(said, version, CONTAINERD_HOLES))]
    return warn(listed(found)) if found else ok(listed(list(asked)))


def toolkit(node: Node) -> Verdict:
    """Judge whether a toolkit on the node has known holes."""
    asked = [each for each in node.toolkits if each.ctk or each.cli]
    if not asked:
        return none("no toolkit says its version")
    found = [f"{each.directory}: {line}" for each in asked for line in advice(each.ctk or each.cli)]
    return warn(listed(found)) if found else ok("none known")


def cuda_compat(node: Node) -> Verdict:
    """Judge whether a setting opens a closed hole again."""
    name = "allow-cuda-compat-libs-from-container"
    configs = [each for each in node.toolkits if each.config is not None]
    if not configs:
        return none("no config.toml of a toolkit")
    opened = [
        str(each.config_path)
        for each in configs
        if isinstance(features := (each.config or {}).get("features"), dict) and features.get(name) is True
    ]
    return warn(f"{name} is true in {listed(opened)}") if opened else ok(f"{name} is not set")


CHECKS: Final = (
    Check(
        "holes-toolkit",
        GROUP,
        "the version that nvidia-ctk says, against NVIDIA's bulletins",
        f"a warning for a version with holes that were closed later. {AGES}",
        "install a later toolkit; a distribution's own package may be mended already, see its changelog",
        toolkit,
        Level.WARN,
    ),
    Check(
        "cuda-compat",
        GROUP,
        "`features.allow-cuda-compat-libs-from-container` of config.toml",
        "a warning where it is true: it opens CVE-2025-23359 again",
        "remove it",
        cuda_compat,
        Level.WARN,
    ),
    Check(
        "holes-runc",
        GROUP,
        "the version that runc says",
        f"a warning for a version with holes that were closed later. {AGES}",
        "install a later runc; a distribution's own package may be mended already, see its changelog",
        runc,
        Level.WARN,
    ),
    Check(
        "holes-containerd",
        GROUP,
        "the version of the containerd that runs",
        f"a warning for a version with holes that were closed later. {AGES}",
        "install a later containerd; a distribution's own package may be mended already, see its changelog",
        containerd,
        Level.WARN,
    ),
)
