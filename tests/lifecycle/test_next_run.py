"""How long a run that stops waits for the next one, and the next one for a ledger that is held."""

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.errors import LockedError
from installer.host.files import Host
from installer.host.kubernetes import OWN_NAME
from installer.host.locks import is_awaited
from installer.lifecycle import handover
from installer.lifecycle.handover import await_next_run, ledger_for_run
from installer.model.options import Options

PODS = "var/log/pods"


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv(OWN_NAME, "toolkit-aaaaa")
    return Options(host_root=PurePosixPath(tmp_path))


def kubelet_makes(options: Options, *pods: str) -> None:
    for pod in pods:
        (Path(options.host_root) / PODS / f"gpu_{pod}_0c5d-{pod}").mkdir(parents=True)


@contextmanager
def later(act: Callable[[], object], after_s: float) -> Iterator[None]:
    timer = threading.Timer(after_s, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@pytest.mark.parametrize(
    ("pods", "limits_s", "waited_s"),
    [
        pytest.param((), (9, 9), 0, id="we are no pod: not at all"),
        pytest.param(("toolkit-aaaaa",), (0.3, 9), 0.3, id="no other: until the kubelet would have made it"),
        pytest.param(("toolkit-aaaaa", "toolkit-bbbbb"), (0.1, 0.6), 0.6, id="the next: until it would run"),
    ],
)
def test_a_run_that_stops_waits_as_long_as_the_next_one_may_take(
    options: Options,
    monkeypatch: pytest.MonkeyPatch,
    pods: tuple[str, ...],
    limits_s: tuple[float, float],
    waited_s: float,
) -> None:
    monkeypatch.setattr(handover, "SIGN_S", limits_s[0])
    monkeypatch.setattr(handover, "START_S", limits_s[1])
    host = Host.under(options.host_root)
    ledger = Ledger.open(host, options.layout)
    kubelet_makes(options, *pods)
    began = time.monotonic()

    assert not await_next_run(host, ledger.lock)

    assert waited_s <= time.monotonic() - began < waited_s + 5


def test_a_pod_that_was_made_long_before_the_stop_is_not_the_next_one(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host.under(options.host_root)
    ledger = Ledger.open(host, options.layout)
    kubelet_makes(options, "toolkit-aaaaa", "toolkit-bbbbb")
    time.sleep(0.2)
    monkeypatch.setattr(handover, "RECENT_S", 0.1)
    monkeypatch.setattr(handover, "SIGN_S", 0.1)
    began = time.monotonic()

    assert not await_next_run(host, ledger.lock)

    assert time.monotonic() - began < 5


def opened(options: Options) -> Ledger:
    host = Host.under(options.host_root)
    return ledger_for_run(host, options)


def test_a_run_waits_for_a_ledger_whose_holder_ends_and_tells_him(options: Options) -> None:
    holder = Ledger.open(Host.under(options.host_root), options.layout)
    seen = []

    def ends() -> None:
        seen.append(is_awaited(holder.lock))
        holder.lock.release()

    with later(ends, 0.3):
        ledger = opened(options)

    assert seen == [True]
    assert not is_awaited(ledger.lock)


def test_a_ledger_that_stays_held_is_given_up_in_time(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "ENDS_S", 0.5)
    holder = Ledger.open(Host.under(options.host_root), options.layout)
    began = time.monotonic()

    with pytest.raises(LockedError):
        opened(options)

    assert 0.5 <= time.monotonic() - began < 10
    holder.lock.release()


@pytest.mark.parametrize("pid_file", ["/run/nvidia/toolkit/toolkit.pid", "/run/theirs.pid"])
@pytest.mark.parametrize("comes_s", [0.0, 0.3], ids=["before", "while we wait"])
def test_a_ledger_whose_holder_serves_the_node_is_not_waited_for(
    options: Options, pid_file: str, comes_s: float
) -> None:
    holder = Ledger.open(Host.under(options.host_root), options.layout)
    holder.write(replace(holder.held, pid_file=PurePosixPath("/run/theirs.pid")))
    path = Path(options.host_root) / pid_file[1:]
    path.parent.mkdir(parents=True)
    with path.open("w") as pidfile:
        if not comes_s:
            fcntl.flock(pidfile, fcntl.LOCK_EX)
        began = time.monotonic()

        with later(lambda: fcntl.flock(pidfile, fcntl.LOCK_EX), comes_s), pytest.raises(LockedError):
            opened(options)

    assert comes_s <= time.monotonic() - began < 10
    holder.lock.release()
