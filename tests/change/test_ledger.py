"""The ledger: what it holds comes back as it was, and so do the copies that lie beside it."""

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields, replace

from installer.change.ledger import (
    FORM,
    MARK,
    OPENMETRICS_MARK,
    Ledger,
    dumps,
    hold,
    is_foreign,
    is_ledger_lost,
    loads,
    read_record,
    read_saved,
    remove_published,
)
from installer.config_text import Edit, Syntax
from installer.engines import ENGINES
from installer.host.files import Host
from installer.host.sockets import FOR_ALL
from installer.model.engine import SeenStart
from installer.model.facts import (
    CdiRow,
    ConfigRow,
    DeviceNode,
    EngineRow,
    Failure,
    MountRow,
    Owner,
    Pending,
    PendingUndo,
    Record,
    Saved,
    SpecialVersion,
    ToolkitRow,
    TurnRow,
)
from installer.model.files import File, Layout, Meta
from tests.support.golden import golden

LAYOUT = Layout()
CONFIG = PurePosixPath("/etc/docker/daemon.json")
THEIRS, OTHER = File(b"{}", Meta(0o640)), File(b"[]")


def row(file: File | None) -> ConfigRow:
    return ConfigRow("docker", CONFIG, None, Saved.of(file) if file else None, (), ())


def at(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.under(PurePosixPath(tmp_path))


def test_copies_are_kept_that_a_row_names(tmp_path: Path, host: Host) -> None:
    with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
        ledger.save([THEIRS, OTHER, File(b"old")])
        ledger.write(replace(ledger.record, configs=(row(THEIRS),)))
        ledger.drop_backups()
        assert [path.name for path in at(tmp_path, LAYOUT.backups).iterdir()] == [THEIRS.digest]

        ledger.write(replace(ledger.record, configs=(row(None),)))
        ledger.drop_backups()
        assert not at(tmp_path, LAYOUT.backups).exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda copy: copy.unlink(),
        lambda copy: copy.write_text("spoilt"),
        lambda copy: (copy.unlink(), copy.mkdir()),
    ],
    ids=["missing", "spoilt", "a directory"],
)
def test_a_copy_that_is_not_what_was_saved_is_lost_and_saved_anew(
    tmp_path: Path, host: Host, spoil: Callable[[Path], object]
) -> None:
    with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
        ledger.save([THEIRS])
        ledger.write(replace(ledger.record, configs=(row(THEIRS),)))
        copy = at(tmp_path, LAYOUT.backups / THEIRS.digest)
        assert copy.stat().st_mode & 0o777 == 0o600
        assert read_saved(host, LAYOUT, row(THEIRS).original) == THEIRS
        spoil(copy)

        assert read_saved(host, LAYOUT, row(THEIRS).original) is None
        if not copy.is_dir():
            ledger.save([THEIRS])
            assert read_saved(host, LAYOUT, row(THEIRS).original) == THEIRS


def test_rows_are_written_once_and_again_where_their_file_has_gone(tmp_path: Path, host: Host) -> None:
    held = Record(configs=(row(None),))
    with hold(lambda: Ledger.open(host, LAYOUT)) as ledger:
        held = replace(held, directories=ledger.record.directories)
        ledger.write(held)
        first = at(tmp_path, LAYOUT.ledger).stat().st_ino
        ledger.write(held)
        assert at(tmp_path, LAYOUT.ledger).stat().st_ino == first
        at(tmp_path, LAYOUT.ledger).unlink()
        assert is_ledger_lost(host, LAYOUT) is False  # but for its lock nothing is there
        ledger.write(held)

    assert read_record(host, LAYOUT) == held


# What the kernel takes for a name, UTF-8 or not.
NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in {b".", b".."}
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(
    lambda names: PurePosixPath(os.fsdecode(b"/" + b"/".join(names)))
)
DIGESTS = st.binary(min_size=4, max_size=4).map(bytes.hex)
VERSIONS = DIGESTS | st.sampled_from([SpecialVersion.STAND_IN, SpecialVersion.ADOPTED])
NUMBERS = st.none() | st.integers(0, 2**32 - 1)
ENGINE_NAMES = st.sampled_from([*ENGINES])


def draw(kind: type[Any], **known: st.SearchStrategy[Any]) -> None:
    """Draw rows of a kind: each field that is not ``known`` by its type, so that none is forgotten."""
    drawn = {field.name: values_of(field.type) for field in fields(kind)}
    st.register_type_strategy(kind, st.builds(kind, **(drawn | known)))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    match get_args(kind):
        case (of, end) if end is ...:
            return st.lists(st.from_type(of), max_size=2).map(tuple)
    return st.from_type(kind)


st.register_type_strategy(PurePosixPath, PATHS)
draw(
    Saved,
    digest=DIGESTS,
    mode=st.integers(0, 0o7777).map("{:04o}".format),
    uid=NUMBERS,
    gid=NUMBERS,
    xattrs=st.dictionaries(st.text(), st.binary()),
)
draw(ConfigRow, engine=ENGINE_NAMES | st.just(Owner.CDI))
draw(SeenStart, texts=st.dictionaries(st.text(), st.text()))
draw(EngineRow, name=ENGINE_NAMES, runtimes=st.dictionaries(st.text(), PATHS))
draw(ToolkitRow, version=VERSIONS, previous=st.none() | VERSIONS, files=st.dictionaries(st.text(), st.text()))
draw(CdiRow, engines=st.lists(ENGINE_NAMES, max_size=3).map(tuple))
draw(PendingUndo, waits_s=st.floats(0, 1e9))
NODES = st.dictionaries(PATHS, st.text(), max_size=3)
draw(Record, nodes=NODES.map(lambda born: tuple(DeviceNode(*each) for each in born.items())))


GOLDEN = Path(__file__).parents[1] / "golden/ledger.json"
TARGET = PurePosixPath("/srv/config.toml")
ORIGINAL = Saved("0123456789abcdef", "0640", 4, 5, {"security.selinux": b"etc_t"})
EDIT = Edit(("imports",), "[]", '"/etc/containerd/conf.d/99-nvidia.toml"', True)
# A record in which no field is empty.
FULL = Record(
    directories=(PurePosixPath("/usr/local/nvidia"),),
    toolkit=ToolkitRow("0a1b2c3d", "4e5f6a7b", "[cli]\n", True, "/opt/theirs", {"nvidia-ctk": "ab12"}),
    engines=(
        EngineRow(
            "containerd",
            PurePosixPath("/run/containerd/containerd.sock"),
            "containerd.service",
            {"nvidia": PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")},
            PurePosixPath("/run/containerd"),
            Pending.RESTART_WHEN_IDLE,
            PurePosixPath("/etc/containerd/config.toml"),
            "nvidia",
            (2, 1, 4),
            SeenStart("0a1b2c3d", {"/etc/containerd/config.toml": "cd34"}, "9a8b", "overlay2", True),
            "ef56",
        ),
    ),
    configs=(
        ConfigRow(
            "containerd",
            PurePosixPath("/etc/containerd/config.toml"),
            Syntax.TOML,
            ORIGINAL,
            ("cd34",),
            (EDIT,),
            TARGET,
            ("/usr/bin/nvidia-container-runtime",),
        ),
    ),
    finished=True,
    failed=Failure("7890", "restart containerd (it did not come back)"),
    nodes=(DeviceNode(PurePosixPath("/dev/nvidiactl"), "boot 1 17"),),
    pid_file=PurePosixPath("/run/nvidia/toolkit/toolkit.pid"),
    undo_problem="undo everything (a container runs)",
    units_down=("docker.service",),
    undo_pending=PendingUndo("2026-01-31T12:00:00Z", "the Kubernetes API does not answer", 900.0),
    published=(PurePosixPath("/var/lib/node_exporter/toolkit.prom"),),
    cdi=CdiRow(("crio",), "no driver"),
    nri=PurePosixPath("/var/run/nri/nri.sock"),
    turn=TurnRow("toolkit", "gpu-node-7", "0badcafe", ("containerd 2",), "2026-01-31T12:00:00Z pod-7", True),
    mounts=(MountRow(PurePosixPath("/etc"), PurePosixPath("/host-etc")),),
)


def test_the_form_of_a_ledger_is_the_form_that_a_person_has_read() -> None:
    text = golden(GOLDEN, dumps(FULL, "0.3.0").decode())

    assert dumps(FULL, "0.3.0").decode() == text
    assert loads(text.encode()) == FULL
    assert json.loads(text)["form"] == FORM


def _list_empty(value: object, place: str) -> Iterator[str]:
    """Yield the places of fields without a value, in a record and in the rows of the record."""
    if isinstance(value, tuple):
        for each in value:
            yield from _list_empty(each, place)
    elif isinstance(value, Struct):
        for each in fields(value):
            yield from _list_empty(getattr(value, each.name), f"{place}.{each.name}")
    if not value:
        yield place


def test_the_golden_ledger_has_a_value_for_each_field_of_each_row() -> None:
    assert list(_list_empty(FULL, "record")) == []


@given(st.from_type(Record))
def test_whatever_is_held_is_read_back_as_it_was(held: Record) -> None:
    assert loads(dumps(held)) == held


@pytest.mark.parametrize(
    "spoil",
    [lambda rows: rows, lambda rows: rows["toolkit"], lambda rows: rows["configs"][0]["edits"][0]],
    ids=["the ledger", "the toolkit", "an edit"],
)
def test_a_field_of_a_later_version_is_refused_wherever_it_stands(spoil: Callable[[Any], Any]) -> None:
    config = ConfigRow("docker", PurePosixPath("/c"), Syntax.JSON, None, (), (Edit(("a",), None, "1"),))
    held = Record(toolkit=ToolkitRow("1", None, ""), configs=(config,))
    rows = json.loads(dumps(held))
    spoil(rows)["later"] = True

    with pytest.raises(ValueError, match="later"):
        loads(json.dumps(rows).encode())


# Files for others to read: ours are replaced and removed, anybody else's never.

OURS = f"{MARK}\nx 1\n"


def _left(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    path.chmod(FOR_ALL)


@pytest.mark.parametrize(
    ("name", "make", "foreign"),
    [
        pytest.param("a.prom", lambda path: path.write_text(OURS), False, id="ours"),
        pytest.param("a.openmetrics", lambda path: path.write_text(OPENMETRICS_MARK), False, id="our answer"),
        pytest.param("a.prom", lambda path: path.write_text("x 1\n"), True, id="root's"),
        pytest.param("a.prom", lambda path: path.symlink_to("b"), True, id="a link"),
        pytest.param("a.prom", os.mkfifo, True, id="a FIFO"),
        pytest.param("a.sock", _left, False, id="a socket that was left"),
        pytest.param("a.sock", lambda path: path.write_text(OURS), True, id="no socket"),
    ],
)
def test_what_has_the_name_already_goes_only_where_it_is_ours(
    tmp_path: Path, host: Host, name: str, make: Callable[[Path], object], *, foreign: bool
) -> None:
    with contextlib.chdir(tmp_path):  # the name of a socket is short
        make(Path(name))
    path = PurePosixPath("/", name)

    assert is_foreign(host, path) is foreign
    remove_published(host, path)
    assert os.path.lexists(tmp_path / name) is foreign
