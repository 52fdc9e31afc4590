"""CRI-O as its owner uses it: execs, reloads, handlers of his own. All verbs say the same of what he has done."""

import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from tests.engines.crios import ASKED, DROP_INS, OURS, STATE, bundle, call, run_pod, starts
from tests.engines.doctors import bad, doctor, warned
from tests.engines.nodes import Node
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence

RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
UNIT = "/run/systemd/system/crio.service"
OWNERS = f"{DROP_INS}/50-owner.conf"
HANDLER = f'[crio.runtime.runtimes.gpu]\nruntime_path = "{RUNTIME}"\n'
COMMENT = "# ours: ask the platform team\n"
OTHER_DEFAULT = """\
[crio.runtime]
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
runtime_root = "/run/other"
"""
VERBOSE = b"\x08\x01"
SANDBOX = "415635d5fdde8b8339d4"


@contextmanager
def exec_in_flight(node: Node) -> Iterator[None]:
    """Have an exec run during the block: it ends with the engine, as a probe's does at each restart."""

    def run() -> None:
        try:
            call(node, "ExecSync")
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise

    thread = threading.Thread(target=run)
    thread.start()
    node.wait_for("conmon", ["sh", "-c", "cat /proc/[0-9]*/comm"])
    try:
        yield
    finally:
        node.run(["pkill", "-x", "conmon"], check=False)
        thread.join()


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_an_exec_in_flight_keeps_no_verb_from_its_restart(crio: Node, verb: str) -> None:
    if verb == "uninstall":
        crio.installer("install", *ASKED, check=True)
    count = starts(crio)

    with exec_in_flight(crio):
        done = crio.installer(verb, *(ASKED if verb == "install" else ()))

    assert done.returncode == 0, done.stderr
    assert starts(crio) == count + 1


def test_a_hook_comes_and_goes_without_a_restart(crio: Node) -> None:
    count, files = starts(crio), snapshot(crio)
    crio.installer("install", *ASKED, "--crio-hook", check=True)

    undone = crio.installer("uninstall")

    assert undone.returncode == 0, undone.stderr
    assert (starts(crio), snapshot(crio)) == (count, files)


def test_a_run_with_a_hook_is_ready_where_crio_reads_its_directory(crio: Node) -> None:
    process = crio.start_installer("run", *ASKED, "--crio-hook")
    process.wait_for("waiting for a signal")

    ready, plan = crio.installer("status", "--ready"), crio.installer("plan", *ASKED, "--crio-hook")
    well, (_, checks) = crio.installer("status"), doctor(crio)
    crio.write(OWNERS, '[crio.runtime]\nhooks_dir = ["/opt/hooks"]\n')
    crio.installer("reconcile")
    later, told = crio.installer("status", "--ready"), crio.installer("status")
    crio.run(["rm", OWNERS])

    process.terminate()
    assert process.wait() == 0, process.log
    assert (ready.returncode, plan.returncode) == (0, 0), ready.stdout
    assert "not proven" not in plan.stdout
    assert "crio  " in well.stdout
    assert "runs our OCI hook, since" in well.stdout
    assert "serves our runtimes" not in well.stdout
    assert {**bad(checks), **warned(checks)}.keys() == {"driver-libraries"}, "the node has a module alone"
    assert checks["runtime-served"]["level"] == "ok"
    assert (later.returncode, told.returncode) == (0, 1), "it reads the directory until its restart"
    assert "(it looks for hooks in /opt/hooks)" in told.stdout


@pytest.mark.parametrize("verb", ["plan", "install", "uninstall"])
def test_a_crio_that_systemd_is_about_to_start_again_is_waited_for(crio: Node, verb: str) -> None:
    if verb == "uninstall":
        crio.installer("install", *ASKED, check=True)
    crio.run(["systemctl", "kill", "--signal=KILL", "crio"])
    crio.wait_for("auto-restart", ["systemctl", "show", "-P", "SubState", "crio"])

    done = crio.installer(verb, *(ASKED if verb != "uninstall" else ()))

    assert done.returncode == (10 if verb == "plan" else 0), done.stderr
    assert crio.show("crio", "ActiveState") == "active"


def reload(node: Node) -> None:
    node.run(["systemctl", "reload", "crio"])
    time.sleep(0.2)


def touch(node: Node) -> None:
    node.run(["touch", OURS])


def comment(node: Node) -> None:
    node.write(OURS, node.read(OURS) + COMMENT)


def remove_ours(node: Node) -> None:
    node.run(["rm", OURS])


def forget_the_comment(node: Node) -> None:
    """Remove what its owner has added, which an undo leaves."""
    assert node.run(["cat", OURS], check=False).stdout in {"", COMMENT}
    node.run(["rm", "-f", OURS])


def restart(node: Node) -> None:
    node.restart("crio")


# What an owner does that changes nothing of what is in force.
HARMLESS = {
    "a touched file": (touch,),
    "a comment": (comment,),
    "a reload": (reload,),
    "a restart": (restart,),
    "a comment and a reload": (comment, reload),
    "a comment and a restart": (comment, restart),
}


@pytest.mark.parametrize("acts", HARMLESS.values(), ids=HARMLESS)
def test_a_run_that_waits_stays_ready_over_what_changes_nothing(
    crio: Node, acts: tuple[Callable[[Node], None], ...]
) -> None:
    process = crio.start_installer("run", *ASKED)
    process.wait_for("waiting for a signal")
    count = starts(crio)
    for act in acts:
        act(crio)

    asked = crio.installer("reconcile")

    ready, told = crio.installer("status", "--ready"), crio.installer("status")
    plan, served = crio.installer("plan", *ASKED), starts(crio)
    process.terminate()
    assert process.wait() == 0, process.log
    forget_the_comment(crio)
    assert (asked.returncode, ready.returncode, told.returncode, plan.returncode) == (0, 0, 0, 0), told.stdout
    assert served == count + acts.count(restart)


def test_a_drop_in_that_somebody_removes_is_written_again_without_a_restart(crio: Node) -> None:
    process = crio.start_installer("run", *ASKED)
    process.wait_for("waiting for a signal")
    count, text = starts(crio), crio.read(OURS)
    crio.run(["rm", OURS])

    crio.wait_for(text, ["cat", OURS], timeout_s=20)

    process.wait_for("drift repaired")
    ready, plan = crio.installer("status", "--ready"), crio.installer("plan", *ASKED)
    served = starts(crio)
    process.terminate()
    assert process.wait() == 0, process.log
    assert (ready.returncode, plan.returncode, served) == (0, 0, count), (ready.stdout, plan.stdout)


@pytest.mark.parametrize("read", [True, False], ids=["with a restart", "unread"])
@pytest.mark.parametrize("edit", [comment, remove_ours])
def test_what_ours_inherited_stays_over_another_default_and_an_edit_of_our_drop_in(
    crio: Node, edit: Callable[[Node], None], *, read: bool
) -> None:
    crio.installer("install", *ASKED, check=True)
    config = f"{RUNTIME.rpartition('/')[0]}/.config/nvidia-container-runtime/config.toml"
    before = tomllib.loads(crio.read(OURS)), crio.read(config)
    crio.write(OWNERS, OTHER_DEFAULT)
    if read:
        crio.restart("crio")
    edit(crio)

    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    again = crio.installer("install", *ASKED)

    after = tomllib.loads(crio.read(OURS)), crio.read(config)
    crio.run(["rm", OWNERS])
    crio.restart("crio")
    crio.installer("uninstall", check=True)
    forget_the_comment(crio)
    assert (told.returncode, plan.returncode) == ((0, 0) if edit is comment else (1, 10)), plan.stdout
    assert again.returncode == 0, again.stderr
    assert after == before


def test_our_drop_in_is_not_written_without_the_handler_that_its_owner_had_in_it(crio: Node) -> None:
    process = crio.start_installer("run", *ASKED)
    process.wait_for("waiting for a signal")
    crio.write(OURS, f'{crio.read(OURS)}{HANDLER}monitor_path = "/usr/libexec/crio/conmon"\n')
    crio.restart("crio")
    asked = crio.installer("reconcile")
    crio.run(["mv", OURS, "/root/kept"])

    process.wait_for("drift not repaired")
    written, told = (crio.root / OURS[1:]).exists(), crio.installer("status")
    crio.run(["mv", "/root/kept", OURS])
    crio.wait_for("ready", ["sh", "-c", "test -e /run/nvidia/toolkit/ready && echo ready"], timeout_s=20)
    crio.run(["rm", OURS])
    time.sleep(3)
    again = crio.installer("reconcile")

    text = crio.read(OURS)
    process.terminate()
    assert process.wait() == 0, process.log
    assert (asked.returncode, written, told.returncode) == (0, False, 1), told.stdout
    assert f"{OURS} was removed, with more in it than our runtimes" in told.stdout
    assert (again.returncode, "gpu" in text, "nvidia" in text) == (0, False, True), text


def test_an_install_after_a_reload_is_as_one_before(crio: Node) -> None:
    reload(crio)
    crio.installer("install", *ASKED, check=True)
    count, text = starts(crio), crio.read(OURS)

    again = crio.installer("install", *ASKED)

    assert "nothing changed" in again.stderr
    assert (starts(crio), crio.read(OURS)) == (count, text)


@pytest.mark.parametrize("program", [RUNTIME, "/usr/libexec/crio/runc"], ids=["ours", "his own"])
def test_a_handler_of_our_name_that_its_owner_wrote_before_the_first_install_stays_his(
    crio: Node, program: str
) -> None:
    text = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{program}"\nruntime_root = "/run/his"\n'
    crio.write(OWNERS, text)
    crio.restart("crio")
    before = call(crio, "Status", VERBOSE)

    ahead = crio.installer("status")
    done = crio.installer("install", *ASKED)
    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    undone, left = crio.installer("uninstall"), crio.installer("status")

    kept = crio.read(OWNERS)
    crio.restart("crio")
    after = call(crio, "Status", VERBOSE)
    crio.run(["rm", OWNERS])
    crio.restart("crio")
    assert (ahead.returncode, done.returncode, told.returncode, plan.returncode) == (3, 0, 0, 0), told.stdout
    assert (undone.returncode, left.returncode) == (0, 3), (undone.stderr, left.stdout)
    assert (kept, after) == (text, before)


def test_a_stopped_pod_on_a_handler_of_before_the_install_keeps_what_it_is_removed_by(crio: Node) -> None:
    crio.write(OWNERS, HANDLER)
    crio.installer("install", *ASKED, check=True)
    annotations = (
        f'{{"io.kubernetes.cri-o.SandboxID": "{SANDBOX}", "io.kubernetes.cri-o.RuntimeHandler": "gpu"}}'
    )
    bundle(crio, SANDBOX, annotations)

    kept = crio.installer("uninstall", "--in-use", "keep")
    there = (crio.root / RUNTIME[1:]).exists()

    crio.run(["rm", "-rf", OWNERS, STATE])
    crio.restart("crio")
    assert kept.returncode == 4, kept.stderr
    assert there
    assert crio.installer("uninstall").returncode == 0


@pytest.mark.parametrize("name", ["90-owner.conf", "100-owner.conf"])
@pytest.mark.parametrize("dead", [False, True], ids=["before a restart", "behind a restart that has failed"])
def test_an_owner_who_names_our_runtime_his_default_gets_it_and_keeps_it(
    crio: Node, name: str, *, dead: bool
) -> None:
    crio.write(f"{DROP_INS}/{name}", '[crio.runtime]\ndefault_runtime = "nvidia"\n')
    if dead:
        crio.run(["systemctl", "restart", "crio"], check=False)

    plan = crio.installer("plan", *ASKED)
    done = crio.installer("install", *ASKED)
    run_pod(crio, "")
    told, again = crio.installer("status"), crio.installer("plan", *ASKED)
    kept = crio.installer("uninstall")

    crio.restart("crio")
    run_pod(crio, "nvidia")
    crio.run(["rm", f"{DROP_INS}/{name}"])
    assert (plan.returncode, done.returncode) == (10, 0), done.stderr
    assert (told.returncode, again.returncode, kept.returncode) == (0, 0, 4), (again.stdout, kept.stderr)
    assert (
        f"remove the runtime nvidia from CRI-O (it was made the default in {DROP_INS}/{name})" in kept.stderr
    )
    assert crio.installer("uninstall").returncode == 0


MINE = '[crio.runtime.runtimes.mine]\nruntime_path = "/usr/libexec/crio/runc"\nruntime_root = "/run/mine"\n'
SINCE = {
    "took away": "",
    "wrote anew": MINE.replace('runtime_root = "/run/mine"', 'container_min_memory = "13MiB"'),
}


@pytest.mark.parametrize("text", SINCE.values(), ids=SINCE)
def test_a_runtime_is_not_missed_as_it_was_that_its_owner_since_the_start(crio: Node, text: str) -> None:
    crio.write(OWNERS, MINE)
    crio.restart("crio")
    crio.installer("install", *ASKED, check=True)
    crio.write(OWNERS, text)
    count = starts(crio)

    done = crio.installer("uninstall")

    crio.run(["rm", OWNERS])
    assert done.returncode == 0, done.stderr
    assert starts(crio) == count + 1


LATER = f"{DROP_INS}/99-zz.conf"
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


def test_an_undo_that_is_refused_is_told_by_status_and_plan_until_an_install_settles_it(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    unit = crio.read(UNIT)
    crio.write(UNIT, f"[Unit]\nRefuseManualStop=yes\n{unit}")
    crio.run(["systemctl", "daemon-reload"])

    kept = crio.installer("uninstall")
    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    document = crio.installer("plan", *ASKED, "--json")
    done, settled = crio.installer("install", *ASKED), crio.installer("plan", *ASKED)

    crio.write(UNIT, unit)
    crio.run(["systemctl", "daemon-reload"])
    well = crio.installer("status")
    crio.installer("uninstall", check=True)
    assert (kept.returncode, told.returncode, plan.returncode) == (4, 1, 10), plan.stdout
    assert "RefuseManualStop=yes" in told.stdout
    assert "last undo: incomplete" in plan.stdout
    assert '"would_change": true' in document.stdout
    assert (done.returncode, settled.returncode, well.returncode) == (0, 0, 0), settled.stdout
