"""Where a word leads that a config has for a program: to what the engine finds in its own PATH."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.engines import ENGINES
from installer.decide.facts import EngineFacts, Facts, ToolkitFacts
from installer.decide.inode import File
from installer.decide.layout import Layout
from installer.decide.rows import Record
from installer.host.files import Host
from installer.record.links import MOST_PROGRAMS, SCRIPT_DEPTH, Ours, candidates, links_named, unnamed

ROW = ENGINES["containerd"]
LAYOUT = Layout(PurePosixPath("/usr/local/nvidia"))
TEXT = (
    'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpu.options]\nBinaryName = "gpu"\n'
)
SITE, USUAL = PurePosixPath("/opt/site/bin"), PurePosixPath("/usr/bin")


def put(root: Path, path: PurePosixPath, text: str = "") -> Path:
    place = root / path.relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


@pytest.mark.parametrize(
    ("paths", "leads"),
    [
        pytest.param(((SITE, USUAL),), True, id="of its start"),
        pytest.param(((USUAL,), (SITE, USUAL)), True, id="of its next start"),
        pytest.param(((USUAL, SITE),), False, id="another one is first"),
        pytest.param((), False, id="not known"),
    ],
)
def test_a_word_is_looked_for_in_the_path_of_the_engine(
    tmp_path: Path, paths: tuple[tuple[PurePosixPath, ...], ...], *, leads: bool
) -> None:
    program = LAYOUT.versions / "1/nvidia-container-runtime"
    put(tmp_path, program)
    put(tmp_path, USUAL / "gpu")
    put(tmp_path, SITE / "gpu").unlink()
    (tmp_path / "opt/site/bin/gpu").symlink_to(program)
    engine = EngineFacts(
        "containerd", ROW.config, None, None, (ROW.config,), ROW.socket, ROW.unit, paths=paths
    )
    contents = {ROW.config: File(TEXT.encode())}
    facts = Facts((engine,), contents, {}, frozenset(), (), ToolkitFacts(), Record())

    found = links_named(Host.under(PurePosixPath(tmp_path)), facts, LAYOUT)

    assert (found.get("gpu") == program) is leads


PROGRAM = LAYOUT.toolkit / "nvidia-container-runtime"
VERSION = LAYOUT.versions / "1/nvidia-container-runtime"


def named(*values: str, path: tuple[PurePosixPath, ...] = (SITE, USUAL)) -> Facts:
    """Return the facts of an engine with one PATH which was handed a text that names these programs."""
    engine = EngineFacts("containerd", ROW.config, None, None, (), ROW.socket, ROW.unit, paths=(path,))
    facts = Facts((engine,), {}, {}, frozenset(), (), ToolkitFacts(), Record())
    return replace(facts, handed={ROW.config: values})


@pytest.mark.parametrize(
    ("links", "value", "leads"),
    [
        pytest.param({}, str(VERSION), None, id="a path that is what it says"),
        pytest.param({}, "/gone/gpu", None, id="a path to nothing"),
        pytest.param({"opt/gpu": str(VERSION)}, "/opt/gpu", VERSION, id="a link into the install-dir"),
        pytest.param(
            {"opt/gpu": "/usr/bin/other"}, "/opt/gpu", PurePosixPath("/usr/bin/other"), id="a link elsewhere"
        ),
        pytest.param({}, "script", PROGRAM, id="a script that starts the toolkit"),
        pytest.param({"opt/gpu": "/opt/gpu"}, "/opt/gpu", None, id="a link to itself"),
        pytest.param(
            {"opt/site/bin/gpu": "/usr/bin/other", "usr/bin/gpu": str(VERSION)},
            "gpu",
            VERSION,
            id="first by one that is not ours, then by ours",
        ),
        pytest.param(
            {"opt/site/bin/gpu": str(VERSION), "usr/bin/gpu": "/usr/bin/other"},
            "gpu",
            VERSION,
            id="first by ours, then by one that is not",
        ),
    ],
)
def test_a_program_is_told_where_it_really_is_unless_it_is_what_it_says(
    tmp_path: Path, links: dict[str, str], value: str, leads: PurePosixPath | None
) -> None:
    put(tmp_path, VERSION, "ELF")
    put(tmp_path, PROGRAM, "another ELF")
    put(tmp_path, USUAL / "other")
    put(tmp_path, USUAL / "script", f"#!/bin/sh\nexec {PROGRAM}\n").chmod(0o755)
    for name, target in links.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(target)
    # Two engines, each of which finds the program in a place of its own.
    one, other = (named(value, path=(place,)) for place in (SITE, USUAL))
    facts = replace(one, engines=(*one.engines, *other.engines))

    found = links_named(Host.under(PurePosixPath(tmp_path)), facts, LAYOUT)

    assert found == ({} if leads is None else {value: leads})


def test_an_install_dir_behind_a_link_is_known_by_both_names(tmp_path: Path) -> None:
    (tmp_path / "mnt/local").mkdir(parents=True)
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/local").symlink_to("/mnt/local")

    found = links_named(Host.under(PurePosixPath(tmp_path)), named(), LAYOUT)

    assert found == {str(LAYOUT.install_dir): PurePosixPath("/mnt/local/nvidia")}


def scripts(root: Path, *texts: str) -> None:
    """Put scripts at /usr/bin/0, /usr/bin/1 and so on."""
    for number, text in enumerate(texts):
        put(root, USUAL / str(number), f"#!/bin/sh\n{text}\n").chmod(0o755)


@pytest.mark.parametrize(
    ("texts", "ours"),
    [
        pytest.param([f"exec {PROGRAM}"], True, id="a script names it"),
        pytest.param([f"# exec {PROGRAM}"], False, id="in a comment"),
        pytest.param(["exec nvidia-container-runtime"], True, id="by a word of its PATH"),
        pytest.param(["exec another"], False, id="another word"),
        pytest.param(["exec /usr/bin/1", f"exec {PROGRAM}"], True, id="through another script"),
        pytest.param(["exec 1", f"exec {PROGRAM}"], True, id="through another script, by a word"),
        pytest.param(["exec /usr/bin/0"], False, id="itself alone"),
        pytest.param(["exec /usr/bin/gone", "exec /usr/bin/1"], False, id="what is not there"),
        pytest.param(
            [*(f"exec /usr/bin/{n + 1}" for n in range(SCRIPT_DEPTH - 1)), f"exec {PROGRAM}"],
            True,
            id="as deep as is looked",
        ),
        pytest.param(
            [*(f"exec /usr/bin/{n + 1}" for n in range(SCRIPT_DEPTH)), f"exec {PROGRAM}"],
            False,
            id="deeper",
        ),
    ],
)
def test_a_script_leads_to_what_it_starts(tmp_path: Path, texts: list[str], *, ours: bool) -> None:
    put(tmp_path, PROGRAM, "ELF")
    scripts(tmp_path, *texts)
    host = Host.under(PurePosixPath(tmp_path))

    found = Ours(host, LAYOUT).behind(host, USUAL / "0", (LAYOUT.toolkit, USUAL))

    assert found == (PROGRAM if ours else None)


@pytest.mark.parametrize(("many", "ours"), [(MOST_PROGRAMS - 1, True), (MOST_PROGRAMS, False)])
def test_of_what_a_script_starts_only_so_many_are_opened(tmp_path: Path, many: int, *, ours: bool) -> None:
    put(tmp_path, PROGRAM, "ELF")
    starts_all = "\n".join(f"/usr/bin/{number + 1}" for number in range(many))
    scripts(tmp_path, starts_all, *["exec true"] * (many - 1), f"exec {PROGRAM}")
    host = Host.under(PurePosixPath(tmp_path))

    assert (Ours(host, LAYOUT).behind(host, USUAL / "0") == PROGRAM) is ours


def test_only_files_lead_anywhere_and_only_where_there_is_a_toolkit(tmp_path: Path) -> None:
    host = Host.under(PurePosixPath(tmp_path))
    scripts(tmp_path, f"exec {PROGRAM}")
    assert Ours(host, LAYOUT).behind(host, USUAL / "0") is None

    put(tmp_path, PROGRAM, "ELF")
    put(tmp_path, LAYOUT.versions / "1/nvidia-ctk", "ELF")

    assert Ours(host, LAYOUT).behind(host, USUAL / "gone") is None
    assert Ours(host, LAYOUT).behind(host, USUAL) is None
    assert Ours(host, LAYOUT).behind(host, PROGRAM) == PROGRAM
    # Where another toolkit has its place, only our versions are ours.
    assert Ours(host, LAYOUT, theirs=True).behind(host, PROGRAM) is None
    assert Ours(host, LAYOUT, theirs=True).behind(host, LAYOUT.versions / "1/nvidia-ctk")


def test_programs_without_a_name_in_a_config_are_those_of_the_path_first_place_first(tmp_path: Path) -> None:
    for place in (SITE, USUAL):
        put(tmp_path, place / "runc")
    put(tmp_path, USUAL / "containerd-shim-x")
    (tmp_path / "opt/site/bin/crun").mkdir()
    put(tmp_path, USUAL / "other")
    host = Host.under(PurePosixPath(tmp_path))
    gone = PurePosixPath("/gone")

    assert sorted(unnamed(host, ["runc", "crun", "containerd-shim-*"], [(gone, SITE, USUAL)])) == [
        SITE / "runc",
        USUAL / "containerd-shim-x",
    ]
    assert [*candidates(host, "runc", [(gone, SITE, USUAL), (USUAL,)])] == [SITE / "runc", USUAL / "runc"]
    assert [*candidates(host, "crun", [(SITE, USUAL)])] == []
    assert [*candidates(host, "/a/b", [(USUAL,)])] == [PurePosixPath("/a/b")]
    assert [*candidates(host, "a/b", [(USUAL,)])] == []
    assert [*candidates(host, "", [(USUAL,)])] == []
