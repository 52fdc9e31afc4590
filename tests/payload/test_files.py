"""What a version of the toolkit is made of, what a source has to have, and which versions stay and go."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import dumps, loads
from installer.change.plan import Plan, plan_install
from installer.errors import InstallerError
from installer.model.facts import Facts, PayloadFacts, Record, SpecialVersion, ToolkitFacts, ToolkitRow
from installer.model.files import VERSIONS, Artifact, Copy, Entry, Kind, PayloadFile, Symlink, Text
from installer.model.options import Options
from installer.model.steps import ProveUnused, RemoveToolkit, RemoveVersion, SwitchToolkit
from installer.payload import plan as toolkit
from installer.payload.files import (
    CONFIG,
    LIBRARIES,
    REQUIRED,
    access_flaw,
    check_artifacts,
    list_payload,
    version_of,
)
from tests.change.golden import GOLDEN, case_of, final_of
from tests.support.golden import golden

ROOT = PurePosixPath("/artifacts/deb")
TOOLKIT = PurePosixPath("/usr/local/nvidia/toolkit")
LIBRARY = "libnvidia-container.so.1"
CTK = f"{ROOT}/usr/bin/nvidia-ctk"


def elf(machine: int, *, bits: int = 64, order: int = 1) -> bytes:
    return b"\x7fELF" + bytes((bits // 32, order)) + bytes(12) + machine.to_bytes(2, "little")


def artifact(name: str, *, mode: int = 0o755, head: bytes = elf(62)) -> Artifact:
    library = name in LIBRARIES
    file_name = f"{name}.17.4" if library else name
    path = ROOT / "usr" / ("lib64" if library else "bin") / name
    return Artifact(name, file_name, path, 1000, mode, f"sha256 of {name}", head)


def source(*changed: Artifact, mode: int = 0o755, head: bytes = elf(62)) -> list[Artifact]:
    """Return a whole source, with ``changed`` in the place of what is called so."""
    found = {name: artifact(name, mode=mode, head=head) for name in REQUIRED}
    return [*{**found, **{each.name: each for each in changed}}.values()]


def files(*artifacts: Artifact) -> tuple[PayloadFile, ...]:
    found = artifacts or source()
    return list_payload(found, toolkit_dir=TOOLKIT, low_level=("runc", "crun"), config_text="config\n")


def refusals(artifacts: list[Artifact], *, machine: str = "x86_64", absent: str = "/none") -> list[str]:
    found = PayloadFacts(tuple(artifacts), frozenset({PurePosixPath(absent)}), machine=machine)
    return [str(error) for error in check_artifacts(found, ROOT)]


NAMES = """
.config/nvidia-container-runtime/config.toml
libnvidia-container-go.so.1 libnvidia-container-go.so.1.17.4 libnvidia-container.so.1 libnvidia-container.so.1.17.4
nvidia-cdi-hook nvidia-container-cli nvidia-container-cli.real
nvidia-container-runtime nvidia-container-runtime-hook nvidia-container-runtime-hook.real
nvidia-container-runtime.cdi nvidia-container-runtime.cdi.real
nvidia-container-runtime.legacy nvidia-container-runtime.legacy.real nvidia-container-runtime.real
nvidia-container-toolkit nvidia-ctk nvidia-ctk.real
"""


def test_a_version_holds_the_names_of_nvidias_installer() -> None:
    assert [str(file.path) for file in files()] == NAMES.split()


def test_files_become_texts_copies_and_links() -> None:
    def copied(path: str, name: str) -> Copy:
        return Copy(PurePosixPath(path), ROOT / "usr/bin" / name, 1000, f"sha256 of {name}", 0o755)

    assert {*files()} >= {
        Text(CONFIG, "config\n", 0o644),
        copied("nvidia-container-cli.real", "nvidia-container-cli"),  # behind a wrapper
        copied("nvidia-cdi-hook", "nvidia-cdi-hook"),  # as it is
        Symlink(PurePosixPath(LIBRARY), f"{LIBRARY}.17.4"),
        Symlink(PurePosixPath("nvidia-container-toolkit"), "nvidia-container-runtime-hook"),  # its old name
    }


@pytest.mark.parametrize(("found", "library"), [(0o6777, 0o755), (0o500, 0o544), (0o4666, 0o644)])
def test_everybody_may_run_and_read_and_only_its_owner_write(found: int, library: int) -> None:
    copies = [file for file in files(*source(mode=found)) if isinstance(file, Copy)]

    assert {file.mode for file in copies if str(file.path).startswith("lib")} == {library}
    assert {file.mode for file in copies if not str(file.path).startswith("lib")} == {0o755}


def test_a_file_of_the_toolkit_is_accessible_to_all_who_use_it() -> None:
    assert access_flaw(PurePosixPath("nvidia-ctk"), Entry(1, 0o755)) == ""
    assert access_flaw(PurePosixPath(LIBRARY), Entry(1, 0o644)) == ""
    assert access_flaw(PurePosixPath("nvidia-ctk"), Entry(1, 0o644)) == "not executable by everybody"
    assert access_flaw(PurePosixPath(LIBRARY), Entry(1, 0o2644)) == "setuid, setgid or sticky"
    assert access_flaw(PurePosixPath("lib"), Entry(0, 0o2755, directory=True)) == ""
    assert access_flaw(CONFIG, Entry(1, 0o600)) == "", "an administrator may close his own"
    closed = Entry(0, 0o700, directory=True)
    assert access_flaw(PurePosixPath(".config"), closed) == "not accessible to everybody"


# No link; the name of a program behind its wrapper; the file of the other library.
@pytest.mark.parametrize("file_name", [LIBRARY, "nvidia-ctk.real", "libnvidia-container-go.so.1.17.4"])
def test_a_library_that_has_no_name_of_its_own_is_installed_as_its_soname(file_name: str) -> None:
    found = files(*source(replace(artifact(LIBRARY), file_name=file_name)))

    assert [type(file) for file in found if str(file.path) == LIBRARY] == [Copy]
    assert len({file.path for file in found}) == len(found)


def test_a_directory_that_no_search_path_can_name_is_refused() -> None:
    where = PurePosixPath("/a:b/toolkit")

    with pytest.raises(InstallerError, match="cannot install into /a:b/toolkit"):
        list_payload(source(), toolkit_dir=where, low_level=("runc",), config_text="config\n")


def test_what_is_missing_of_a_source_is_named_in_one_sentence() -> None:
    assert refusals(source(head=elf(62))) == refusals(source(head=elf(183)), machine="aarch64") == []
    (nothing,) = refusals([])
    assert nothing.startswith("cannot find an NVIDIA container toolkit under /artifacts/deb; ")
    less = [each for each in source() if each.name not in {"nvidia-ctk", "nvidia-cdi-hook", LIBRARIES[0]}]
    (missing,) = refusals(less)
    assert missing.startswith(
        "cannot find nvidia-cdi-hook, nvidia-ctk and libnvidia-container-go.so.1 under /artifacts/deb; make"
    )
    (said,) = refusals(source(), machine="riscv64")
    assert said.startswith("cannot install the toolkit on a node of architecture riscv64")


SCRIPT = b"#! /bin/sh -e\necho I am a script\n"
NEITHER = "is neither a program for x86_64 nor a script"


@pytest.mark.parametrize(
    "head", [*(elf(183), elf(3, bits=32), elf(62, order=2), b"echo\n#!/bin/sh\n", elf(62)[:19])]
)
def test_a_file_that_cannot_run_on_the_node_is_refused(head: bytes) -> None:
    for wrong in (artifact("nvidia-ctk", head=head), artifact(LIBRARY, head=head)):
        (said,) = refusals(source(wrong))
        assert said.startswith(f"cannot install {wrong.name} ({wrong.source} {NEITHER}); ")


def test_a_script_is_a_program_where_the_host_has_its_interpreter_and_never_a_library() -> None:
    found = source(artifact("nvidia-ctk", head=SCRIPT))

    assert refusals(found, absent="/bin/bash") == []
    (said,) = refusals(found, absent="/bin/sh")
    assert f"({CTK} is a script for /bin/sh, which the host lacks); " in said
    (said,) = refusals(source(artifact(LIBRARY, head=SCRIPT)))
    assert NEITHER in said


def test_the_name_of_a_version_depends_on_its_files_alone() -> None:
    moved = [replace(found, source=PurePosixPath("/elsewhere", found.name)) for found in source()]

    assert version_of(reversed(files())) == version_of(files(*moved)) == version_of(files())
    assert re.fullmatch("[0-9a-f]{16}", version_of(files()))


def test_no_two_files_are_the_same_tree() -> None:
    name, other = PurePosixPath("name"), PurePosixPath("other")
    trees: list[list[PayloadFile]] = [
        [Symlink(name, "content")],
        [Symlink(name, "other")],
        [Symlink(other, "content")],
        [Symlink(name, "content"), Symlink(other, "content")],
        [Text(name, "content", 0o644)],
        [Text(name, "other", 0o644)],
        [Copy(name, ROOT, 1, "digest", 0o755)],
        [Copy(name, ROOT, 1, "another", 0o755)],
        [Copy(name, ROOT, 1, "digest", 0o644)],
        [Copy(other, ROOT, 1, "digest", 0o755)],
    ]

    assert len({version_of(tree) for tree in trees}) == len(trees)


# Which versions stay and go

CASE = case_of("containerd", "kubeadm-tabs")


def facts(found: ToolkitFacts, row: ToolkitRow | None) -> Facts:
    return replace(CASE.facts(held=Record(toolkit=row)), toolkit=found)


def toolkit_of(plan: Plan) -> ToolkitRow:
    row = final_of(plan).toolkit
    assert row is not None
    return row


NEW = toolkit_of(plan_install(CASE.facts(), CASE.options)).version


@pytest.mark.parametrize(
    ("link", "row", "previous"),
    [
        ("", None, None),
        (f"{VERSIONS}old", ToolkitRow("old", "older", ""), "old"),
        (f"{VERSIONS}{NEW}", ToolkitRow(NEW, "old", ""), "old"),
        (f"{VERSIONS}old", None, "old"),  # no ledger knows it
        (f"{VERSIONS}{SpecialVersion.STAND_IN}", ToolkitRow("old", None, ""), None),
        (f"{VERSIONS}old.bak", ToolkitRow(NEW, None, ""), None),  # an admin's copy, and his detour
        (f"{VERSIONS}../versions/old", ToolkitRow(NEW, None, ""), None),
    ],
)
def test_the_version_of_before_is_kept(link: str, row: ToolkitRow | None, previous: str | None) -> None:
    there = {name: dict[PurePosixPath, Entry]() for name in ("old", "older", NEW)}
    found = ToolkitFacts(Kind.LINK if link else Kind.ABSENT, link, there)

    plan = plan_install(facts(found, row), CASE.options)

    assert (toolkit_of(plan).version, toolkit_of(plan).previous) == (NEW, previous)
    gone = {step.version for step in plan.steps if isinstance(step, RemoveVersion)}
    assert gone == {"old", "older", NEW} - {NEW, previous}
    assert loads(dumps(final_of(plan))) == plan.final


ROW = ToolkitRow("1", None, "")
OURS, THEIRS = ToolkitFacts(Kind.LINK, f"{VERSIONS}1"), ToolkitFacts(Kind.DIRECTORY)
ELSEWHERE = ToolkitFacts(Kind.LINK, "elsewhere")
ASIDE = replace(ROW, replaced=True)


@pytest.mark.parametrize(
    ("found", "row", "step"),
    [
        (OURS, ROW, SwitchToolkit(OURS.link, "")),
        (OURS, replace(ROW, linked="/their/toolkit"), SwitchToolkit(OURS.link, "/their/toolkit")),
        (replace(OURS, replaced=True), ASIDE, SwitchToolkit(OURS.link, None)),
        (ToolkitFacts(), ROW, None),
        (THEIRS, ROW, None),
        (THEIRS, replace(ROW, version=SpecialVersion.ADOPTED), RemoveToolkit()),
        (ToolkitFacts(replaced=True), ASIDE, SwitchToolkit("", None)),
        (replace(THEIRS, superseded=True), None, SwitchToolkit(None, None)),
        (replace(OURS, superseded=True), None, None),
        (THEIRS, None, None),
        (ELSEWHERE, ROW, None),
    ],
)
def test_an_undo_gives_the_toolkit_path_back_to_its_former_owner(
    found: ToolkitFacts, row: ToolkitRow | None, step: SwitchToolkit | RemoveToolkit | None
) -> None:
    part = toolkit.undo(facts(found, row), Options(), ())

    assert list(part.steps) == ([ProveUnused(), step] if step else [])
    assert not part.obstacles


def test_another_in_its_name_keeps_what_stands_aside() -> None:
    part = toolkit.undo(facts(replace(ELSEWHERE, replaced=True), ASIDE), Options(), ())

    (obstacle,) = part.obstacles
    assert "(another file or directory is at /usr/local/nvidia/toolkit now)" in obstacle.problem


# The texts we install, as files to read: `make golden` rewrites them.

TEXTS = GOLDEN / "toolkit"
ODD_TOOLKIT = PurePosixPath("/opt/it's $(here)/toolkit")


def wrappers(toolkit_dir: PurePosixPath, low_level: tuple[str, ...]) -> dict[str, str]:
    found = list_payload(source(), toolkit_dir=toolkit_dir, low_level=low_level, config_text="")
    return {str(file.path): file.content for file in found if isinstance(file, Text) and file.path != CONFIG}


def texts() -> Mapping[str, str]:
    odd = wrappers(ODD_TOOLKIT, ("/opt/it's runc/crun", "runc"))
    return {
        **wrappers(TOOLKIT, ("runc", "crun")),
        "nvidia-container-runtime-in-an-odd-directory": odd["nvidia-container-runtime"],
        "nvidia-container-cli-in-an-odd-directory": odd["nvidia-container-cli"],
    }


def test_the_texts_are_the_golden_ones() -> None:
    assert texts() == {name: golden(TEXTS / name, text) for name, text in texts().items()}
    assert {path.name for path in TEXTS.iterdir() if path.suffix != ".toml"} == {*texts()}
