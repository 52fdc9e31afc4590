"""What else has containers start the toolkit, by the files that name it."""

from pathlib import Path, PurePosixPath

import pytest

from installer.decide.data import replace
from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.facts import EngineFacts, Facts, ToolkitFacts
from installer.decide.inode import File
from installer.decide.layout import Layout
from installer.decide.parts.cdi import OWNER
from installer.decide.rows import ConfigRow, Record
from installer.host.files import Host
from installer.record.handed import given_back, with_handed, with_unnamed

LAYOUT = Layout()
HOOK = LAYOUT.toolkit / "nvidia-ctk"
SPEC = f'{{"hooks": [{{"path": "{HOOK}"}}]}}'
DAEMON = PurePosixPath("/etc/docker/daemon.json")


def put(root: Path, path: PurePosixPath | str, text: str = "") -> None:
    place = root / str(path).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


@pytest.mark.parametrize(
    ("value", "there", "given"),
    [
        (HOOK, "nvidia-ctk", True),
        (HOOK, "other", False),
        (LAYOUT.versions / "1/nvidia-ctk", "nvidia-ctk", True),
        (LAYOUT.versions / "1/sub/nvidia-ctk", "sub/nvidia-ctk", True),
        (LAYOUT.versions / "1/sub/nvidia-ctk", "nvidia-ctk", False),
        (PurePosixPath("/usr/bin/nvidia-ctk"), "nvidia-ctk", False),
        (LAYOUT.toolkit, "nvidia-ctk", False),  # a directory is no program
    ],
)
def test_a_program_of_the_toolkit_that_stood_there_before_is_given_back(
    tmp_path: Path, value: PurePosixPath, there: str, *, given: bool
) -> None:
    put(tmp_path, LAYOUT.replaced / there)

    assert given_back(Host.under(PurePosixPath(tmp_path)), str(value), LAYOUT) == given


def facts(config: str = "{}", *rows: ConfigRow, served: tuple[str, ...] = ()) -> Facts:
    row = ENGINES["docker"]
    serving = Effect({}, "runc", hook_dirs=tuple(map(PurePosixPath, served))) if served else None
    engine = EngineFacts("docker", DAEMON, None, None, (DAEMON,), row.socket, row.unit, serving=serving)
    contents = {DAEMON: File(config.encode())}
    return Facts((engine,), contents, {}, frozenset(), (), ToolkitFacts(), replace(Record(), configs=rows))


@pytest.mark.parametrize(
    ("path", "config", "served", "told"),
    [
        ("/etc/cdi/a.json", "{}", (), True),
        ("/var/run/cdi/a.yaml", "{}", (), True),
        ("/etc/cdi/a.txt", "{}", (), False),
        ("/srv/cdi/a.json", "{}", (), False),
        ("/srv/cdi/a.json", '{"cdi-spec-dirs": ["/srv/cdi"]}', (), True),
        ("/srv/cdi/a.json", '{"cdi_spec_dirs": ["srv/cdi", 7, "/srv\\u0000/cdi"]}', (), False),
        ("/srv/cdi/a.json", '{"debug": ["/srv/cdi"]}', (), False),
        ("/srv/base.json", '{"runtimes": {"x": {"base_runtime_spec": "/srv/base.json"}}}', (), True),
        ("/srv/hooks/a.json", '{"hooks_dir": ["/srv/hooks"]}', (), True),
        ("/srv/hooks/a.json", "{}", ("/srv/hooks",), True),
        ("/srv/hooks/a.conf", "{}", ("/srv/hooks",), False),
        ("/etc/containers/oci/hooks.d/a.json", "{}", (), True),
        ("/etc/containers/containers.conf", "{}", (), True),
        ("/etc/containers/containers.conf.d/a.conf", "{}", (), True),
        ("/etc/containers/containers.conf.d/a.toml", "{}", (), False),
        ("/etc/nvidia-container-runtime/config.toml", "{}", (), True),
        ("/etc/cdi/a.json", "{ no json", (), True),
    ],
)
def test_files_that_name_the_toolkit(
    tmp_path: Path, path: str, config: str, served: tuple[str, ...], *, told: bool
) -> None:
    put(tmp_path, path, SPEC)

    found = with_handed(Host.under(PurePosixPath(tmp_path)), facts(config, served=served), LAYOUT).handed

    assert found == ({PurePosixPath(path): (str(HOOK),)} if told else {})


@pytest.mark.parametrize(
    ("owner", "ours", "now", "told"),
    [
        (OWNER, True, True, False),
        (OWNER, False, True, True),  # somebody has written it anew
        (OWNER, False, False, False),
        ("docker", False, True, False),
    ],
)
def test_what_a_row_tells_of_is_judged_by_it(
    tmp_path: Path, owner: str, *, ours: bool, now: bool, told: bool
) -> None:
    path = PurePosixPath("/etc/cdi/a.json")
    put(tmp_path, path, SPEC)
    file = File(SPEC.encode())
    row = ConfigRow(owner, path, None, None, (file.digest,) if ours else (), ())
    known = facts("{}", row)
    known = replace(known, contents={**known.contents, **({path: file} if now else {})})

    found = with_handed(Host.under(PurePosixPath(tmp_path)), known, LAYOUT).handed

    assert bool(found) == told


def test_each_file_is_read_once_also_by_two_names(tmp_path: Path) -> None:
    put(tmp_path, "/etc/cdi/a.json", SPEC)
    (tmp_path / "etc/cdi/b.json").symlink_to("a.json")
    (tmp_path / "etc/cdi/c.json").mkdir()

    found = with_handed(Host.under(PurePosixPath(tmp_path)), facts(), LAYOUT).handed

    assert [str(path) for path in found] == ["/etc/cdi/a.json"]


@pytest.mark.parametrize("kept", [True, False])
def test_programs_that_people_start_by_a_word_lead_to_ours(tmp_path: Path, *, kept: bool) -> None:
    put(tmp_path, HOOK, "ELF")
    if kept:
        put(tmp_path, LAYOUT.replaced / HOOK.name)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-ctk").symlink_to(HOOK)
    put(tmp_path, "/usr/bin/nvidia-smi", "ELF")

    found = with_unnamed(Host.under(PurePosixPath(tmp_path)), facts(), LAYOUT).unnamed

    assert found == ({} if kept else {PurePosixPath("/usr/bin/nvidia-ctk"): HOOK})
