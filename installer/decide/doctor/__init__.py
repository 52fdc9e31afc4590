"""What ``doctor`` judges: a table of checks, each a small pure function of what was read."""

from typing import Final

from installer.decide.doctor import cdi, driver, engines, holes, runtimes, shims, system, toolkit
from installer.decide.doctor.facts import Node
from installer.decide.doctor.model import Finding

CHECKS: Final = (
    *driver.CHECKS,
    *cdi.CHECKS,
    *toolkit.CHECKS,
    *engines.CHECKS,
    *runtimes.CHECKS,
    *shims.CHECKS,
    *system.CHECKS,
    *holes.CHECKS,
)


def findings(node: Node) -> tuple[Finding, ...]:
    """Return what each check comes to, in the order of the table."""
    return tuple(Finding(check, check.judge(node)) for check in CHECKS)
