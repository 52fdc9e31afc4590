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
from installer.errors import InstallerError
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
        ("etc/cdi/.json", "", (2, 1), True),
        ("etc/cdi/..yaml", "", (2, 1), True),
        ("etc/cdi/x.yml", "", (2, 1), False),
        ("etc/cdi/x.JSON", "", (2, 1), False),
        ("etc/cdi/x.json", f"[{RUNTIME}]\nenable_cdi = false", (2, 1), False),
        ("etc/cdi/x.json", f"[{RUNTIME}]\ncdi_spec_dirs = ['/srv/cdi']", (2, 1), False),
        ("srv/cdi/x.json", f"[{RUNTIME}]\ncdi_spec_dirs = ['/srv/cdi']", (2, 1), True),
        ("etc/cdi/x.json", "", (1, 7), False),
        ("etc/cdi/x.json", f"[{OLD}]\nenable_cdi = true", (1, 7), True),
        ("etc/cdi/x.json", f"[{OLD}]\nenable_cdi = true", (1, 6), False),
        ("etc/cni/net.d/10-x.conflist", "", (1, 6), True),
        ("etc/cni/net.d/.conf", "", (1, 6), True),
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


def test_a_fifo_behind_a_directory_of_cni_is_told(tmp_path: Path) -> None:
    (tmp_path / "etc/cni/net.d/00-x.conf").mkdir(parents=True)
    os.mkfifo(tmp_path / "etc/cni/net.d/10-y.conf")

    found = told(Disk(tmp_path), {CONFIG: "version = 3\n"}, (2, 1))

    assert ["/etc/cni/net.d/10-y.conf is a FIFO" in each for each in found] == [True]


STRANGE = "follow the link /srv/a (a user other than root could have placed it)"
LONG = "read {0} (it has more than 16 MiB)"


class _Strange(Disk):
    """A disk on which a file can be looked at or read only with a failure."""

    def __init__(self, root: Path, kind: str = "", read: str = "") -> None:
        super().__init__(root)
        self._kind = kind
        self._read = read

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        kind = super().kind(path, last=last)
        if self._kind and kind is Kind.FILE:
            raise InstallerError(self._kind, remedy="")
        return kind

    def read(self, path: PurePosixPath) -> File | None:
        if self._read:
            raise InstallerError(self._read.format(path), remedy="")
        return super().read(path)


@pytest.mark.parametrize(
    ("path", "kind", "read", "reasons"),
    [
        pytest.param(
            "/etc/cdi/x.json",
            STRANGE,
            "",
            [f"if {{0}} is a FIFO, and this process cannot {STRANGE}"],
            id="specification behind a link",
        ),
        pytest.param(
            "/etc/cdi/x.json",
            "",
            LONG,
            [f"if {{0}} crashes it, and this process cannot {LONG}"],
            id="long specification",
        ),
        pytest.param("/etc/cdi/x.yml", STRANGE, LONG, [], id="no specification"),
        pytest.param(
            "/etc/cni/net.d/x.conf",
            STRANGE,
            "",
            [f"if {{0}} is a FIFO, and this process cannot {STRANGE}"],
            id="network behind a link",
        ),
        pytest.param("/etc/cni/net.d/x.conf", "", LONG, [], id="long network"),
    ],
)
def test_a_file_that_cannot_be_judged_is_told_if_containerd_would_open_it(
    tmp_path: Path, path: str, kind: str, read: str, reasons: list[str]
) -> None:
    here = tmp_path / path[1:]
    here.parent.mkdir(parents=True)
    here.write_text("{}")

    found = told(_Strange(tmp_path, kind, read), {CONFIG: "version = 3\n"}, (2, 1))

    remedy = "replace {0} by a small regular file, or remove it"
    assert found == [f"its CRI would not load {reason}; {remedy}".format(path) for reason in reasons]


LETTERS = "cdiVersion: 0.6.0\nkind: a/b\n"
ALIAS = "cdiVersion: 0.6.0\nannotations: {x: &a a/b}\nkind: *a\n"
LARGE = f"# {'x' * (1 << 20)}\n"
DEEP = f"annotations: {'[' * 40}{']' * 40}\n"


# All seen with containerd 2.1.9, but for the one whose id tells otherwise.
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
        pytest.param(".json", LETTERS, True, id="suffix alone"),
        # The library refuses this kind of escape.
        pytest.param("x.json", r'{"cdiVersion": "0.6.0", "kind": "a\/b"}', True, id="boots: escaped slash"),
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


@pytest.mark.parametrize("text", [f"{LETTERS}{LARGE}", f"{LARGE}{LETTERS}"], ids=["behind", "before"])
def test_a_large_specification_with_a_suspect_word_is_not_judged(tmp_path: Path, text: str) -> None:
    path = "/etc/cdi/x.yaml"
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / path[1:]).write_text(text)

    found = told(Disk(tmp_path), {CONFIG: "version = 3\n"}, (2, 1))

    problem = f"if {path} crashes it, and this process cannot judge {path} (it has more than 1 MiB)"
    assert [problem in each for each in found] == [True]


HEAD = "cdiVersion: 1.0.0\nkind: vendor.com/gpu\n"
DEVICE = f"{HEAD}devices:\n- name: a\n  containerEdits:\n    "
LISTS = "\n".join(f"- &l{n + 1} [{', '.join([f'*l{n}'] * 9)}]" for n in range(25))
BOMB = f"annotations:\n- &l0 [~]\n{LISTS}\n"  # as a text it has 9 ** 25 brackets
DEVICES = "devices: [{name: a, containerEdits: {env: [A=b]}}]\n"


# All seen with containerd 2.1.9, but for those whose ids tell otherwise.
@pytest.mark.parametrize(
    ("specification", "crashes"),
    [
        pytest.param(f"{DEVICE}hooks: [~]\n", True, id="hook"),
        pytest.param(f"{DEVICE}deviceNodes: [~]\n", True, id="device node"),
        pytest.param(f"{DEVICE}mounts: [~]\n", True, id="mount"),
        pytest.param(f"{HEAD}containerEdits: {{hooks: [~]}}\n{DEVICES}", True, id="hook of all devices"),
        pytest.param(f"{HEAD}containerEdits: {{mounts: [~]}}\n{DEVICES}", True, id="mount of all devices"),
        pytest.param(
            f"{DEVICE}netDevices: [~]\n".replace("1.0.0", "1.1.0"), True, id="boots: of a later version"
        ),
        pytest.param(f"{DEVICE}deviceNodes: [{{path: /dev/null}}, ~]\n", True, id="second entry"),
        pytest.param(f"{DEVICE}hooks:\n    -\n", True, id="nothing"),
        pytest.param(f"{DEVICE}hooks:\n    - # none\n    - path: /x\n", True, id="comment"),
        pytest.param(f"{DEVICE}hooks:\r    -\r    - path: /x\r", True, id="CR"),
        pytest.param(f"{DEVICE}hooks:\n    -", True, id="no end of line"),
        pytest.param(f"{DEVICE}mounts: [null]\n", True, id="null"),
        pytest.param(f"{DEVICE}mounts: [NULL]\n", True, id="NULL"),
        pytest.param(f"{DEVICE}mounts: [!!null '']\n", True, id="tag"),
        pytest.param(f"{DEVICE}mounts: [&n , *n]\n", True, id="anchor alone"),
        pytest.param(
            f"{HEAD}annotations: {{x: &n ~}}\ndevices: [{{name: a, containerEdits: {{mounts: [*n]}}}}]\n",
            True,
            id="alias",
        ),
        pytest.param(
            f"{DEVICE}hooks: [{{hookName: prestart, path: /x, args: &l [~]}}]\n    mounts: *l\n",
            True,
            id="alias of a list",
        ),
        pytest.param(f"{DEVICE}<<: {{mounts: [~]}}\n", True, id="merged"),
        pytest.param(
            '{"CDIVersion":"1.0.0","kind":"v.com/gpu","Devices":[{"name":"a","ContainerEdits":{"HOOKS":[null]}}]}',
            True,
            id="case in JSON",
        ),
        pytest.param(f"{DEVICE}mounts: [~]\n".replace("1.0.0", "0.3.0"), True, id="old version"),
        pytest.param(f"{DEVICE}mounts: [~]\n".replace("kind: vendor.com/gpu\n", ""), True, id="no kind"),
        # The library refuses these for another reason, before it looks at the entry.
        pytest.param(f"{DEVICE}hooks: [~]\n    env: ['']\n", True, id="boots: bad variable"),
        pytest.param(f"{DEVICE}mounts: [~]\nx: y\n", True, id="boots: unknown field"),
        pytest.param(f"{DEVICE}env: [A=b]\n", False, id="good"),
        pytest.param(f"{HEAD}devices: [~]\n", False, id="device"),
        pytest.param(f"{HEAD}devices: [{{name: a, containerEdits: ~}}]\n", False, id="no edits"),
        pytest.param(f"{HEAD}containerEdits: ~\n{DEVICES}", False, id="no edits of all devices"),
        pytest.param(f"{DEVICE}hooks: ~\n    intelRdt: ~\n    env: [A=b]\n", False, id="no list"),
        pytest.param(f"{DEVICE}env: [~]\n", False, id="variable"),
        pytest.param(f"{DEVICE}additionalGids: [~]\n", False, id="group"),
        pytest.param(
            f"{DEVICE}hooks: [{{hookName: prestart, path: /x, args: [~], env: [~]}}]\n", False, id="argument"
        ),
        pytest.param(
            f"{DEVICE}mounts: [{{hostPath: /x, containerPath: /y, options: [~]}}]\n", False, id="option"
        ),
        pytest.param(f"{DEVICE}mounts: [nUll]\n", False, id="word"),
        pytest.param(f"{DEVICE}mounts: ['~']\n", False, id="quoted"),
        pytest.param(f"{DEVICE}mounts: [!!str ~]\n", False, id="tag of a text"),
        pytest.param(f"{DEVICE}mounts: [!!null x]\n", False, id="tag and text"),
        pytest.param(f"{DEVICE}mounts: [~]\n".replace("1.0.0", "9.0.0"), False, id="unknown version"),
        pytest.param(f"{DEVICE}mounts: [~]\n\t{{\n", False, id="no YAML"),
        pytest.param(f"{BOMB}cdiVersion: *l25\nkind: *l25\n? *l25\n: x\n", False, id="nested aliases"),
        pytest.param(f"{DEVICE}mounts: {{a: ~}}\n", False, id="no list of mounts"),
        pytest.param(f"{DEVICE}env: [A=b]\n---\n{DEVICE}mounts: [~]\n", False, id="second document"),
    ],
)
def test_a_null_entry_that_crashes_containerd_is_told(
    tmp_path: Path, specification: str, *, crashes: bool
) -> None:
    path = "/etc/cdi/x.yaml"
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / path[1:]).write_bytes(specification.encode())

    found = told(Disk(tmp_path), {CONFIG: "version = 3\n"}, (2, 1))

    assert [f"{path} has a null entry in " in each for each in found] == [True] * crashes
