"""CRI-O, and its owner, who reloads it, execs, and names handlers, defaults and conmons: all verbs say the same of it.

A fake one under a real systemd and the unit that a real one comes with; it says and does what that was recorded to.
"""

import json
import threading
import time
from collections.abc import Iterator

import pytest

from tests.engines.cri import Cri, CriError
from tests.engines.crio_nodes import (
    ASKED,
    CONTAINER,
    DEADLY,
    DROP_INS,
    OWNERS,
    STATE,
    UNIT_DROP_IN,
    crio,
    crio_node,
    owned,
    write_unit,
)
from tests.engines.nodes import Node, Running
from tests.engines.told import bad, but_the_ledger, doctor, sentence, snapshot, starts, warned
from tests.host.servers import message
from tests.support.waiting import until

__all__ = ["crio", "crio_node", "owned"]  # fixtures

OURS = f"{DROP_INS}/99-nvidia.toml"
SANDBOX = "415635d5fdde8b8339d4"
TOOLKIT = "/usr/local/nvidia/toolkit"
HOOK_FILE = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
ID = "c5996a2ef532b1118cb5"
GRACE_S = 30
WORDS = ("run", *ASKED, "--host-root", "/run/container/host", "--set-as-default")
COMMENT = "# ours: ask the platform team\n"


def cri(node: Node) -> Cri:
    """Return a client of CRI-O, as the kubelet is one."""
    return Cri(node.root / "run/crio/crio.sock")


def calling(node: Node, method: str, request: bytes = b"") -> threading.Thread:
    """Call CRI-O and go on meanwhile.

    It may be restarted in the moment in which it answers; a kubelet then asks again, and finds it done.
    """

    def call() -> None:
        try:
            cri(node).call(f"RuntimeService/{method}", request)
        except CriError as error:
            if error.code != "UNAVAILABLE":
                raise

    thread = threading.Thread(target=call)
    thread.start()
    return thread


def stop_container(node: Node, name: str, grace_s: int) -> threading.Thread:
    """Have a container ended, and go on meanwhile."""
    return calling(node, "StopContainer", message((1, name), (2, grace_s)))


def run_pod(node: Node, handler: str) -> None:
    """Start a pod on a handler."""
    cri(node).call("RuntimeService/RunPodSandbox", message((2, handler)))


def reload(node: Node) -> None:
    node.run(["systemctl", "reload", "crio"])
    time.sleep(0.2)


def bundle(node: Node, name: str, annotations: dict[str, str], pid: int | None = None) -> None:
    """Write what CRI-O keeps of a container."""
    said = {f"io.kubernetes.cri-o.{key}": value for key, value in annotations.items()}
    node.write(f"{STATE}/{name}/userdata/config.json", json.dumps({"annotations": said}))
    if pid is not None:
        node.write(f"{STATE}/{name}/userdata/pidfile", str(pid))


def run_conmon(node: Node, handler: str) -> Running:
    """Run the monitor of a container as 1.37.0 starts it on our runtime, which has the runtime_root of crun."""
    node.write("/run/fake/live/conmon", "#!/bin/sh\nsleep 1000\n")
    node.run(["chmod", "755", "/run/fake/live/conmon"])
    words = ["-c", ID, "-r", f"{TOOLKIT}/nvidia-container-runtime", "--runtime-arg", "--root=/run/crun"]
    monitor = node.start(["/run/fake/live/conmon", *words])
    bundle(node, SANDBOX, {"RuntimeHandler": handler, "SandboxID": SANDBOX})
    bundle(node, ID, {"SandboxID": SANDBOX})
    node.write(f"{STATE}/{ID}/userdata/conmon-pidfile", str(monitor.pid))
    return monitor


def test_it_is_installed_and_undone_with_one_restart_each(crio: Node) -> None:
    files, count = snapshot(crio), starts(crio, "crio")

    done = crio.installer("install", *ASKED)

    assert done.returncode == 0, done.stderr
    run_pod(crio, "nvidia")
    assert starts(crio, "crio") == count + 1
    assert 'monitor_path = "/usr/libexec/crio/conmon"' in crio.read(OURS)
    again = crio.installer("install", *ASKED)
    assert "nothing changed" in again.stderr
    assert starts(crio, "crio") == count + 1
    undone = crio.installer("uninstall")
    assert undone.returncode == 0, undone.stderr
    assert starts(crio, "crio") == count + 2
    assert snapshot(crio) == files
    with pytest.raises(CriError, match="failed to find runtime handler nvidia"):
        run_pod(crio, "nvidia")


def test_no_verb_restarts_into_a_drop_in_that_is_a_link_to_no_file(crio: Node) -> None:
    name = f"{DROP_INS}/50-site.conf"
    crio.installer("install", *ASKED, check=True)
    count, written = starts(crio, "crio"), snapshot(crio)
    crio.run(["ln", "-s", "/srv/gone.conf", name])

    undone = crio.installer("uninstall")
    renamed = crio.installer("install", *ASKED, "--runtime-name", "gpu")

    assert (undone.returncode, renamed.returncode) == (4, 1), (undone.stderr, renamed.stderr)
    for done in (undone, renamed):
        assert f"it reads {name}, which is a link to nowhere, or no file" in sentence(done.stderr)
    run_pod(crio, "nvidia")
    assert starts(crio, "crio") == count
    crio.run(["rm", name])
    assert but_the_ledger(snapshot(crio)) == but_the_ledger(written)


@pytest.mark.long
def test_a_pod_that_undoes_the_crio_it_runs_under_ends_at_once_and_the_host_undoes_all(crio: Node) -> None:
    files, count = snapshot(crio), starts(crio, "crio")
    contained = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CONTAINER, "sh"]
    process = crio.start([*contained, *WORDS])
    process.wait_for("waiting for a signal")
    inside = crio.run(["pgrep", "--parent", str(process.pid)]).stdout.strip()
    bundle(crio, ID, {"SandboxID": SANDBOX}, int(inside))
    bundle(crio, SANDBOX, {"SandboxID": SANDBOX, "RuntimeHandler": ""})
    began = time.monotonic()

    stop_container(crio, ID, GRACE_S).join()
    took_s = time.monotonic() - began
    status = crio.installer("status")
    crio.wait_for("gone", ["sh", "-c", "test -e /usr/local/nvidia || echo gone"])
    crio.wait_for("inactive", ["systemctl", "is-active", "toolkit-installer-undo"])

    assert process.wait() == 4, process.log
    assert took_s < GRACE_S / 2
    assert "undo-pending" in status.stdout
    assert "undo complete" in crio.journal("toolkit-installer-undo")
    assert starts(crio, "crio") == count + 2
    assert snapshot(crio) == files
    assert not (crio.root / "run/nvidia/toolkit/ready").exists()


def test_a_restart_is_waited_for_as_long_as_the_calls_in_flight(crio: Node) -> None:
    count = starts(crio, "crio")
    busy = crio.start(["sh", "-c", 'trap "" TERM; while :; do sleep 0.1; done'])
    bundle(crio, ID, {"SandboxID": "x"}, busy.pid)
    stopping = stop_container(crio, ID, 9)
    time.sleep(0.5)

    done = crio.installer("install", *ASKED, "--timeout", "3")

    stopping.join()
    busy.wait()
    assert done.returncode == 0, done.stderr
    assert starts(crio, "crio") == count + 1
    run_pod(crio, "nvidia")


def test_a_reload_is_not_taken_for_a_restart(crio: Node) -> None:
    crio.installer("install", *ASKED, "--restart-mode", "none", check=True)
    reload(crio)
    count = starts(crio, "crio")

    done = crio.installer("install", *ASKED)

    assert done.returncode == 0, done.stderr
    assert starts(crio, "crio") == count + 1
    run_pod(crio, "nvidia")
    crio.run(["rm", OURS])
    reload(crio)  # it serves ours still, and says so no more
    crio.installer("uninstall", check=True)
    assert starts(crio, "crio") == count + 2


def test_a_hook_is_ready_without_a_restart_and_goes_after_containers_that_are_being_made(crio: Node) -> None:
    count, files, hook = starts(crio, "crio"), snapshot(crio), f"{TOOLKIT}/nvidia-container-runtime-hook"
    process = crio.start_run(*ASKED, "--crio-hook")
    ready, status, (_, checks) = crio.installer("status", "--ready"), crio.installer("status"), doctor(crio)
    plan = crio.installer("plan", *ASKED, "--crio-hook")
    crio.write(f"{STATE}/{ID}/userdata/config.json", f'{{"hooks": {{"prestart": [{{"path": "{hook}"}}]}}}}')

    process.terminate()
    crio.wait_for("gone", ["sh", "-c", f"test -e {HOOK_FILE} || echo gone"])
    time.sleep(2)

    assert (crio.root / hook[1:]).parent.exists() or (crio.root / TOOLKIT[1:]).is_symlink()
    crio.write(f"{STATE}/{ID}/userdata/pidfile", "186")
    assert process.wait() == 0, process.log
    assert (ready.returncode, plan.returncode) == (0, 0), ready.stdout
    assert "runs our OCI hook, since" in status.stdout
    assert {**bad(checks), **warned(checks)}.keys() == {"driver-libraries"}, "the node has a module alone"
    assert (starts(crio, "crio"), snapshot(crio)) == (count, files)


def test_programs_stay_while_crio_starts_them(crio: Node) -> None:
    files, count = snapshot(crio), starts(crio, "crio")
    crio.installer("install", *ASKED, "--set-as-default", check=True)
    starts_of_ours = starts(crio, "crio")

    left = [crio.installer("uninstall", "--restart-mode", "none")]
    between = crio.installer("status")
    left.append(crio.installer("uninstall", "--restart-mode", "none"))

    assert [each.returncode for each in left] == [4, 4]
    assert between.returncode == 1, between.stdout
    told = " ".join(between.stdout.split())
    assert "incomplete, cannot undo everything (CRI-O still " in told
    assert "its restart: until then it may start our programs" in told
    reason = (
        "undo everything (CRI-O still serves nvidia, nvidia-cdi, nvidia-legacy, because it was not restarted)"
    )
    assert reason in sentence(left[1].stderr)
    assert "run systemctl restart crio.service, then run toolkit-installer" in sentence(left[1].stderr)
    assert crio.has(f"{TOOLKIT}/nvidia-container-runtime")
    assert not crio.has(OURS)
    run_pod(crio, "nvidia")
    crio.run(["systemctl", "restart", "crio"])
    crio.installer("uninstall", "--restart-mode", "none", check=True)
    assert (snapshot(crio), starts(crio, "crio")) == (files, starts_of_ours + 1)
    assert starts_of_ours == count + 1


def test_a_hook_without_a_ledger_goes_with_its_program(crio: Node) -> None:
    crio.installer("install", *ASKED, "--crio-hook", check=True)
    crio.run(["rm", "/usr/local/nvidia/.toolkit-installer/ledger"])
    crio.installer("install", *ASKED, "--crio-hook", check=True)

    crio.installer("uninstall", check=True)

    assert not crio.has(HOOK_FILE)
    crio.write(HOOK_FILE, json.dumps({"hook": {"path": f"{TOOLKIT}/nvidia-container-runtime-hook"}}))
    _, checks = doctor(crio)
    assert bad(checks)["hook-programs"].startswith(f"no program for the hook {HOOK_FILE} ({TOOLKIT}/")
    crio.installer("uninstall", check=True)
    assert not crio.has(HOOK_FILE)
    crio.run(["rmdir", "/usr/local/nvidia"])  # nobody knows any more who made it


def test_an_exec_in_flight_keeps_no_verb_from_its_restart(crio: Node) -> None:
    count = starts(crio, "crio")

    for number, words in enumerate((("install", *ASKED), ("uninstall",)), start=1):
        thread = calling(crio, "ExecSync")  # which ends with the engine, as a probe's does at each restart
        crio.wait_for("conmon", ["sh", "-c", "cat /proc/[0-9]*/comm"])
        done = crio.installer(*words)
        crio.run(["pkill", "-x", "conmon"], check=False)
        thread.join()

        assert done.returncode == 0, done.stderr
        assert starts(crio, "crio") == count + number


def test_a_run_stays_ready_over_what_changes_nothing_and_writes_a_removed_drop_in_again(crio: Node) -> None:
    process = crio.start_run(*ASKED)
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

    crio.wait_for(text, ["cat", OURS])

    process.wait_for("drift repaired")
    assert crio.installer("status", "--ready").returncode == 0
    assert codes == [0] * 6
    assert starts(crio, "crio") == count + 1, "which the owner made"
    process.terminate()
    assert process.wait() == 0, process.log


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


TABLES = "".join(
    f'[crio.runtime.runtimes.{name}]\nruntime_path = "/usr/libexec/crio/{name}"\nruntime_root = "/run/{name}"\n'
    for name in ("crun", "runc")
)


def test_no_restart_of_ours_loses_a_container_of_the_default_runtime(crio: Node) -> None:
    crio.installer("install", *ASKED, "--set-as-default", check=True)
    monitor = run_conmon(crio, "")
    crio.write(OWNERS, f'[crio.runtime]\ndefault_runtime = "runc"\n{TABLES}')
    crio.restart("crio")  # our drop-in is read later: its default stays in force
    count, untouched = starts(crio, "crio"), snapshot(crio)

    plan, refused = crio.installer("plan", *ASKED), crio.installer("install", *ASKED)
    at_refusal = starts(crio, "crio"), snapshot(crio)
    again = crio.installer("install", *ASKED, "--set-as-default")
    kept = crio.installer("uninstall", "--in-use", "keep")
    at_undo = starts(crio, "crio")
    monitor.kill()
    monitor.wait()
    undone = crio.installer("uninstall")

    crio.run(["rm", OWNERS])
    problem = (
        f"the container {ID[:12]} runs under the runtime_root /run/crun, and after a restart CRI-O looks for it "
        "under /run/runc, by the runtime runc"
    )
    assert (plan.returncode, refused.returncode) == (1, 1), refused.stderr
    assert problem in sentence(refused.stderr)
    assert sentence(refused.stderr) in plan.stdout
    assert at_refusal == (count, untouched)
    assert again.returncode == 0, again.stderr
    assert (kept.returncode, problem in kept.stderr, at_undo) == (4, True, count), kept.stderr
    assert undone.returncode == 0, undone.stderr


def test_no_undo_restarts_a_crio_whose_files_lack_the_handler_of_a_live_container(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    left = crio.installer("uninstall", "--restart-mode", "none")
    # CRI-O still serves nvidia, and a pod asks for it.
    monitor = run_conmon(crio, "nvidia")
    count = starts(crio, "crio")

    kept = crio.installer("uninstall", "--in-use", "keep")
    at_undo = starts(crio, "crio")
    monitor.kill()
    monitor.wait()
    crio.run(["rm", "-rf", STATE])
    undone = crio.installer("uninstall")

    assert (left.returncode, kept.returncode, at_undo) == (4, 4, count), kept.stderr
    assert "in-use" in kept.stderr
    assert undone.returncode == 0, undone.stderr


def test_an_undo_restarts_crio_once_after_its_owner_has_deleted_our_program(crio: Node) -> None:
    crio.installer("install", *ASKED, "--set-as-default", check=True)
    monitor = run_conmon(crio, "nvidia")
    crio.run(["rm", "/usr/local/nvidia/toolkit/nvidia-container-runtime"])
    count = starts(crio, "crio")

    kept = crio.installer("uninstall", "--in-use", "keep")
    at_undo = starts(crio, "crio")
    monitor.kill()
    monitor.wait()
    crio.run(["rm", "-rf", STATE])
    undone = crio.installer("uninstall")

    assert (kept.returncode, at_undo) == (4, count + 1), kept.stderr
    assert "in-use" in kept.stderr
    assert undone.returncode == 0, undone.stderr


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


@pytest.mark.sampled(16)
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("text", "reason"), DEADLY.values(), ids=DEADLY)
def test_no_verb_restarts_into_what_the_next_start_dies_of(owned: Node, text: str, reason: str) -> None:
    def make_mistake() -> None:
        if text.startswith("["):
            owned.write(OWNERS, text)
        else:
            write_unit(owned, text)

    make_mistake()
    untouched, count = snapshot(owned), starts(owned, "crio")
    plan, refused = owned.installer("plan", *ASKED), owned.installer("install", *ASKED)
    assert (plan.returncode, refused.returncode) == (1, 1), refused.stderr
    assert reason in sentence(refused.stderr)
    assert reason in plan.stdout
    assert (starts(owned, "crio"), snapshot(owned)) == (count, untouched)
    owned.run(["rm", "-rf", UNIT_DROP_IN, OWNERS])
    owned.run(["systemctl", "daemon-reload"])
    owned.installer("install", *ASKED, check=True)
    make_mistake()
    count = starts(owned, "crio")

    told, plan = owned.installer("status"), owned.installer("plan", *ASKED)
    undone = owned.installer("uninstall")
    _, checks = doctor(owned)

    assert (told.returncode, reason in told.stdout) == (1, True), told.stdout
    assert reason in plan.stdout
    assert reason in bad(checks)["config-accepted"]
    assert (undone.returncode, reason in sentence(undone.stderr)) == (4, True), undone.stderr
    assert starts(owned, "crio") == count
    assert owned.show("crio", "ActiveState") == "active"


@pytest.mark.parametrize("words", [("install", *ASKED), ("uninstall",)], ids=["install", "uninstall"])
def test_a_default_that_the_unit_gives_the_next_start_is_expected_of_it(
    owned: Node, words: tuple[str, ...]
) -> None:
    owned.installer("install", *ASKED, "--set-as-default", check=True)
    write_unit(owned, "Environment=CONTAINER_DEFAULT_RUNTIME=runc")
    count = starts(owned, "crio")

    done = owned.installer(*words)

    assert done.returncode == 0, done.stderr
    assert starts(owned, "crio") == count + 1


def test_our_drop_in_may_be_in_a_subdirectory_that_crio_reads(crio: Node) -> None:
    files, count = snapshot(crio), starts(crio, "crio")
    asked = (*ASKED, "--drop-in-config", f"crio={DROP_INS}/zzz.d/nv.toml")

    done = crio.installer("install", *asked)
    again = crio.installer("install", *asked)

    assert (done.returncode, again.returncode) == (0, 0), done.stderr
    assert crio.has(f"{DROP_INS}/zzz.d/nv.toml")
    run_pod(crio, "nvidia")
    assert starts(crio, "crio") == count + 1
    assert crio.installer("status").returncode == 0
    crio.installer("uninstall", check=True)
    assert snapshot(crio) == files


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text", ["bad = [\n", "[crio.runtime]\ndefault_runtime = 1\n"], ids=["no TOML", "a number for a name"]
)
def test_a_broken_file_of_another_owner_is_told_by_status_too(owned: Node, text: str) -> None:
    owned.installer("install", *ASKED, check=True)
    count = starts(owned, "crio")
    owned.write(OWNERS, text)

    told, plan = owned.installer("status"), owned.installer("plan", *ASKED)

    assert (told.returncode, plan.returncode) == (1, 1), told.stdout
    assert OWNERS in told.stdout
    assert starts(owned, "crio") == count


def test_a_default_that_a_flag_overrules_is_told_by_status(owned: Node) -> None:
    owned.installer("install", *ASKED, "--set-as-default", check=True)
    write_unit(owned, 'Environment="CRIO_RUNTIME_OPTIONS=--default-runtime runc"')
    owned.restart("crio")

    told = owned.installer("status")

    assert told.returncode == 1, told.stdout
    assert "the default runtime is runc, not nvidia" in told.stdout
    assert "move --default-runtime from its command line" in told.stdout


def test_a_hook_that_crio_reads_from_its_next_start_on_is_pending(owned: Node) -> None:
    owned.write(OWNERS, '[crio.runtime]\nhooks_dir = ["/elsewhere"]\n')
    owned.restart("crio")
    elsewhere = owned.installer("plan", *ASKED, "--crio-hook")
    owned.run(["rm", OWNERS])

    early = owned.installer("plan", *ASKED, "--crio-hook")

    assert "add /usr/share/containers/oci/hooks.d to hooks_dir" in elsewhere.stdout
    assert "restart crio.service" in early.stdout
    owned.restart("crio")
    owned.installer("install", *ASKED, "--crio-hook", check=True)
    owned.write(OWNERS, '[crio.runtime]\nhooks_dir = ["/elsewhere"]\n')
    owned.restart("crio")
    owned.run(["rm", OWNERS])
    told, (_, checks) = owned.installer("status"), doctor(owned)
    again = [owned.installer(verb, *ASKED, "--crio-hook") for verb in ("plan", "install")]
    assert told.returncode == 0, told.stdout
    assert "crio  " in told.stdout
    assert "pending: cannot give CRI-O the hook" in told.stdout
    assert "pending" in warned(checks)["installation"]
    for each in again:
        assert "to hooks_dir" not in each.stdout + each.stderr
        assert "restart crio.service" in each.stdout + each.stderr
    owned.restart("crio")
    assert "pending" not in owned.installer("status").stdout


def test_status_beside_a_hook_names_what_the_next_start_dies_of(owned: Node) -> None:
    owned.installer("install", *ASKED, "--crio-hook", check=True)
    good = owned.installer("status")
    owned.write(OWNERS, '[crio.runtime]\ncgroup_manager = "bogus"\n')

    bad_later = owned.installer("status")

    assert (good.returncode, bad_later.returncode) == (0, 1), bad_later.stdout
    assert "its cgroup_manager bogus is neither systemd nor cgroupfs" in bad_later.stdout
    assert f"correct cgroup_manager in {OWNERS}" in bad_later.stdout


def test_a_runtime_that_crio_leaves_out_for_its_absent_program_is_a_warning(owned: Node) -> None:
    owned.write(OWNERS, '[crio.runtime.runtimes.kata]\nruntime_path = "/usr/bin/kata"\n')
    owned.restart("crio")

    _, checks = doctor(owned)

    assert "config-in-force" not in bad(checks)
    assert "kata in its configs, which it ignores" in warned(checks)["config-in-force"]


def test_no_restart_of_ours_takes_a_served_runtime_whose_program_is_gone(owned: Node) -> None:
    owned.run(["sh", "-c", "mkdir -p /run/mine && ln -sf /usr/libexec/crio/runc /run/mine/runc"])
    owned.write(OWNERS, '[crio.runtime.runtimes.mine]\nruntime_path = "/run/mine/runc"\n')
    owned.restart("crio")
    owned.run(["rm", "-r", "/run/mine"])
    count = starts(owned, "crio")

    plan, done = owned.installer("plan", *ASKED), owned.installer("install", *ASKED)

    assert (plan.returncode, done.returncode) == (1, 1), done.stderr
    assert "its next start leaves out the runtime mine" in sentence(done.stderr)
    assert starts(owned, "crio") == count


def test_a_restart_that_is_left_to_the_owner_is_pending_for_each_verb(owned: Node) -> None:
    owned.installer("install", *ASKED, "--restart-mode", "none", check=True)
    alone, (_, checks) = owned.installer("status"), doctor(owned)
    owned.run(["sh", "-c", f"echo '{COMMENT}' >> {OURS}"])
    edited = owned.installer("status")
    process = owned.start_run(*ASKED, "--restart-mode", "none")

    watched, ready, (_, later) = owned.installer("status"), owned.is_ready(), doctor(owned)

    assert (alone.returncode, edited.returncode, watched.returncode) == (0, 0, 0), watched.stdout
    assert "our keys in force" not in edited.stdout
    for found in (checks, later):
        assert not {"config-in-force", "runtime-served", "installation"} & bad(found).keys()
        assert "not served" in warned(found)["config-in-force"]
    assert not ready
    process.terminate()
    assert process.wait() == 0, process.log
    owned.run(["rm", "-f", OURS])


def test_a_run_waits_until_the_owner_of_crio_has_mended_what_its_unit_lacks(owned: Node) -> None:
    files, count = snapshot(owned), starts(owned, "crio")
    write_unit(owned, "EnvironmentFile=/opt/flag")

    process = owned.start_run(*ASKED)
    try:
        waits = owned.installer("status", "--ready")
        owned.run(["rm", UNIT_DROP_IN])
        owned.run(["systemctl", "daemon-reload"])
        began = time.monotonic()
        process.wait_for('"installed"')
        took_s = time.monotonic() - began
        until(owned.is_ready, lambda: process.log)

        assert process.log.count('"waiting for the owner"') == 1
        assert (waits.returncode, took_s < 10) == (1, True)
        assert "its EnvironmentFile /opt/flag is not there" in waits.stdout
        assert starts(owned, "crio") == count + 1
        run_pod(owned, "nvidia")
        process.terminate()
        assert process.wait() == 0, process.log
    finally:
        process.kill()
    assert snapshot(owned) == files
