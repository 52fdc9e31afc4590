"""What containerd would not load, as its texts tell where its own program cannot be asked."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.config_text import Syntax
from installer.config_text.change import parse
from installer.engines import CONTAINERD
from installer.engines.containerd.load import find_load_errors
from installer.model.engine import EngineState, LoadInput, Version
from installer.model.files import File, Kind

CONFIG, IMPORTED = (
    PurePosixPath("/etc/containerd/config.toml"),
    PurePosixPath("/etc/containerd/conf.d/a.toml"),
)


class Disk:
    """Files below a directory, as a load check looks at them; nobody listens on the sockets in ``dead``."""

    def __init__(self, root: Path, dead: tuple[str, ...] = ()) -> None:
        self._root, self._dead = root, dead

    def _at(self, path: PurePosixPath) -> Path:
        return self._root / path.relative_to("/")

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        assert last
        here = self._at(path)
        if here.is_dir():
            return Kind.DIRECTORY
        if here.is_fifo():
            return Kind.FIFO
        return Kind.FILE if here.is_file() else Kind.ABSENT

    def read(self, path: PurePosixPath) -> File | None:
        here = self._at(path)
        return File(here.read_bytes()) if here.is_file() else None

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        here = self._at(path)
        return tuple(sorted(each.name for each in here.iterdir())) if here.is_dir() else ()

    def is_program(self, path: PurePosixPath) -> bool:
        here = self._at(path)
        return here.is_file() and bool(here.stat().st_mode & 0o111)

    def is_dead(self, path: PurePosixPath) -> bool:
        return str(path) in self._dead


def told(
    disk: Disk, texts: Mapping[PurePosixPath, str], version: Version | None, words: tuple[str, ...] = ()
) -> list[str]:
    trees = {path: parse(text, Syntax.TOML, name=str(path)) for path, text in texts.items()}
    state = replace(EngineState.usual(CONTAINERD), version=version)
    found = find_load_errors(LoadInput(state, trees, "", words, {}, disk))
    return [f"{error.reason}; {error.remedy}" for error in found]


OLD, IMAGES = 'plugins."io.containerd.grpc.v1.cri"', 'plugins."io.containerd.cri.v1.images"'
RUNTIME = 'plugins."io.containerd.cri.v1.runtime"'
KEY = "registry.config_path"
MIRRORS = f"its CRI would not load: {{}} sets registry.mirrors, and {KEY} is set too; remove registry.mirrors from {{}}"


@pytest.mark.parametrize(
    ("plugin", "version"), [(OLD, (1, 7)), (IMAGES, (2, 1)), (IMAGES, None), (OLD, (2, 1))]
)
def test_the_file_is_named_that_sets_what_does_not_go_with_another(
    tmp_path: Path, plugin: str, version: Version | None
) -> None:
    texts = {
        CONFIG: f'version = 2\n[{plugin}.registry]\nconfig_path = "/certs"\n',
        IMPORTED: f'[{plugin}.registry.mirrors."a"]\nendpoint = ["https://b"]\n',
    }

    (said,) = told(Disk(tmp_path), texts, version)

    assert said == MIRRORS.format(IMPORTED, IMPORTED) + f", or empty {KEY}"


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (f'[{IMAGES}.registry.auths."10.0.0.1:5000"]', (), "an address with a port needs a scheme"),
        (f'[{IMAGES}.registry.auths."https://[::1]:5000/v1"]', (), ""),
        (f'[{IMAGES}.registry.auths.":a"]', (), "its scheme is missing"),
        (f'[{IMAGES}.registry.auths."a\\u0007"]', (), "it has a control character"),
        (f'[{RUNTIME}.containerd.runtimes.a]\nbase_runtime_spec = "/gone"', (), "/gone, which is not there"),
        (
            f'[{RUNTIME}.containerd.runtimes.a]\nbase_runtime_spec = "/cut"',
            (),
            "/cut, which is no whole JSON",
        ),
        (
            f'[{RUNTIME}.containerd.runtimes.a]\nbase_runtime_spec = "/nan"',
            (),
            "/nan, which is no whole JSON",
        ),
        (f'[{RUNTIME}.containerd.runtimes.a]\nbase_runtime_spec = "/good"', (), ""),
        ('[debug]\nlevel = "loud"', (), "debug.level, and there is no level loud; correct debug.level"),
        ('[debug]\nlevel = "loud"', ("--log-level", "info"), ""),
        ('root = "/a"\nstate = "/a"', (), "state is the same directory"),
        ('root = "/a"\nstate = "/a"', ("--root=/b",), ""),
        (f'[{RUNTIME}.cni]\nbin_dir = "/a"\nbin_dirs = ["/opt/cni/bin"]', (), ""),
        (f'[{RUNTIME}.cni]\nbin_dir = "/a"\nbin_dirs = ["/b"]', (), "cni.bin_dirs is set too"),
        ('[metrics]\naddress = "[::1]:99999"', (), "not of the form host:port"),
        ('[metrics]\naddress = "[::1]:http"', (), ""),
    ],
)
def test_what_a_text_says_is_told_as_far_as_it_keeps_containerd_from_loading(
    tmp_path: Path, text: str, words: tuple[str, ...], said: str
) -> None:
    for name, content in {
        "cut": '{"ociVersion',
        "nan": '{"a": NaN}',
        "good": '\n{"ociVersion": "1.0"}',
    }.items():
        (tmp_path / name).write_text(content)

    found = told(Disk(tmp_path), {CONFIG: f"version = 3\n{text}\n"}, (2, 1), words)

    assert len(found) == bool(said)
    assert all(said in each for each in found)


def test_of_runtimes_with_one_base_spec_that_of_the_owner_is_named(tmp_path: Path) -> None:
    table = f"{RUNTIME}.containerd.runtimes"
    ours = '{BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"}'
    text = (
        f'version = 3\n[{table}.nvidia]\nbase_runtime_spec = "/gone"\noptions = {ours}\n'
        f'[{table}.runc]\nbase_runtime_spec = "/gone"\n'
    )

    first = told(Disk(tmp_path), {CONFIG: text}, (2, 1))[0]

    assert "base_runtime_spec of the runtime runc in" in first


NYDUS = '[proxy_plugins.nydus]\ntype = "snapshot"\naddress = "/run/nydus.sock"'


@pytest.mark.parametrize(
    ("run", "dead", "said"),
    [(True, True, ["start nydus"]), (True, False, []), (False, True, [])],
    ids=["dead", "alive", "not to be seen from here"],
)
def test_a_snapshotter_that_does_not_answer_keeps_cri_from_starting_containers(
    tmp_path: Path, said: list[str], *, run: bool, dead: bool
) -> None:
    if run:
        (tmp_path / "run/systemd").mkdir(parents=True)
    disk = Disk(tmp_path, ("/run/nydus.sock",) if dead else ())
    text = f'version = 2\n[{OLD}.containerd]\nsnapshotter = "nydus"\n{NYDUS}\n'

    found = told(disk, {CONFIG: text}, (1, 7))

    start = "its CRI could start no container: the snapshotter nydus of {} does not answer on {}; {}"
    assert found == [start.format(CONFIG, "/run/nydus.sock", each) for each in said]


@pytest.mark.parametrize(
    ("pipe", "text", "version", "refused"),
    [
        ("etc/cdi/x.json", "", (2, 1), True),
        ("var/run/cdi/x.yaml", "", (2, 1), True),
        ("etc/cdi/x.yml", "", (2, 1), False),
        ("etc/cdi/x.json", f"[{RUNTIME}]\nenable_cdi = false", (2, 1), False),
        ("etc/cdi/x.json", f"[{RUNTIME}]\ncdi_spec_dirs = ['/srv/cdi']", (2, 1), False),
        ("srv/cdi/x.json", f"[{RUNTIME}]\ncdi_spec_dirs = ['/srv/cdi']", (2, 1), True),
        ("etc/cdi/x.json", "", (1, 7), False),
        ("etc/cdi/x.json", f"[{OLD}]\nenable_cdi = true", (1, 7), True),
        ("etc/cdi/x.json", f"[{OLD}]\nenable_cdi = true", (1, 6), False),
        ("etc/cni/net.d/10-x.conflist", "", (1, 6), True),
        ("etc/cni/net.d/10-x", "", (1, 6), False),
        ("srv/spec", f"[{RUNTIME}.containerd.runtimes.a]\nbase_runtime_spec = '/srv/spec'", (2, 1), True),
    ],
)
def test_a_fifo_at_which_containerd_would_wait_is_told(
    tmp_path: Path, pipe: str, text: str, version: Version, *, refused: bool
) -> None:
    (tmp_path / pipe).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / pipe)
    schema = 2 if version < (2,) else 3

    found = told(Disk(tmp_path), {CONFIG: f"version = {schema}\n{text}\n"}, version)

    assert len(found) == refused
    assert all(f"/{pipe}" in each for each in found)


LETTERS = "cdiVersion: 0.6.0\nkind: a/b\n"
ALIAS = "cdiVersion: 0.6.0\nannotations: {x: &a a/b}\nkind: *a\n"
LARGE = f"# {'x' * (1 << 20)}\n"
DEEP = f"annotations: {'[' * 40}{']' * 40}\n"


# All seen with containerd 2.1.9, but for the two whose ids tell otherwise.
@pytest.mark.parametrize(
    ("name", "specification", "crashes"),
    [
        pytest.param("x.yaml", "---\ncdiVersion: 0.5.0\nkind: vendor.com/x\n", True, id="class"),
        pytest.param("x.json", '{"cdiVersion": "0.5.0", "kind": "v/gpu"}', True, id="vendor"),
        pytest.param("x.yaml", "{cdiVersion: 0.6.0, kind: a/b, devices: []}", True, id="flow mapping"),
        pytest.param("x.yaml", "{\n  cdiVersion: 0.6.0,\n  kind: a/b\n}", True, id="flow lines"),
        pytest.param("x.yaml", "  cdiVersion: 0.6.0\n  kind: a/b\n", True, id="indented"),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\nkind:\n  a/b\n", True, id="next line"),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\nkind: >-\n  a/b\n", True, id="folded"),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\n? kind\n: !!str a/b\n", True, id="complex key, tag"),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\nkind: &a a/b\n", True, id="anchor"),
        pytest.param("x.yaml", ALIAS, True, id="alias"),
        pytest.param(
            "x.yaml", "annotations: {x: &a 0.6.0}\ncdiVersion: *a\nkind: a/b\n", True, id="alias of version"
        ),
        pytest.param(
            "x.yaml", "cdiVersion: 0.6.0\nannotations: {x: &a kind}\n*a : a/b\n", True, id="alias of key"
        ),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\nKind: a/b\n", True, id="case"),
        pytest.param("x.json", '{"CDIVERSION": "0.6.0", "KIND": "a/b"}', True, id="case in JSON"),
        pytest.param("x.json", '{"cdiVersion": "0.6.0", "\u212aind": "a/b"}', True, id="Kelvin sign"),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\nkind: a/b\nKind: v.com/gpu\n", True, id="lower case"),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\n'kind' : 'a/b'\n", True, id="quoted"),
        pytest.param("x.yaml", 'cdiVersion: 0.6.0\nkind: "a\\x2fb"\n', True, id="escaped"),
        pytest.param("x.json", r'{"cdiVersion": "0.6.0", "kind": "\u0061/gpu"}', True, id="escaped letter"),
        pytest.param("x.json", r'{"cdiVersion": "0.6.0", "\u006bind": "a/b"}', True, id="escaped key"),
        pytest.param("x.yaml", f"\ufeff{LETTERS}", True, id="byte order mark"),
        pytest.param("x.yaml", f"\ufeff{LETTERS}".encode("utf-16-le"), True, id="UTF-16, little-endian"),
        pytest.param("x.yaml", f"\ufeff{LETTERS}".encode("utf-16-be"), True, id="UTF-16, big-endian"),
        pytest.param("x.yaml", f"{LETTERS}---\n{{\n", True, id="first document"),
        pytest.param("x.yaml", f"{LETTERS}{LARGE}", True, id="large"),
        # The library refuses this kind of escape.
        pytest.param("x.json", r'{"cdiVersion": "0.6.0", "kind": "a\/b"}', True, id="boots: escaped slash"),
        pytest.param("x.yaml", f"{LARGE}{LETTERS}", False, id="crashes: behind a large comment"),
        pytest.param("x.yaml", "cdiVersion: 0.5.0\nkind: vendor.com/gpu\n", False, id="good"),
        pytest.param(
            "x.yaml",
            "cdiVersion: 0.6.0\nannotations:\n  kind: a/b\nkind: vendor.com/gpu\n",
            False,
            id="annotation",
        ),
        # The library refuses these before the crash.
        pytest.param("x.yaml", "kind: vendor.com/x\n", False, id="no version"),
        pytest.param("x.yaml", "cdiVersion: 9.9.9\nkind: vendor.com/x\n", False, id="unknown version"),
        pytest.param("x.yaml", "cdiVersion: 0.5.0\nkind: 1/gpu\n", False, id="digit"),
        pytest.param("x.yaml", "cdiVersion: 0.5.0\nkind: 9vendor/x\n", False, id="first digit"),
        pytest.param("x.yaml", "cdiVersion: 0.5.0\nkind: x\n", False, id="no vendor"),
        pytest.param("x.yaml", "cdiVersion: 0.5.0\nkind: vendor.com/x/yy\n", False, id="two slashes"),
        pytest.param(
            "x.yaml", "cdiVersion: 0.5.0\nkind: vendor.com/\u00e9\n", False, id="no letter of ASCII"
        ),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\nkind: [a/b]\n", False, id="list"),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\nKind: a/b\nkind: v.com/gpu\n", False, id="upper case"),
        pytest.param("x.yaml", "cdiVersion: 0.6.0\nkind: *a\nx: &a a/b\n", False, id="anchor behind alias"),
        pytest.param("x.yaml", f"{LETTERS}\t{{\n", False, id="no YAML"),
        pytest.param("x.yaml", f"{LETTERS}{DEEP}", False, id="deep"),
        pytest.param("x.yaml", LETTERS.encode() + b"# \xff\n", False, id="no UTF-8"),
        pytest.param("x.yaml", LETTERS.encode("utf-16-le"), False, id="UTF-16 without a mark"),
        pytest.param("x.yaml", f"\ufeff{LETTERS}".encode("utf-32-le"), False, id="UTF-32"),
        pytest.param("x.yaml", f"---\n---\n{LETTERS}", False, id="second document"),
        pytest.param("x.yml", "cdiVersion: 0.5.0\nkind: vendor.com/x\n", False, id="suffix"),
        pytest.param("x.json", "[]", False, id="JSON, a list"),
        pytest.param("x.json", "{", False, id="JSON, cut"),
    ],
)
def test_a_specification_that_crashes_containerd_is_told(
    tmp_path: Path, name: str, specification: str | bytes, *, crashes: bool
) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    content = specification.encode() if isinstance(specification, str) else specification
    (tmp_path / "etc/cdi" / name).write_bytes(content)

    found = told(Disk(tmp_path), {CONFIG: "version = 3\n"}, (2, 1))

    assert len(found) == crashes
    assert all(f"/etc/cdi/{name} has the kind " in each for each in found)
