"""CRI-O: a fake one under a real systemd, which says and does what a real one was recorded to."""

import time

import grpc
import pytest

from tests.engines.crios import (
    ASKED,
    CONF,
    DROP_INS,
    OURS,
    STATE,
    bundle,
    call,
    outage,
    run_pod,
    starts,
    stop_container,
)
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.running import Running
from tests.engines.snapshot import but_the_ledger, snapshot
from tests.engines.told import sentence
from tests.support.entry import NVIDIAS

TOOLKIT = "/usr/local/nvidia/toolkit"
ID = "c5996a2ef532b1118cb5"
GRACE_S = 30
SANDBOX = "415635d5fdde8b8339d4"
# A container of its own: /host and the capabilities as in our manifests, its own processes, mounts and /proc.
CONTAINER = """
mount --make-rprivate / && mkdir -p /run/container && mount -t tmpfs none /run/container &&
mkdir /run/container/host && mount --rbind / /run/container/host && mount -t proc proc /proc &&
exec setpriv --bounding-set=-all,+chown,+dac_override,+fowner,+sys_chroot --inh-caps=-all \
    /usr/bin/python3 -m installer "$@"
"""


def test_it_is_installed_and_undone_with_one_restart_each(crio: Node) -> None:
    files, count = snapshot(crio), starts(crio)

    done = crio.installer("install", *ASKED)

    assert done.returncode == 0, done.stderr
    run_pod(crio, "nvidia")
    assert starts(crio) == count + 1
    assert 'monitor_path = "/usr/libexec/crio/conmon"' in crio.read(OURS)
    again = crio.installer("install", *ASKED)
    assert "nothing changed" in again.stderr
    assert starts(crio) == count + 1
    undone = crio.installer("uninstall")
    assert undone.returncode == 0, undone.stderr
    assert starts(crio) == count + 2
    assert snapshot(crio) == files
    with pytest.raises(grpc.RpcError, match="failed to find runtime handler nvidia"):
        run_pod(crio, "nvidia")


@pytest.mark.parametrize("target", ["/srv/gone.conf", "/etc/cdi"], ids=["nowhere", "a directory"])
def test_no_verb_restarts_into_a_drop_in_that_is_a_link_to_no_file(crio: Node, target: str) -> None:
    name = f"{DROP_INS}/50-site.conf"
    crio.installer("install", *ASKED, check=True)
    count, written = starts(crio), snapshot(crio)
    crio.run(["ln", "-s", target, name])

    undone = crio.installer("uninstall")
    renamed = crio.installer("install", *ASKED, "--runtime-name", "gpu")

    assert (undone.returncode, renamed.returncode) == (4, 1), (undone.stderr, renamed.stderr)
    for done in (undone, renamed):
        assert f"it reads {name}, which is a link to nowhere, or no file" in sentence(done.stderr)
    run_pod(crio, "nvidia")
    assert starts(crio) == count
    crio.run(["rm", name])
    assert but_the_ledger(snapshot(crio)) == but_the_ledger(written)


def start_container(node: Node, *words: str) -> Running:
    """Start ``run`` as CRI-O's container ID."""
    process = node.start(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CONTAINER, "sh", *words]
    )
    process.wait_for("waiting for a signal")
    inside = node.run(["pgrep", "--parent", str(process.pid)]).stdout.strip()
    annotations = f'{{"io.kubernetes.cri-o.SandboxID": "{SANDBOX}"}}'
    bundle(node, ID, annotations, int(inside))
    bundle(
        node,
        SANDBOX,
        f'{{"io.kubernetes.cri-o.SandboxID": "{SANDBOX}", "io.kubernetes.cri-o.RuntimeHandler": ""}}',
    )
    return process


@pytest.mark.parametrize("default", [True, False], ids=["as the default", "beside the default"])
def test_a_pod_that_undoes_the_crio_it_runs_under_ends_at_once_and_all_is_undone(
    crio: Node, *, default: bool
) -> None:
    files, count = snapshot(crio), starts(crio)
    words = ("--set-as-default",) if default else ()
    process = start_container(crio, "run", *ASKED, "--host-root", "/run/container/host", *words)
    began = time.monotonic()

    with outage(crio) as longest:
        stopping = stop_container(crio, ID, GRACE_S)
        stopping.join()
        took_s = time.monotonic() - began
        crio.wait_for("gone", ["sh", "-c", "test -e /usr/local/nvidia || echo gone"])
        crio.wait_for("inactive", ["systemctl", "is-active", "toolkit-installer-undo"])

    assert process.wait() == 0, process.log
    assert took_s < GRACE_S / 2
    assert longest() < GRACE_S / 2
    assert "undo complete" in crio.journal("toolkit-installer-undo")
    assert starts(crio) == count + 2
    assert snapshot(crio) == files
    assert not (crio.root / "run/nvidia/toolkit/ready").exists()


def test_an_undo_that_nobody_carries_on_is_finished_by_the_next(crio: Node) -> None:
    files = snapshot(crio)
    process = start_container(crio, "run", *ASKED, "--host-root", "/run/container/host")
    crio.run(["mv", "/usr/bin/nsenter", "/usr/bin/nsenter.away"])

    stop_container(crio, ID, GRACE_S).join()

    code = process.wait()
    crio.run(["mv", "/usr/bin/nsenter.away", "/usr/bin/nsenter"])
    assert code == 4, process.log
    assert "everything is still installed" in process.log
    run_pod(crio, "nvidia")
    assert crio.installer("uninstall").returncode == 0
    assert snapshot(crio) == files


def test_a_restart_is_waited_for_as_long_as_the_calls_in_flight(crio: Node) -> None:
    count = starts(crio)
    busy = crio.start(["sh", "-c", 'trap "" TERM; while :; do sleep 0.1; done'])
    bundle(crio, ID, '{"io.kubernetes.cri-o.SandboxID": "x"}', busy.pid)
    stopping = stop_container(crio, ID, 9)
    time.sleep(0.5)

    done = crio.installer("install", *ASKED, "--timeout", "3")

    stopping.join()
    busy.wait()
    assert done.returncode == 0, done.stderr
    assert starts(crio) == count + 1
    run_pod(crio, "nvidia")


def test_a_reload_is_not_taken_for_a_restart(crio: Node) -> None:
    crio.installer("install", *ASKED, "--restart-mode", "none", check=True)
    crio.run(["systemctl", "reload", "crio"])
    time.sleep(0.2)
    count = starts(crio)

    done = crio.installer("install", *ASKED)

    assert done.returncode == 0, done.stderr
    assert starts(crio) == count + 1
    run_pod(crio, "nvidia")


def test_what_a_reload_has_hidden_is_undone_by_a_restart(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    crio.run(["rm", OURS])
    crio.run(["systemctl", "reload", "crio"])
    time.sleep(0.2)
    count = starts(crio)

    done = crio.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert starts(crio) == count + 1


def test_the_reason_of_a_failed_start_is_that_of_the_process_that_did_not_start(crio: Node) -> None:
    crio.write("/run/fake/die", "")

    done = crio.installer("install", *ASKED)

    crio.run(["rm", "/run/fake/die"])
    assert done.returncode == 1, done.stderr
    assert 'level=fatal msg="validating runtime config: the fake has had enough' in sentence(done.stderr)
    assert crio.installer("uninstall").returncode == 0


@pytest.mark.parametrize(
    ("words", "conf", "mask", "problem"),
    [
        pytest.param(
            ("--drop-in-config", "crio=/etc/crio/mine.d/99-nvidia.toml"),
            "",
            False,
            f"(it reads the files below {DROP_INS})",
            id="a drop-in that it does not read",
        ),
        pytest.param(
            ("--crio-hook",),
            'hooks_dir = ["/etc/hooks"]\n',
            False,
            "(it looks for hooks in /etc/hooks)",
            id="a hook that it does not look for",
        ),
        pytest.param((), "", True, "its unit crio.service is masked", id="a masked unit"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    crio: Node, words: tuple[str, ...], conf: str, *, mask: bool, problem: str
) -> None:
    crio.write("/etc/crio/crio.conf", CONF + conf)
    crio.restart("crio")
    unit = crio.read("/run/systemd/system/crio.service")
    if mask:
        crio.run(["sh", "-c", "ln -sf /dev/null /run/systemd/system/crio.service; systemctl daemon-reload"])
    files, count = snapshot(crio), starts(crio)

    done = crio.installer("install", *ASKED, *words)

    if mask:
        crio.run(["rm", "/run/systemd/system/crio.service"])
        crio.write("/run/systemd/system/crio.service", unit)
        crio.run(["systemctl", "daemon-reload"])
    left = snapshot(crio)
    crio.write("/etc/crio/crio.conf", CONF)
    crio.restart("crio")
    assert done.returncode == 1, done.stderr
    assert problem in sentence(done.stderr)
    assert (left, starts(crio)) == (files, count + 1)


def test_containers_are_found_where_crio_keeps_them(crio: Node) -> None:
    crio.write("/etc/crio/crio.conf", f'[crio]\nrunroot = "/run/elsewhere"\nstorage_driver = "vfs"\n{CONF}')
    crio.restart("crio")
    crio.installer("install", *ASKED, check=True)
    state = "/run/elsewhere/vfs-containers"
    crio.write(
        f"{state}/{SANDBOX}/userdata/config.json",
        f'{{"annotations": {{"io.kubernetes.cri-o.SandboxID": "{SANDBOX}", "io.kubernetes.cri-o.RuntimeHandler": "nvidia"}}}}',
    )

    kept = crio.installer("uninstall", "--in-use", "keep")
    crio.run(["systemctl", "stop", "crio"])
    stopped = crio.installer("uninstall", "--in-use", "keep")

    crio.run(["rm", "-rf", "/run/elsewhere"])
    crio.run(["systemctl", "start", "crio"])
    assert (kept.returncode, stopped.returncode) == (4, 4), (kept.stderr, stopped.stderr)
    assert crio.installer("uninstall").returncode == 0
    crio.write("/etc/crio/crio.conf", CONF)
    crio.restart("crio")


def leave_nvidias_drop_in(node: Node, *, default: bool = False) -> str:
    """Write what NVIDIA's image leaves behind at each SIGTERM."""
    path = f"{DROP_INS}/99-nvidia.conf"
    names = {"nvidia": "", "nvidia-cdi": ".cdi", "nvidia-legacy": ".legacy"}
    tables = [
        f'[crio.runtime.runtimes.{name}]\nruntime_path = "{TOOLKIT}/nvidia-container-runtime{mode}"\nruntime_type = "oci"\n'
        for name, mode in names.items()
    ]
    top = '[crio.runtime]\ndefault_runtime = "nvidia"\n' if default else ""
    node.write(path, top + "".join(tables))
    return path


def test_what_nvidias_installer_left_does_not_keep_our_undo_from_its_end(crio: Node) -> None:
    left = leave_nvidias_drop_in(crio)
    crio.restart("crio")
    files = snapshot(crio)
    crio.installer("install", *ASKED, check=True)

    done = crio.installer("uninstall", "--timeout", "5")

    assert done.returncode == 0, done.stderr
    assert snapshot(crio) == files
    crio.run(["rm", left])
    crio.restart("crio")


HOOK_FILE = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"


def test_the_hook_that_nvidias_killed_pod_left_is_adopted_and_goes_with_its_toolkit(crio: Node) -> None:
    files = snapshot(crio)
    crio.write(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml", "")
    crio.write(f"{TOOLKIT}/nvidia-container-runtime-hook", "")
    crio.write(
        HOOK_FILE,
        f'{{"version": "1.0.0", "hook": {{"path": "{TOOLKIT}/nvidia-container-runtime-hook"}}, '
        '"when": {"always": true}, "stages": ["prestart"]}',
    )
    crio.write(HOOK_FILE.replace("oci-", "my-"), '{"version": "1.0.0", "hook": {"path": "/usr/bin/true"}}')

    done = crio.installer("uninstall", "--adopt", "--runtime", "crio")

    crio.run(["rm", HOOK_FILE.replace("oci-", "my-")])
    crio.run(["sh", "-c", "rmdir /usr/local/nvidia || true"])
    assert done.returncode == 0, done.stderr
    assert f"the hook {HOOK_FILE}" in done.stderr
    assert snapshot(crio) == files


def test_containers_that_are_being_made_run_our_hook_before_it_goes(crio: Node) -> None:
    files = snapshot(crio)
    crio.installer("install", *ASKED, "--crio-hook", check=True)
    hook = f"{TOOLKIT}/nvidia-container-runtime-hook"
    crio.write(f"{STATE}/{ID}/userdata/config.json", f'{{"hooks": {{"prestart": [{{"path": "{hook}"}}]}}}}')

    undo = crio.start_installer("uninstall")
    crio.wait_for("gone", ["sh", "-c", f"test -e {HOOK_FILE} || echo gone"])
    time.sleep(2)

    assert (crio.root / hook[1:]).parent.exists() or (crio.root / TOOLKIT[1:]).is_symlink()
    crio.write(f"{STATE}/{ID}/userdata/pidfile", "186")
    assert undo.wait() == 0, undo.log
    assert snapshot(crio) == files


def test_a_drop_in_that_is_no_longer_wanted_goes_with_its_default(crio: Node) -> None:
    other = f"{DROP_INS}/98-toolkit.toml"
    crio.installer("install", *ASKED, "--set-as-default", "--drop-in-config", f"crio={other}", check=True)
    count = starts(crio)

    done = crio.installer("install", *ASKED)

    assert done.returncode == 0, done.stderr
    assert starts(crio) == count + 1
    assert not (crio.root / other[1:]).exists()
    assert crio.installer("plan", *ASKED).returncode == 0
    assert b'"DefaultRuntime": "crun"' in call(crio, "Status", b"\x08\x01")


def test_containers_that_asked_for_nothing_do_not_hold_up_the_undo_of_a_default(crio: Node) -> None:
    crio.installer("install", *ASKED, "--set-as-default", check=True)
    bundle(
        crio,
        SANDBOX,
        f'{{"io.kubernetes.cri-o.SandboxID": "{SANDBOX}", "io.kubernetes.cri-o.RuntimeHandler": ""}}',
    )
    bundle(crio, ID, f'{{"io.kubernetes.cri-o.SandboxID": "{SANDBOX}"}}')

    unasked = crio.installer("uninstall", "--restart-mode", "none", "--in-use", "keep")
    done = crio.installer("uninstall")

    assert unasked.returncode == 4, unasked.stderr
    assert done.returncode == 0, done.stderr


def test_a_runtime_that_an_admin_made_the_default_stays_until_he_names_another(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    crio.write("/etc/crio/crio.conf", CONF.replace("crun", "nvidia"))
    crio.restart("crio")

    done = crio.installer("uninstall")
    crio.restart("crio")

    assert done.returncode == 4, done.stderr
    run_pod(crio, "nvidia")
    crio.write("/etc/crio/crio.conf", CONF)
    crio.restart("crio")
    assert crio.installer("uninstall").returncode == 0


def test_a_default_that_a_flag_makes_keeps_its_runtime_until_the_flag_is_gone(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    flag = f"[Service]\nExecStart=\nExecStart=@{PYTHON} crio /run/fake/crio.py --default-runtime nvidia\n"
    crio.write("/run/systemd/system/crio.service.d/own.conf", flag)
    crio.run(["systemctl", "daemon-reload"])
    crio.restart("crio")

    kept = crio.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert "it was started with --default-runtime nvidia); start CRI-O without that" in sentence(kept.stderr)
    run_pod(crio, "")
    crio.restart("crio")
    run_pod(crio, "nvidia")
    crio.run(["rm", "-r", "/run/systemd/system/crio.service.d"])
    crio.run(["systemctl", "daemon-reload"])
    crio.restart("crio")
    crio.installer("uninstall", check=True)


def test_a_config_that_crio_does_not_read_takes_no_settings_away(crio: Node) -> None:
    """The operator names /etc/crio/config.toml, with settings of its own, to every CRI-O."""
    unread = '[crio.runtime]\ndefault_runtime = "runc"\n'
    files = snapshot(crio)
    crio.write("/etc/crio/config.toml", unread)
    words = [PYTHON, *NVIDIAS, "--no-daemon", "--runtime=crio", "--nvidia-driver-root=/"]
    words += [
        f"--toolkit-source-root={ARTIFACTS}",
        "--config=/etc/crio/config.toml",
        "--set-as-default=false",
    ]
    words += ["--nvidia-runtime-name=nvidia", f"--drop-in-config={OURS}"]

    done = crio.run(words)

    assert "installed" in done.stderr
    text = crio.read(OURS)
    assert 'monitor_path = "/usr/libexec/crio/conmon"' in text
    toolkit = crio.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml")
    assert 'runtimes = ["/usr/libexec/crio/crun", ' in toolkit
    run_pod(crio, "nvidia")
    crio.installer("uninstall", check=True)
    assert crio.read("/etc/crio/config.toml") == unread
    crio.run(["rm", "/etc/crio/config.toml"])
    assert snapshot(crio) == files
