"""CRI-O: status, plan, install and reconcile say the same of what an owner has done."""

import pytest

from tests.engines.crios import ASKED, DROP_INS, OURS, starts
from tests.engines.nodes import Node
from tests.engines.told import sentence

RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
LATER, EARLIER = f"{DROP_INS}/99-zz.conf", f"{DROP_INS}/50-owner.conf"
TABLE = (
    '[crio.runtime.runtimes.nvidia]\nruntime_path = "{}"\nmonitor_path = "/usr/libexec/crio/conmon"\n'
    "no_pivot = true\n"
)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_later_table_with_our_program_is_fine_with_all_verbs(crio: Node, *, restarted: bool) -> None:
    process = crio.start_installer("run", *ASKED)
    process.wait_for("waiting for a signal")
    crio.write(LATER, TABLE.format(RUNTIME))
    if restarted:
        crio.restart("crio")
    before = starts(crio), crio.read(OURS)

    asked = [crio.installer(*words) for words in (["status"], ["reconcile"], ["status", "--ready"])]
    plan = crio.installer("plan", *ASKED)
    after = starts(crio), crio.read(OURS)

    crio.run(["rm", LATER])
    process.terminate()
    assert process.wait() == 0, process.log
    assert [each.returncode for each in (*asked, plan)] == [0, 0, 0, 0], process.log
    assert after == before


OVERRULED = {
    "the program": (
        TABLE.format("/usr/libexec/crio/crun"),
        "the runtime nvidia starts /usr/libexec/crio/crun",
    ),
    "the default": ('[crio.runtime]\ndefault_runtime = "crun"\n', "the default runtime is crun, not nvidia"),
}


@pytest.mark.parametrize(("text", "drift"), OVERRULED.values(), ids=OVERRULED)
def test_what_a_later_file_overrules_is_told_with_what_install_says(
    crio: Node, text: str, drift: str
) -> None:
    asked = (*ASKED, "--set-as-default")
    crio.installer("install", *asked, check=True)
    crio.write(LATER, text)
    count = starts(crio)

    told, ready = crio.installer("status"), crio.installer("status", "--ready")
    plan, done = crio.installer("plan", *asked), crio.installer("install", *asked)

    unchanged = starts(crio) == count
    crio.run(["rm", LATER])
    crio.installer("uninstall", check=True)
    assert [each.returncode for each in (told, ready, plan, done)] == [1, 1, 1, 1]
    assert f"{drift} in its configs: {sentence(done.stderr)}" in told.stdout
    assert sentence(done.stderr) in ready.stdout
    assert sentence(done.stderr) in plan.stdout
    assert "install puts it right" not in told.stdout + ready.stdout
    assert unchanged


def test_a_link_to_nowhere_alone_is_told_by_status_and_plan(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    crio.run(["ln", "-s", "/nowhere", EARLIER])

    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    done = crio.installer("install", *ASKED)

    crio.run(["rm", EARLIER])
    healed = crio.installer("status")
    crio.installer("uninstall", check=True)
    for each in (told, plan):
        assert "would not start with the configs that it has now (it reads" in each.stdout
        assert EARLIER in each.stdout
    assert told.returncode == 1
    assert plan.returncode == done.returncode == 0, done.stderr  # what would be, not what is
    assert healed.returncode == 0, healed.stdout


def test_a_plan_behind_an_undo_that_was_kept_says_that_install_settles_it(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    unit = crio.read("/run/systemd/system/crio.service")
    crio.write("/run/systemd/system/crio.service", f"[Unit]\nRefuseManualStop=yes\n{unit}")
    crio.run(["systemctl", "daemon-reload"])

    kept = crio.installer("uninstall")
    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    document = crio.installer("plan", *ASKED, "--json")
    done, settled = crio.installer("install", *ASKED), crio.installer("plan", *ASKED)

    crio.write("/run/systemd/system/crio.service", unit)
    crio.run(["systemctl", "daemon-reload"])
    crio.installer("uninstall", check=True)
    assert (kept.returncode, told.returncode, plan.returncode) == (4, 1, 10), plan.stdout
    assert "last undo: incomplete" in plan.stdout
    assert '"would_change": true' in document.stdout
    assert (done.returncode, settled.returncode) == (0, 0), settled.stdout
