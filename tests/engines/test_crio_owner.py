"""CRI-O as its owner uses it: execs, reloads, handlers of his own, another conmon. All verbs say the same of it."""

import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from tests.engines.crios import ASKED, DROP_INS, OURS, call, reload, run_pod
from tests.engines.nodes import Node, Running
from tests.engines.told import bad, doctor, sentence, snapshot, starts, warned

RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
OWNERS = f"{DROP_INS}/50-owner.conf"
COMMENT = "# ours: ask the platform team\n"
OTHER_DEFAULT = """\
[crio.runtime]
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
runtime_root = "/run/other"
"""


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


def test_an_exec_in_flight_keeps_no_verb_from_its_restart(crio: Node) -> None:
    count = starts(crio, "crio")

    for number, words in enumerate((("install", *ASKED), ("uninstall",)), start=1):
        with exec_in_flight(crio):
            done = crio.installer(*words)

        assert done.returncode == 0, done.stderr
        assert starts(crio, "crio") == count + number


@contextmanager
def waiting(node: Node, *words: str) -> Iterator[Running]:
    """Have a run wait during the block, and undo all after it."""
    process = node.start_installer("run", *ASKED, *words)
    process.wait_for("waiting for a signal")
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait() == 0, process.log


def test_a_hook_comes_and_goes_without_a_restart_and_is_ready_where_crio_reads_its_directory(
    crio: Node,
) -> None:
    count, files = starts(crio, "crio"), snapshot(crio)
    with waiting(crio, "--crio-hook"):
        ready, plan = crio.installer("status", "--ready"), crio.installer("plan", *ASKED, "--crio-hook")
        well, (_, checks) = crio.installer("status"), doctor(crio)
        crio.write(OWNERS, '[crio.runtime]\nhooks_dir = ["/opt/hooks"]\n')
        crio.installer("reconcile")
        later, told = crio.installer("status", "--ready"), crio.installer("status")
        crio.run(["rm", OWNERS])

    assert (ready.returncode, plan.returncode) == (0, 0), ready.stdout
    assert "runs our OCI hook, since" in well.stdout
    assert {**bad(checks), **warned(checks)}.keys() == {"driver-libraries"}, "the node has a module alone"
    assert (later.returncode, told.returncode) == (0, 1), "it reads the directory until its restart"
    assert "(it looks for hooks in /opt/hooks)" in told.stdout
    assert (starts(crio, "crio"), snapshot(crio)) == (count, files)


def test_a_run_stays_ready_over_what_changes_nothing_and_writes_a_removed_drop_in_again(crio: Node) -> None:
    with waiting(crio) as process:
        count, text = starts(crio, "crio"), crio.read(OURS)
        codes = []
        for edit in (["touch", OURS], ["sh", "-c", f"echo '{COMMENT}' >> {OURS}"]):
            crio.run(edit)
            reload(crio)
            crio.installer("reconcile", check=True)
            codes += [crio.installer(*words).returncode for words in (["status"], ["status", "--ready"])]
        codes.append(crio.installer("plan", *ASKED).returncode)
        crio.restart("crio")
        codes.append(crio.installer("reconcile").returncode)
        crio.write(OURS, text)
        crio.installer("reconcile", check=True)
        crio.run(["rm", OURS])

        crio.wait_for(text, ["cat", OURS], timeout_s=20)

        process.wait_for("drift repaired")
        assert crio.installer("status", "--ready").returncode == 0
        assert codes == [0] * 6
        assert starts(crio, "crio") == count + 1, "which the owner made"


def test_what_ours_inherited_stays_over_another_default_and_a_drop_in_that_is_gone(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    config = f"{RUNTIME.rpartition('/')[0]}/.config/nvidia-container-runtime/config.toml"
    before = tomllib.loads(crio.read(OURS)), crio.read(config)
    crio.write(OWNERS, OTHER_DEFAULT)
    crio.restart("crio")
    crio.run(["rm", OURS])

    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    again = crio.installer("install", *ASKED)

    after = tomllib.loads(crio.read(OURS)), crio.read(config)
    crio.run(["rm", OWNERS])
    crio.restart("crio")
    assert (told.returncode, plan.returncode) == (1, 10), plan.stdout
    assert again.returncode == 0, again.stderr
    assert after == before


def test_an_owner_who_names_our_runtime_his_default_gets_it_and_keeps_it(crio: Node) -> None:
    name = f"{DROP_INS}/90-owner.conf"
    crio.write(name, '[crio.runtime]\ndefault_runtime = "nvidia"\n')
    crio.run(["systemctl", "restart", "crio"], check=False)  # which fails

    plan = crio.installer("plan", *ASKED)
    done = crio.installer("install", *ASKED)
    run_pod(crio, "")
    told, again = crio.installer("status"), crio.installer("plan", *ASKED)
    kept = crio.installer("uninstall")

    crio.restart("crio")
    run_pod(crio, "nvidia")
    crio.run(["rm", name])
    assert (plan.returncode, done.returncode) == (10, 0), done.stderr
    assert (told.returncode, again.returncode, kept.returncode) == (0, 0, 4), (again.stdout, kept.stderr)
    assert f"(it was made the default in {name})" in kept.stderr
    assert crio.installer("uninstall").returncode == 0


MINE = '[crio.runtime.runtimes.mine]\nruntime_path = "/usr/libexec/crio/runc"\n{}\n'


def test_a_runtime_is_not_missed_as_it_was_that_its_owner_wrote_anew_since_the_start(crio: Node) -> None:
    crio.write(OWNERS, MINE.format('runtime_root = "/run/mine"'))
    crio.restart("crio")
    crio.installer("install", *ASKED, check=True)
    crio.write(OWNERS, MINE.format('container_min_memory = "13MiB"'))
    count = starts(crio, "crio")

    done = crio.installer("uninstall")

    crio.run(["rm", OWNERS])
    assert done.returncode == 0, done.stderr
    assert starts(crio, "crio") == count + 1


OLD, NEW = "/usr/libexec/crio/conmon", "/opt/crio/conmon"
ELSEWHERE = "".join(
    f'[crio.runtime.runtimes.{name}]\nruntime_path = "/usr/libexec/crio/{name}"\nmonitor_path = "{NEW}"\n'
    'runtime_root = "/run/other"\n'
    for name in ("crun", "runc")
)


@pytest.fixture
def with_conmon(crio: Node) -> Iterator[Node]:
    """Return the node; whatever an owner has done to its conmon is as it was afterwards."""
    yield crio
    crio.run(["ln", "-sf", OLD, "/usr/bin/conmon"])
    crio.installer("uninstall", check=True)
    crio.run(["sh", "-c", f"test -e {OLD} || mv {NEW} {OLD}; rm -rf /opt/crio {OWNERS}"])
    crio.run(["systemctl", "reset-failed"])
    crio.restart("crio")


def test_all_verbs_tell_of_a_program_that_is_gone_and_none_restarts(with_conmon: Node) -> None:
    crio, why = with_conmon, "conmon, is not in its PATH"
    other = '[crio.runtime.runtimes.other]\nruntime_path = "/usr/libexec/crio/runc"\n'
    crio.write(OWNERS, other)
    crio.run(["rm", "/usr/bin/conmon"])
    untouched, count = snapshot(crio), starts(crio, "crio")
    plan, refused = crio.installer("plan", *ASKED), crio.installer("install", *ASKED)
    assert (plan.returncode, refused.returncode) == (1, 1)
    assert why in sentence(refused.stderr)
    assert sentence(refused.stderr) in plan.stdout
    assert (starts(crio, "crio"), snapshot(crio)) == (count, untouched)
    crio.run(["rm", OWNERS])
    crio.run(["ln", "-s", OLD, "/usr/bin/conmon"])
    crio.installer("install", *ASKED, check=True)
    crio.write(OWNERS, other)
    crio.run(["rm", "/usr/bin/conmon"])
    count = starts(crio, "crio")

    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    again = crio.installer("install", *ASKED)
    default = crio.installer("install", *ASKED, "--set-as-default")
    kept = crio.installer("uninstall")

    assert (told.returncode, why in told.stdout) == (1, True), told.stdout
    assert (plan.returncode, why in plan.stdout) == (0, True), plan.stdout
    assert (again.returncode, default.returncode) == (0, 1), (again.stderr, default.stderr)
    assert kept.returncode == 4, kept.stderr
    assert why in sentence(kept.stderr)
    assert starts(crio, "crio") == count


@pytest.mark.parametrize("down", [False, True], ids=["before crio is restarted", "that keeps crio down"])
def test_an_install_follows_an_owner_who_moves_conmon(with_conmon: Node, *, down: bool) -> None:
    crio = with_conmon
    crio.installer("install", *ASKED, check=True)
    root = next(line for line in crio.read(OURS).splitlines() if line.startswith("runtime_root"))
    crio.write(OWNERS, ELSEWHERE)
    crio.run(["sh", "-c", f"mkdir -p /opt/crio; mv {OLD} {NEW}"])
    if down:
        crio.run(["systemctl", "restart", "crio"], check=False)

    told, plan = crio.installer("status"), crio.installer("plan", *ASKED)
    done = crio.installer("install", *ASKED)
    after, again = crio.installer("status"), crio.installer("plan", *ASKED)

    text = crio.read(OURS)
    crio.run(["systemctl", "restart", "crio"], check=False)
    assert (told.returncode, plan.returncode) == (1, 10), plan.stdout
    assert down or f"the monitor_path of nvidia, {OLD}, is no program" in told.stdout
    assert done.returncode == 0, done.stderr
    assert (after.returncode, again.returncode) == (0, 0), after.stdout
    assert (NEW in text, OLD in text, text.count(root)) == (True, False, 3)
    assert crio.show("crio", "ActiveState") == "active"
