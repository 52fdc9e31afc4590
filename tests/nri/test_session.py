"""What the NRI plugin says, byte for byte, and which containers get which devices."""

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from installer.errors import InstallerError, UsageError
from installer.model.nri import Allowed, Identity, Missed, refuse_dropping
from installer.model.protobuf import ENTRY, Schema, pack
from installer.nri import session
from installer.nri.session import (
    GIVEN,
    PLUGIN,
    REQUEST,
    RESPONSE,
    ForbiddenError,
    Given,
    Message,
    Messages,
    RefusedError,
    Session,
    Synchronized,
    WireError,
    encoded,
    unpack,
)
from tests.host.servers import message
from tests.support.nri import container, pod

MANAGEMENT = "management.nvidia.com/gpu"
GPU = "nvidia.com/gpu"
ALLOWED = (Allowed("operator", MANAGEMENT), Allowed("team", "nvidia.com/gpu"))
OF_CONTAINER = "nvidia.cdi.k8s.io/container.main"
OF_POD = "nvidia.cdi.k8s.io/pod"
BARE = "nvidia.cdi.k8s.io"


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("|", " "))


def _session(name: str = "exam", allowed: tuple[Allowed, ...] = ALLOWED) -> Session:
    return Session(Identity(name, "10"), allowed)


def _asked(
    method: str, payload: bytes = b"", stream: int = 1, service: str = session.PLUGIN_SERVICE
) -> bytes:
    """Return a request as an engine sends it."""
    return encoded(Message(PLUGIN, stream, REQUEST, message((1, service), (2, method), (3, payload))))


def _answer(reply: bytes) -> dict[str, Any]:
    (answer,) = Messages().of(reply)
    assert (answer.connection, answer.kind) == (PLUGIN, RESPONSE)
    return unpack(session.ANSWERED, answer.content)


def _hear(content: bytes, session: Session | None = None) -> tuple[bytes, Any]:
    (turn,) = (session or _session()).hear(content)
    return turn


def _create(annotations: dict[str, str], namespace: str = "operator", name: str = "main") -> bytes:
    return _asked("CreateContainer", message((1, pod(annotations, namespace)), (2, container(name))), 5)


def test_the_first_words_register_the_plugin() -> None:
    head = _bytes("00000002 00000044 | 0000003a 00000001 01 00 | 0a1c")

    assert _session().opening() == (
        head + b"nri.pkg.api.v1alpha1.Runtime\x12\x0eRegisterPlugin\x1a\x0a\x0a\x04exam\x12\x0210"
    )
    assert b"\x12\x0205" in Session(Identity("a", "5"), ()).opening(), "an index has two digits"


def test_a_device_is_given_and_a_method_refused_in_these_bytes() -> None:
    adjustment: Schema = {4: ("env", [ENTRY]), 8: session.ADJUSTMENT[8]}
    adjust = {"env": [{"key": "A", "value": "b"}], "devices": [{"name": "nvidia.com/gpu=0"}]}
    payload = pack({1: ("adjust", adjustment)}, {"adjust": adjust})

    sent = encoded(Message(PLUGIN, 5, RESPONSE, pack(session.ANSWERED, {"payload": payload})))

    head = _bytes("00000001 0000002a | 00000020 00000005 02 00 | 121e 0a1c 2206 0a01 41 1201 62 4212 0a10")
    assert sent == head + b"nvidia.com/gpu=0"
    refused = {"status": {"code": session.UNIMPLEMENTED, "message": "no"}}
    assert pack(session.ANSWERED, refused) == _bytes("0a06 080c 1202 6e6f")


@pytest.mark.parametrize("method", sorted(session.TOLD_ONLY))
def test_an_nri_notification_gets_an_empty_answer(method: str) -> None:
    assert _answer(_hear(_asked(method, b"\x08\x04"))[0]) == unpack(session.ANSWERED, b"")


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (_asked("ValidateContainerAdjustment"), session.UNIMPLEMENTED),
        (_asked("CreateContainer", service="other.Service"), session.UNIMPLEMENTED),
        (_asked("CreateContainer", b"\x0a\x7f"), session.INVALID_ARGUMENT),
    ],
    ids=["a validator's method", "another service", "what cannot be read"],
)
def test_an_unknown_nri_request_is_refused_with_a_code(asked: bytes, code: int) -> None:
    assert _answer(_hear(asked)[0])["status"]["code"] == code


@pytest.mark.parametrize(
    "message",
    [Message(PLUGIN, 5, RESPONSE, b""), Message(session.RUNTIME, 5, REQUEST, b"")],
    ids=["an answer to the plugin", "a request to the engine"],
)
def test_an_nri_message_for_another_receiver_is_ignored(message: Message) -> None:
    assert [*_session().hear(encoded(message))] == []


@given(
    some.lists(
        some.builds(Message, some.sampled_from((1, 2)), some.integers(1, 9), some.just(1), some.binary())
    ),
    some.data(),
)
def test_messages_come_out_whole_however_the_bytes_come_in(sent: list[Message], data: Any) -> None:
    content = b"".join(map(encoded, sent))
    cuts = data.draw(some.lists(some.integers(0, len(content)), max_size=8).map(sorted))
    reader = Messages()

    edges = [0, *cuts, len(content)]
    parts = [content[edges[at] : edges[at + 1]] for at in range(len(edges) - 1)]

    assert [each for part in parts for each in reader.of(part)] == sent


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"\x0a\x05ab", "a field of 5 bytes where 2 are left", id="cut off"),
        pytest.param(b"\x08\x01", None, id="a number for a text"),
        pytest.param(b"\x0b", None, id="a group"),
    ],
)
def test_what_is_no_protobuf_is_refused(content: bytes, words: str | None) -> None:
    with pytest.raises(WireError, match=words):
        unpack(session.POD, content)


@given(some.dictionaries(some.text(), some.text()), some.lists(some.text(min_size=1)))
def test_what_is_packed_is_unpacked(annotations: dict[str, str], names: list[str]) -> None:
    value = {"annotations": annotations, "devices": [{"name": name} for name in names]}

    assert unpack(session.ADJUSTMENT, pack(session.ADJUSTMENT, value)) == value


@pytest.mark.parametrize(
    ("annotations", "namespace", "given"),
    [
        pytest.param({"x/container.main": f"{MANAGEMENT}=all"}, "other", (), id="somebody else's annotation"),
        pytest.param({OF_CONTAINER: f"{MANAGEMENT}=all"}, "operator", (f"{MANAGEMENT}=all",), id="for it"),
        pytest.param({OF_POD: "nvidia.com/gpu=0"}, "team", ("nvidia.com/gpu=0",), id="for its pod"),
        pytest.param(
            *({OF_CONTAINER: f"{GPU}=1", OF_POD: "?", BARE: "?"}, "team", (f"{GPU}=1",)), id="first"
        ),
        pytest.param(
            *({OF_POD: f" {GPU}=0 ,{GPU}=1,, {GPU}=0, "}, "team", (f"{GPU}=0", f"{GPU}=1")),
            id="trimmed, and each once",
        ),
    ],
)
def test_a_container_gets_what_its_pod_asks_for(
    annotations: dict[str, str], namespace: str, given: tuple[str, ...]
) -> None:
    reply, news = _hear(_create(annotations, namespace))

    created = unpack(session.CREATED, _answer(reply)["payload"])
    assert [each["name"] for each in created["adjust"]["devices"]] == [*given]
    assert created["adjust"]["annotations"] == ({GIVEN: ",".join(given)} if given else {})
    assert news == (Given(f"{namespace}/pod", "main", given) if given else None)


@pytest.mark.parametrize(
    ("value", "namespace", "code", "words"),
    [
        pytest.param("", "team", 3, "names no device", id="empty"),
        pytest.param("all", "team", 3, "'all', which is no CDI device", id="no kind"),
        pytest.param("nvidia.com/gpu=0\nx", "team", 3, "no CDI device", id="a line end"),
        pytest.param(f"{MANAGEMENT}=all", "team", 7, f"--nri-allow team={MANAGEMENT}", id="another's kind"),
        pytest.param("a.com/nvidia.com/gpu=0", "team", 3, "no CDI device", id="a kind within another"),
    ],
)
def test_a_wrong_or_forbidden_wish_is_an_error_and_never_a_start(
    value: str, namespace: str, code: int, words: str
) -> None:
    reply, news = _hear(_create({OF_POD: value}, namespace))

    answer = _answer(reply)
    assert (answer["status"]["code"], answer["payload"]) == (code, b"")
    said = answer["status"]["message"]
    assert said.startswith(f"cannot create container main of pod {namespace}/pod (its annotation {OF_POD} ")
    assert words in said
    assert len(said) < 500
    assert isinstance(news, RefusedError)
    assert (news.code, isinstance(news, ForbiddenError)) == ("nri-refused", code == 7)


@pytest.mark.parametrize(
    "key", ["nvidia.cdi.k8s.io/main", f"{OF_POD}.main", "nvidia.cdi.k8s.io/containers.main"]
)
def test_an_annotation_that_asks_in_another_form_is_an_error(key: str) -> None:
    reply, news = _hear(_create({key: "nvidia.com/gpu=0", OF_POD: "nvidia.com/gpu=0"}))

    said = _answer(reply)["status"]
    assert said["code"] == session.INVALID_ARGUMENT
    assert f"its annotation {key} is none that asks for devices" in said["message"]
    assert isinstance(news, RefusedError)


def test_what_runs_without_its_devices_is_named_when_the_engine_tells_what_exists() -> None:
    wish = {OF_CONTAINER: f"{MANAGEMENT}=all"}
    session = _session()

    first = message((1, pod(wish)), (2, container()), (2, container("side")), (3, 1))
    rest = message(
        (1, pod({OF_POD: "?"}, "default", "p2")),
        (2, container(of="p2")),
        (2, container("gone", "p2", state=4)),
        (2, container("served", "p2") + message((6, message((1, GIVEN), (2, "x"))))),
        (2, container(of="p3")),
    )
    more = _hear(_asked("Synchronize", first), session)
    last = _hear(_asked("Synchronize", rest, 3), session)

    assert _answer(more[0])["payload"] == b"\x10\x01"
    assert more[1] is None
    assert _answer(last[0])["payload"] == b""
    assert last[1] == Synchronized(
        [
            Missed(namespace="operator", pod="pod", container="main", asked=f"{MANAGEMENT}=all"),
            Missed(namespace="default", pod="pod", container="main", asked="?"),
        ]
    )


def test_an_engine_that_does_not_take_the_plugin_is_quoted() -> None:
    refused = message((1, message((1, 2), (2, "must be 2 digits"))))

    with pytest.raises(InstallerError, match="must be 2 digits"):
        [*_session().hear(encoded(Message(2, 1, RESPONSE, refused)))]


@pytest.mark.parametrize(
    ("engine", "version", "drops"),
    [
        *(("containerd", version, True) for version in ("1.7.24~ds1", "1.7.29", "2.0.0", "v2.0.8", "main")),
        *(("containerd", version, False) for version in ("1.7.30", "v2.1.0-k3s1", "2.4.0-beta.0", "3.0")),
        *(("cri-o", "1.33.9", True), ("cri-o", "1.34.0", False)),
        *(("", "2.1.9", True), ("another", "9.9.9", True)),
    ],
)
def test_an_engine_that_drops_devices_is_refused(engine: str, version: str, *, drops: bool) -> None:
    refused = pytest.raises(InstallerError, match="cannot give CDI devices by NRI")
    with refused if drops else nullcontext():
        refuse_dropping(engine, version)


@pytest.mark.parametrize("text", ["team", f"={GPU}", "team=gpu", f"*={GPU}", f"team={GPU}=0"])
def test_an_allowance_that_says_something_else_is_a_wrong_word(text: str) -> None:
    with pytest.raises(UsageError, match="NAMESPACE=VENDOR/CLASS"):
        Allowed.of(text)


@pytest.mark.parametrize(("name", "index"), [("a b", "10"), ("", "10"), ("a", "100"), ("a", "-1")])
def test_an_identity_that_engines_refuse_is_a_wrong_word(name: str, index: str) -> None:
    with pytest.raises(UsageError):
        Identity.of(name, index)
