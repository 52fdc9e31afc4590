"""What a CRI-O's start looks for, and its `crio config` does not, is missed before anything is restarted."""

import pytest

from tests.engines.crios import ASKED, starts
from tests.engines.nodes import Node
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence

SITE = "/etc/crio/crio.conf.d/60-site.conf"
# One of a runtime that is not the default counts, too: `Validate` of CRI-O 1.37 looks at each.
NAMING = {
    "a monitor": (
        '[crio.runtime.runtimes.other]\nmonitor_path = "/usr/libexec/crio/gone"\n',
        "the monitor_path of other, /usr/libexec/crio/gone, is no program",
    ),
    "pinns": ('[crio.runtime]\npinns_path = "/gone/pinns"\n', "its pinns_path, /gone/pinns, is no program"),
}


@pytest.mark.parametrize(("text", "why"), NAMING.values(), ids=NAMING)
def test_an_install_beside_a_program_that_is_gone_changes_nothing(crio: Node, text: str, why: str) -> None:
    crio.write(SITE, text)
    before, count = snapshot(crio), starts(crio)

    plan, done = crio.installer("plan", *ASKED), crio.installer("install", *ASKED)

    assert (plan.returncode, done.returncode) == (1, 1)
    assert why in sentence(done.stderr)
    assert sentence(done.stderr) in plan.stdout
    assert starts(crio) == count
    assert snapshot(crio) == before
    crio.run(["rm", SITE])


@pytest.mark.parametrize(("text", "why"), NAMING.values(), ids=NAMING)
def test_an_uninstall_beside_a_program_that_is_gone_restarts_nothing(crio: Node, text: str, why: str) -> None:
    before = snapshot(crio)
    crio.installer("install", *ASKED, check=True)
    crio.write(SITE, text)
    count = starts(crio)

    kept, told = crio.installer("uninstall"), crio.installer("status")

    assert kept.returncode == 4, kept.stderr
    assert why in sentence(kept.stderr)
    assert starts(crio) == count
    assert (told.returncode, why in told.stdout) == (1, True), told.stdout
    crio.run(["rm", SITE])
    crio.installer("uninstall", check=True)
    assert snapshot(crio) == before
