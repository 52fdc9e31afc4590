"""Leases through the API: what a node reads, takes, writes and returns, and what each refusal means."""

import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from installer.errors import InstallerError
from installer.fleet import client, leases
from installer.fleet.run_again import Keep, Missing, Unanswered, Undo, Unknown, will_run_again
from installer.fleet.turn_rules import Failure, Node, Proven, Settings, Turn, add_failure, add_proven
from installer.host import kubernetes
from installer.host.kubernetes import (
    MAX_BYTES,
    Api,
    BusyError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from tests.fleet.api_server import USER, ApiServer, serving, settings_lease
from tests.support.raw_api import CHUNKED, DATE, answering, head, whole
from tests.support.site import PROJECT

NODE = Node("gpu-node-1", "r2", ("containerd 2",))
OTHER = replace(NODE, name="gpu-node-2")
ONE = "gpu-turn-0"
TWO = "gpu-turn-1"
LASTS_S = 270.0


@pytest.fixture
def server() -> ApiServer:
    server = ApiServer()
    server.put("leases", settings_lease(at_most="2", stop_after="1", canary="pool=canary"))
    return server


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Iterator[Api]:
    with serving(server, tmp_path) as api:
        yield api


def take(api: Api, *names: str, node: Node = NODE) -> str:
    return client.take(api, client.look(api, "gpu"), names, node, LASTS_S)


def test_a_look_reads_all_leases_of_the_release_and_the_servers_time(api: Api, server: ApiServer) -> None:
    server.put("leases", leases.new_turn("dev-turn-0", "dev"))
    server.put("leases", leases.new_turn("gpu-turn-x", "gpu"))
    assert take(api, ONE) == ONE

    seen = client.look(api, "gpu")

    assert seen.server_s == server.server_s
    assert seen.settings == Settings("gpu", at_most=2, stop_after=1, canary="pool=canary")
    assert seen.turns == (Turn(ONE, NODE.name, server.server_s, LASTS_S),)
    assert server.calls[-1] == "list leases"


def test_the_api_is_asked_directly_whatever_proxy_the_environment_names(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/operate.md says so: a proxy of the cluster's nodes does not concern the pods."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert client.look(api, "gpu").settings.release == "gpu"


def test_a_turn_is_created_taken_returned_and_taken_again(api: Api, server: ApiServer) -> None:
    assert take(api, ONE) == ONE
    created = server.lease(ONE)
    assert created["spec"] == {
        "holderIdentity": "gpu-node-1",
        "acquireTime": "2026-11-27T12:00:00.000000Z",
        "renewTime": "2026-11-27T12:00:00.000000Z",
        "leaseDurationSeconds": 270,
        "leaseTransitions": 1,
    }
    assert client.give_back(api, ONE, NODE)
    assert client.look(api, "gpu").turns == (Turn(ONE),)

    server.server_s += 60
    assert take(api, ONE, node=OTHER) == ONE

    assert server.lease(ONE)["spec"]["leaseTransitions"] == 2
    assert server.lease(ONE)["metadata"]["uid"] == created["metadata"]["uid"]
    assert client.look(api, "gpu").turns == (Turn(ONE, OTHER.name, server.server_s, LASTS_S),)


def test_what_others_have_written_into_a_lease_stays(api: Api, server: ApiServer) -> None:
    lease = leases.new_turn(ONE, "gpu")
    lease["metadata"] |= {"annotations": {"team": "hpc"}, "finalizers": ["example.com/keep"]}
    lease["metadata"]["labels"] |= {"app": "gpu"}
    server.put("leases", lease)

    take(api, ONE)
    client.write_error(api, ONE, NODE, "no space")
    client.give_back(api, ONE, NODE)

    metadata = server.lease(ONE)["metadata"]
    assert metadata["annotations"] == {"team": "hpc"}
    assert metadata["finalizers"] == ["example.com/keep"]
    assert metadata["labels"] == {leases.RELEASE: "gpu", "app": "gpu"}


def test_two_nodes_that_have_seen_the_same_get_different_turns(api: Api, server: ApiServer) -> None:
    seen = client.look(api, "gpu")
    assert client.take(api, seen, (ONE, TWO), NODE, LASTS_S) == ONE
    assert client.take(api, seen, (ONE, TWO), OTHER, LASTS_S) == TWO, "AlreadyExists: the next one"
    assert client.take(api, seen, (ONE, TWO), replace(NODE, name="c"), LASTS_S) == ""

    client.give_back(api, ONE, NODE)
    client.give_back(api, TWO, OTHER)
    seen = client.look(api, "gpu")
    assert client.take(api, seen, (ONE, TWO), NODE, LASTS_S) == ONE
    assert client.take(api, seen, (ONE, TWO), OTHER, LASTS_S) == TWO, "Conflict: the next one"
    assert [server.lease(name)["spec"]["holderIdentity"] for name in (ONE, TWO)] == [NODE.name, OTHER.name]


def test_an_update_never_creates_a_lease_that_the_owner_has_deleted(api: Api, server: ApiServer) -> None:
    take(api, ONE)
    client.give_back(api, ONE, NODE)
    seen = client.look(api, "gpu")
    server.delete("leases", ONE)

    assert client.take(api, seen, (ONE,), NODE, LASTS_S) == ""
    assert ("leases", ONE) not in server.objects

    # Without the uid the API server would have created it.
    lease = dict(seen.objects[ONE])
    lease["metadata"] = {key: value for key, value in lease["metadata"].items() if key != "uid"}
    api.ask("PUT", leases.path_of(api.namespace, ONE), lease)
    assert ("leases", ONE) in server.objects


def test_a_lease_that_was_deleted_and_made_anew_is_another(api: Api, server: ApiServer) -> None:
    take(api, ONE)
    client.give_back(api, ONE, NODE)
    seen = client.look(api, "gpu")
    server.delete("leases", ONE)
    server.put("leases", leases.new_turn(ONE, "gpu"))

    assert client.take(api, seen, (ONE,), NODE, LASTS_S) == ""


def test_a_node_that_does_not_hold_the_turn_any_more_touches_nothing(api: Api, server: ApiServer) -> None:
    assert not client.give_back(api, ONE, NODE)
    take(api, ONE, node=OTHER)
    before = server.lease(ONE)

    assert not client.give_back(api, ONE, NODE)
    assert not client.write_error(api, ONE, NODE, "no space")
    assert server.lease(ONE) == before


def test_a_turn_that_changes_while_it_is_returned_is_read_again(api: Api, server: ApiServer) -> None:
    take(api, ONE)
    server.meddles = [lambda: server.put("leases", server.lease(ONE))] * 2
    assert client.give_back(api, ONE, NODE)

    take(api, ONE)
    server.meddles = [lambda: server.put("leases", server.lease(ONE))] * 9
    with pytest.raises(ConflictError):
        client.give_back(api, ONE, NODE)
    server.meddles = [lambda: server.delete("leases", ONE)]
    assert not client.give_back(api, ONE, NODE)


def test_a_failure_is_written_in_one_line(api: Api) -> None:
    take(api, ONE)
    assert client.write_error(api, ONE, NODE, "cannot\nverify \x1b[31m" + "x" * 1000)

    (turn,) = client.look(api, "gpu").turns
    assert turn.error.startswith("cannot verify  [31mx")
    assert len(turn.error) == leases.LONGEST
    assert turn.holder == NODE.name


def test_a_taken_turn_whose_answer_was_lost_is_found_by_the_next_look(api: Api, server: ApiServer) -> None:
    seen = client.look(api, "gpu")
    server.swallows = {"create"}

    with pytest.raises(UnreachableError):
        client.take(replace(api, answer_s=0.3), seen, (ONE, TWO), NODE, LASTS_S)

    assert [turn.holder for turn in client.look(api, "gpu").turns] == [NODE.name]


def test_what_nodes_tell_each_other_survives_a_race(api: Api, server: ApiServer) -> None:
    def other() -> None:
        lease = settings_lease(at_most="3", failures='[{"node":"b","error":"no space"}]')
        server.put(
            "leases",
            {**lease, "metadata": {**lease["metadata"], "uid": server.lease("gpu-turns")["metadata"]["uid"]}},
        )

    server.meddles = [other]
    client.change_settings(api, "gpu", lambda settings: add_proven(settings, NODE))
    client.change_settings(api, "gpu", lambda settings: add_failure(settings, Failure("c", "x\ny")))

    settings = client.look(api, "gpu").settings
    assert settings.at_most == 3
    assert settings.proven == (Proven("r2", "containerd 2"),)
    assert settings.failures == (Failure("b", "no space"), Failure("c", "x y"))
    calls = len(server.calls)
    client.change_settings(api, "gpu", lambda settings: settings)
    assert server.calls[calls:] == ["get leases/gpu-turns"], "nothing to write"


@pytest.mark.parametrize(
    ("annotation", "text", "told"),
    [
        ("at-most", "0", "'0' is no number from 1 to 1000"),
        ("at-most", "two", "'two' is no number"),
        ("at-most", "99999999999999999999", "is no number"),
        ("at-most", "00000000150000000", "is no number"),
        ("at-most", "1" * 6000, "is no number"),
        ("stop-after", "", "'' is no number"),
        ("canary", "pool in (a)", "'pool in (a)' is no part of a label selector"),
        ("canary", "pool=a\n", "no label selector of up to 300 characters"),
        ("canary", "a" * 301, "no label selector of up to 300 characters"),
        ("proven", "{", "truncated"),
        ("failures", '[{"node": 7}]', "Expected `str`, got `int`"),
    ],
)
def test_a_setting_that_makes_no_sense_gives_no_turn(
    api: Api, server: ApiServer, annotation: str, text: str, told: str
) -> None:
    server.put("leases", settings_lease(**{annotation: text}))

    with pytest.raises(InstallerError, match="cannot take a turn") as caught:
        client.look(api, "gpu")

    assert told in caught.value.problem
    assert f"annotation node-toolkit-installer/{annotation} of Lease gpu-turns" in caught.value.problem
    assert caught.value.remedy == "correct it with kubectl annotate --overwrite lease gpu-turns"


def test_settings_that_are_gone_give_no_turn(api: Api, server: ApiServer) -> None:
    server.delete("leases", "gpu-turns")

    with pytest.raises(InstallerError, match="there is no Lease gpu-turns"):
        client.look(api, "gpu")


def test_odd_leases_are_turns_that_are_late() -> None:
    spec = {"holderIdentity": "a", "acquireTime": "yesterday", "leaseDurationSeconds": "long"}
    lease = {"metadata": {"name": ONE, "annotations": []}, "spec": spec}

    assert leases.read_turn(lease) == Turn(ONE, "a", taken_s=0, lasts_s=0)
    odd: Any
    for odd in (None, 7, [], {"metadata": None}, {"metadata": {"name": 7}}, {"spec": []}):
        assert leases.read_turns([odd], "gpu") == ()


@pytest.mark.parametrize(
    ("text", "paused"),
    [("true", True), ("True", True), ("yes", True), ("1", True), ("on", True), ("false", False), ("", False)],
)
def test_whatever_may_be_meant_as_a_pause_pauses(
    api: Api, server: ApiServer, text: str, *, paused: bool
) -> None:
    server.put("leases", settings_lease(paused=text))

    assert client.look(api, "gpu").settings.paused is paused


@pytest.mark.parametrize(
    "holder",
    ["..", "gpu-2/status", 'gpu-2\n{"event": "forged"}', "\u202e" * 400, "a" * 254, "Gpu-2", "", "a..b"],
    ids=["dots", "a path", "lines", "right to left", "long", "capitals", "nobody", "an empty label"],
)
def test_a_holder_that_can_be_no_node_holds_nothing(api: Api, server: ApiServer, holder: str) -> None:
    # A node's token may write any Lease of a turn: nothing of it reaches a log, and it stops nobody.
    lease = leases.failed(leases.taken(leases.new_turn(ONE, "gpu"), holder, server.server_s, 300), "x")
    server.put("leases", lease)
    server.put("leases", settings_lease(failures=json.dumps([{"node": holder, "error": "x"}])))

    seen = client.look(api, "gpu")

    assert [turn.holder for turn in seen.turns] == [""]
    assert seen.settings.failures == ()
    assert client.take(api, seen, (ONE,), NODE, 300.0) == ONE


def test_a_holder_that_wants_a_turn_for_years_is_late_after_a_day() -> None:
    for duration in (2**31 - 1, 10**400):
        lease = {"metadata": {"name": ONE}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": duration}}

        assert leases.read_turn(lease).lasts_s == 24 * 3600


def test_a_turn_that_changed_its_holder_as_often_as_a_lease_may_is_still_taken() -> None:
    most = {"leaseTransitions": 2**31 - 1}

    spec = leases.taken({**leases.new_turn(ONE, "gpu"), "spec": most}, "a", 0.0, 300.0)["spec"]

    assert spec["leaseTransitions"] == 2**31 - 1


def test_a_gone_node_whose_turn_may_not_be_written_is_left_alone(api: Api, server: ApiServer) -> None:
    take(api, ONE, node=OTHER)
    server.refused.add(("update", "leases"))

    client.free_gone(api, client.look(api, "gpu"), OTHER.name)

    assert client.look(api, "gpu").turns[0].holder == OTHER.name


REFUSALS: dict[str, tuple[Callable[[ApiServer], object], type[RefusedError], str]] = {
    "the token has ended": (lambda server: server.users.clear(), UnauthorizedError, "(401 Unauthorized)"),
    "a right is missing": (
        lambda server: server.refused.add(("list", "leases")),
        ForbiddenError,
        '(403 leases.coordination.k8s.io is forbidden: User "system:serviceaccount:gpu:toolkit" cannot list resource',
    ),
    "the server has too many requests": (
        lambda server: setattr(server, "is_busy", True),
        BusyError,
        "429 Too many requests, please try again later.",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_each_refusal_has_a_class_of_its_own(api: Api, server: ApiServer, name: str) -> None:
    break_, error, told = REFUSALS[name]
    break_(server)

    with pytest.raises(error) as caught:
        client.look(api, "gpu")

    assert told in caught.value.problem
    assert caught.value.code == "kubernetes-api"


def test_a_token_that_was_exchanged_is_read_anew(api: Api, server: ApiServer) -> None:
    server.users = {"token-2": USER}
    with pytest.raises(UnauthorizedError):
        client.look(api, "gpu")
    (api.account / "token").write_text("token-2")

    assert client.look(api, "gpu").turns == ()


def test_an_answer_of_another_shape_is_no_answer(api: Api, server: ApiServer) -> None:
    server.objects["nodes", "a"] = ["no object"]  # type: ignore[assignment]

    with pytest.raises(UnreachableError, match="no object"):
        client.read_node(api, "a")


def test_each_request_ends_within_its_limit(api: Api, server: ApiServer) -> None:
    path = leases.path_of_release(api.namespace, "gpu")
    hurried = replace(api, answer_s=0.5)
    began = time.monotonic()
    server.slow_s = 0.05  # about 20 bytes a second, each well within a timeout of its own
    with pytest.raises(UnreachableError, match="timed out"):
        hurried.ask("GET", path)
    server.slow_s = 0
    server.swallows = {"get"}
    with pytest.raises(UnreachableError, match="timed out"):
        hurried.ask("GET", path)

    assert time.monotonic() - began < 3


def test_an_answer_that_is_too_large_is_no_answer(api: Api, server: ApiServer) -> None:
    server.padding = 9 << 20

    with pytest.raises(UnreachableError, match="an answer of more than 2 MB"):
        client.look(api, "gpu")


ODD_ANSWERS = {
    "a length that no number of bytes is": head(DATE, b"Content-Length: 99999999999999999999\r\n") + b"{}",
    "a length that no memory has": head(DATE, b"Content-Length: 4611686018427387904\r\n") + b"{",
    "a chunk that no number of bytes is": head(DATE, CHUNKED) + b"f" * 5000 + b"\r\nx",
    "a chunk that no memory has": head(DATE, CHUNKED) + b"4000000000000000\r\nx",
    "a chunk of a negative length": head(DATE, CHUNKED) + b"-5\r\nx",
    "a year that no calendar has": head(
        b"Date: Fri, 31 Dec 99999999999999999999 00:00:00 GMT\r\n", b"Content-Length: 2\r\n"
    )
    + b"{}",
    "a year after the last": head(b"Date: Fri, 31 Dec 9999 23:59:59 -0100\r\n", b"Content-Length: 2\r\n")
    + b"{}",
    "a body that ends early": head(DATE, b"Content-Length: 10\r\n") + b'{"a":',
}


@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_an_answer_with_impossible_numbers_is_no_answer(name: str, tmp_path: Path) -> None:
    with answering(lambda client: client.sendall(ODD_ANSWERS[name]), tmp_path) as api:
        with pytest.raises(UnreachableError):
            api.ask("GET", "/api/v1/nodes/a")
        with suppress(UnreachableError):  # a watch may end at any time
            list(api.watch("/api/v1/pods"))


def test_a_long_refusal_is_cut(tmp_path: Path) -> None:
    body = b'{"message": "' + b"x" * 1_000_000 + b'"}'
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    with (
        answering(lambda client: client.sendall(refusal), tmp_path) as api,
        pytest.raises(ForbiddenError) as caught,
    ):
        api.ask("GET", "/api/v1/nodes/a")

    assert len(caught.value.problem) < 5000


def test_an_answer_with_the_largest_length_is_understood(tmp_path: Path) -> None:
    text = b'{"kind": "' + b"x" * (MAX_BYTES - 1000) + b'"}'
    with answering(lambda client: client.sendall(whole(text)), tmp_path) as api:
        assert len(api.ask("GET", "/api/v1/nodes/a").content["kind"]) == MAX_BYTES - 1000


def test_a_request_that_the_api_reads_slowly_ends_within_its_limit(tmp_path: Path) -> None:
    def read_slowly(client: ssl.SSLSocket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while client.recv(16 << 10):
            time.sleep(0.1)

    began = time.monotonic()
    with answering(read_slowly, tmp_path) as api, pytest.raises(UnreachableError, match="timed out"):
        replace(api, answer_s=0.5).ask("PUT", "/x", {"a": "b" * (16 << 20)})

    assert time.monotonic() - began < 3


def drip(client: ssl.SSLSocket) -> None:
    """Send a space ten times a second, for ten seconds."""
    for _ in range(100):
        client.sendall(b" ")
        time.sleep(0.1)


def drip_head(client: ssl.SSLSocket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    drip(client)


def drip_line(client: ssl.SSLSocket) -> None:
    client.sendall(head() + b'{"type": "ADDED", "object": {}}\n')
    drip(client)


def test_a_watch_whose_headers_do_not_end_is_left(tmp_path: Path) -> None:
    began = time.monotonic()
    with answering(drip_head, tmp_path) as api, pytest.raises(UnreachableError, match="timed out"):
        next(replace(api, answer_s=0.5).watch("/x"))

    assert time.monotonic() - began < 3
    assert not api.ready.exists()


def test_a_watch_whose_line_does_not_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "SILENT_S", 0.5)
    with answering(drip_line, tmp_path) as api:
        watch = api.watch("/x")
        assert next(watch) == {}
        time.sleep(1)  # the time between two lines is ours
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="timed out"):
            next(watch)

    assert time.monotonic() - began < 3


PEAK = """
import sys
from pathlib import Path
from installer.errors import InstallerError
from installer.fleet import client
from installer.host.kubernetes import Api
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
def ask():
    try:
        return api.ask("GET", "/x") if sys.argv[3] == "ask" else list(api.watch("/x"))
    except InstallerError as error:
        return error
api = Api("127.0.0.1", int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[2]) / "ready")
replaced = ask()  # the modules are loaded now
before = peak()
print(ask())
print(peak() - before)
"""


@pytest.mark.parametrize("way", ["ask", "watch"])
@pytest.mark.parametrize("part", ["[],", "{},", "[[]],", '{"":0},', '"ab",', "1.5,"])
def test_an_answer_of_many_small_values_takes_little_memory(part: str, way: str, tmp_path: Path) -> None:
    """The pod has 128 MiB: 8 MiB of empty lists took 400."""
    many = f'{{"a":[{part * ((MAX_BYTES - 1000) // len(part))}0]}}\n'.encode()
    answers = iter((b"{}\n", many))

    with answering(lambda client: client.sendall(whole(next(answers))), tmp_path) as api:
        command = [sys.executable, "-c", PEAK, str(api.port), str(tmp_path), way]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)

    told, kilobytes = done.stdout.splitlines()
    assert "an answer of more than 200000 values" in told
    assert int(kilobytes) < 24 << 10


def test_an_api_that_is_not_there_is_unreachable(server: ApiServer, tmp_path: Path) -> None:
    with serving(server, tmp_path) as api:
        pass

    with pytest.raises(UnreachableError, match="Connection refused"):
        client.look(api, "gpu")


def test_the_turns_and_the_failure_of_a_node_that_is_gone_are_freed(api: Api, server: ApiServer) -> None:
    server.put("nodes", {"metadata": {"name": NODE.name}})
    take(api, ONE)
    take(api, TWO, node=OTHER)
    client.write_error(api, TWO, OTHER, "no space")
    client.change_settings(
        api, "gpu", lambda settings: add_failure(settings, Failure(OTHER.name, "no space"))
    )
    assert [client.is_gone(api, name) for name in (NODE.name, OTHER.name)] == [False, True]

    seen = client.look(api, "gpu")
    client.free_gone(api, seen, OTHER.name)

    after = client.look(api, "gpu")
    assert [(turn.holder, turn.error) for turn in after.turns] == [(NODE.name, ""), ("", "")]
    assert after.settings.failures == ()
    # Who comes later with an older answer changes nothing.
    take(api, TWO, node=OTHER)
    client.free_gone(api, seen, OTHER.name)
    assert client.look(api, "gpu").turns[1].holder == OTHER.name


def test_a_node_that_may_not_be_read_is_not_gone(api: Api, server: ApiServer) -> None:
    server.refused.add(("get", "nodes"))

    with pytest.raises(ForbiddenError):
        client.is_gone(api, "a")


def daemonset(**metadata: str) -> dict[str, Any]:
    containers = [{"name": "toolkit", "args": ["run"]}]
    return {
        "metadata": {"name": "toolkit", **metadata},
        "spec": {"template": {"spec": {"containers": containers, "nodeSelector": {"gpu": "true"}}}},
    }


def ask_both(api: Api) -> tuple[Any, Any]:
    paths = (client.path_of_daemonset(api.namespace, "toolkit"), client.path_of_node(NODE.name))
    first, second = (client.read_or_missing(api, path, until_s=time.monotonic() + 1.0) for path in paths)
    return first, second


STOPS: dict[str, tuple[Callable[[ApiServer], object], type[Keep | Undo | Unknown], int]] = {
    "an update": (lambda _: None, Keep, 2),
    "the DaemonSet is gone": (lambda server: server.delete("daemonsets", "toolkit"), Undo, 2),
    "the node is gone": (lambda server: server.delete("nodes", NODE.name), Undo, 2),
    "the DaemonSet is being deleted": (
        lambda server: server.put("daemonsets", daemonset(deletionTimestamp="2026-11-28T12:00:00Z")),
        Undo,
        2,
    ),
    "no right": (lambda server: server.refused.add(("get", "daemonsets")), Undo, 3),
    "the token has ended": (lambda server: server.users.clear(), Undo, 4),
    "the API is busy": (lambda server: setattr(server, "is_busy", True), Unknown, 4),
    "the API does not answer": (lambda server: server.swallows.add("get"), Unknown, 2),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_stop_keeps_what_the_next_pod_takes_over(api: Api, server: ApiServer, name: str) -> None:
    server.put("daemonsets", daemonset())
    server.put("nodes", {"metadata": {"name": NODE.name, "labels": {"gpu": "true"}}})
    change, decision, requests = STOPS[name]
    change(server)

    found = ask_both(api)

    assert isinstance(will_run_again(*found), decision)
    assert len(server.calls) == requests
    assert decision is not Keep or not any(isinstance(each, Missing | Unanswered) for each in found)


def test_a_missing_object_is_told_from_other_refusals(api: Api) -> None:
    with pytest.raises(NotFoundError, match=r"daemonsets.apps .*toolkit.* not found"):
        api.ask("GET", client.path_of_daemonset(api.namespace, "toolkit"))


def test_nothing_of_this_is_imported_by_a_start_without_turns() -> None:
    program = (
        "import sys, installer.__main__, installer.cli.app, installer.cli.nvidia, installer.lifecycle.install, "
        "installer.lifecycle.uninstall, installer.lifecycle.check; "
        "print([name for name in sys.modules if name.startswith('installer.fleet') or name in ('ssl', 'http.client')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"
