"""What a CRI-O's start looks for, and its `crio config` does not, is missed before anything is restarted."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engines.crios import ASKED, OURS, starts
from tests.engines.nodes import Node
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence

SITE = "/etc/crio/crio.conf.d/60-site.conf"
OTHER = '[crio.runtime.runtimes.other]\nruntime_path = "/usr/libexec/crio/runc"\n'
# What its owner writes, which program he moves away, and what is said. One of a runtime that is not the default
# counts, too: `Validate` of CRI-O 1.37 looks at each. Of which programs this holds tests/observe/test_configs.py has.
GONE = {
    "a monitor": (
        f'{OTHER}monitor_path = "/usr/libexec/crio/gone"\n',
        "",
        "the monitor_path of other, /usr/libexec/crio/gone, is no program",
    ),
    "the conmon of its PATH": (OTHER, "/usr/bin/conmon", "conmon, is not in its PATH"),
}


@contextmanager
def missing(node: Node, text: str, gone: str) -> Iterator[None]:
    """Have the owner write a config and move a program away, for the block."""
    node.write(SITE, text)
    if gone:
        node.run(["mv", gone, "/root/gone"])
    try:
        yield
    finally:
        node.run(["sh", "-c", f"rm {SITE}; test -z '{gone}' || mv /root/gone {gone}"])


@pytest.mark.parametrize(("text", "gone", "why"), GONE.values(), ids=GONE)
def test_all_verbs_tell_of_a_program_that_is_gone_and_none_restarts(
    crio: Node, text: str, gone: str, why: str
) -> None:
    before = snapshot(crio)
    with missing(crio, text, gone):
        untouched, count = snapshot(crio), starts(crio)
        plan, refused = crio.installer("plan", *ASKED), crio.installer("install", *ASKED)
        assert (plan.returncode, refused.returncode) == (1, 1)
        assert why in sentence(refused.stderr)
        assert sentence(refused.stderr) in plan.stdout
        assert (starts(crio), snapshot(crio)) == (count, untouched)
    crio.installer("install", *ASKED, check=True)
    with missing(crio, text, gone):
        count = starts(crio)

        told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
        again = crio.installer("install", *ASKED)
        default = crio.installer("install", *ASKED, "--set-as-default")
        kept = crio.installer("uninstall")

        assert (told.returncode, why in told.stdout) == (1, True), told.stdout
        assert (plan.returncode, why in plan.stdout) == (0, True), plan.stdout
        assert (again.returncode, default.returncode) == (0, 1), (again.stderr, default.stderr)
        assert kept.returncode == 4, kept.stderr
        assert why in sentence(kept.stderr)
        assert starts(crio) == count
    crio.installer("uninstall", check=True)
    assert snapshot(crio) == before


OLD, NEW = "/usr/libexec/crio/conmon", "/opt/crio/conmon"
OWNER = "".join(
    f'[crio.runtime.runtimes.{name}]\nruntime_path = "/usr/libexec/crio/{name}"\nmonitor_path = "{NEW}"\n'
    'runtime_root = "/run/other"\n'
    for name in ("crun", "runc")
)


def move_conmon(node: Node, *, keeps: bool = False) -> None:
    """Have the owner's runtimes name a conmon elsewhere, as an update of its package does."""
    node.write(SITE, OWNER)
    node.run(["mkdir", "-p", "/opt/crio"])
    node.run(["cp" if keeps else "mv", OLD, NEW])


def put_back(node: Node) -> None:
    node.installer("uninstall", check=True)
    node.run(
        ["sh", "-c", f"test -e {OLD} || mv {NEW} {OLD}; rm -rf /opt/crio {SITE}; systemctl reset-failed"]
    )
    node.restart("crio")


@pytest.mark.parametrize("proven", [False, True], ids=["at once", "behind an install beside both"])
def test_ours_follow_an_owner_who_moves_conmon_before_crio_is_restarted(crio: Node, *, proven: bool) -> None:
    crio.installer("install", *ASKED, check=True)
    root = next(line for line in crio.read(OURS).splitlines() if line.startswith("runtime_root"))
    move_conmon(crio, keeps=True)
    beside = crio.installer("install", *ASKED) if proven else None
    crio.run(["rm", OLD])

    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    done = crio.installer("install", *ASKED)
    after, again = crio.installer("status"), crio.installer("plan", *ASKED)

    text = crio.read(OURS)
    crio.run(["systemctl", "restart", "crio"], check=False)
    state = crio.show("crio", "ActiveState")
    put_back(crio)
    assert beside is None or "nothing changed" in beside.stderr
    assert told.returncode == 1
    assert f"the monitor_path of nvidia, {OLD}, is no program" in told.stdout
    assert "install puts it right" in told.stdout
    assert (plan.returncode, OURS in plan.stdout) == (10, True), plan.stdout
    assert done.returncode == 0, done.stderr
    assert (after.returncode, again.returncode) == (0, 0), after.stdout
    assert (NEW in text, OLD in text, text.count(root)) == (True, False, 3)
    assert state == "active"


@pytest.mark.parametrize("crashing", [False, True], ids=["at rest", "crashing"])
def test_an_install_heals_a_crio_that_a_conmon_of_before_keeps_down(crio: Node, *, crashing: bool) -> None:
    crio.installer("install", *ASKED, check=True)
    root = next(line for line in crio.read(OURS).splitlines() if line.startswith("runtime_root"))
    move_conmon(crio)
    crio.run(["systemctl", "restart", "crio"], check=False)
    if not crashing:
        crio.run(["systemctl", "stop", "crio"], check=False)

    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    done = crio.installer("install", *ASKED)

    state, text = crio.show("crio", "ActiveState"), crio.read(OURS)
    after = crio.installer("status")
    put_back(crio)
    assert (told.returncode, plan.returncode) == (1, 10), plan.stdout
    assert done.returncode == 0, done.stderr
    assert (state, after.returncode) == ("active", 0), after.stdout
    assert (NEW in text, OLD in text, text.count(root)) == (True, False, 3)


USUAL = OWNER.replace(NEW, "/usr/bin/conmon")  # where CRI-O finds it, too, as its owner says all the same
UNNAMED = "".join(line for line in OWNER.splitlines(keepends=True) if "monitor_path" not in line)


@contextmanager
def installed_beside(node: Node, text: str) -> Iterator[None]:
    """Install beside runtimes of an owner's for the block."""
    node.write(SITE, text)
    node.restart("crio")
    node.installer("install", *ASKED, check=True)
    try:
        yield
    finally:
        node.run(["sh", "-c", f"test -e /usr/bin/conmon || mv {NEW} /usr/bin/conmon; rm -rf /opt/crio"])
        node.write(SITE, text)
        node.run(["systemctl", "reset-failed"])
        node.installer("uninstall", check=True)
        node.run(["rm", SITE])
        node.restart("crio")


@pytest.mark.parametrize("text", [USUAL, UNNAMED], ids=["named", "by its PATH"])
def test_ours_follow_an_owner_who_moves_conmon_out_of_its_usual_place_and_no_comment(
    crio: Node, text: str
) -> None:
    with installed_beside(crio, text):
        written, count = crio.read(OURS), starts(crio)
        crio.write(OURS, f"{written}# mine\n")
        asked = (("status",), ("plan", *ASKED), ("install", *ASKED))
        assert [crio.installer(*words).returncode for words in asked] == [0, 0, 0]
        assert starts(crio) == count
        crio.write(OURS, written)
        crio.write(SITE, OWNER)
        crio.run(["sh", "-c", f"mkdir /opt/crio; mv /usr/bin/conmon {NEW}"])

        told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
        done = crio.installer("install", *ASKED)

        after, written = crio.installer("status"), crio.read(OURS)
        crio.run(["systemctl", "restart", "crio"], check=False)
        assert (told.returncode, "install puts it right" in told.stdout) == (1, True), told.stdout
        assert (plan.returncode, done.returncode, after.returncode) == (10, 0, 0), done.stderr
        assert (NEW in written, crio.show("crio", "ActiveState")) == (True, "active")


def test_reconcile_is_content_with_a_conmon_that_it_has_just_followed(crio: Node) -> None:
    process = crio.start_installer("run", *ASKED)
    process.wait_for("waiting for a signal")
    move_conmon(crio)

    done, again = crio.installer("reconcile"), crio.installer("reconcile")

    told = crio.installer("status")
    process.terminate()
    process.wait()
    put_back(crio)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["repaired"]), done
    assert (again.returncode, again.stdout.splitlines()[-1:]) == (0, ["nothing to do"]), again
    assert told.returncode == 0, told.stdout
