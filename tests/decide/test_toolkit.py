from collections.abc import Sequence
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.errors import InstallerError
from installer.model.facts import PayloadFacts
from installer.model.files import Artifact, Copy, PayloadFile, Symlink, Text
from installer.payload.files import (
    CONFIG,
    LIBRARIES,
    REQUIRED,
    check_artifacts,
    list_payload,
    search_paths,
    version_of,
)

ROOT = PurePosixPath("/artifacts/deb")
TOOLKIT = PurePosixPath("/usr/local/nvidia/toolkit")


def elf(machine: int, *, bits: int = 64, order: int = 1) -> bytes:
    head = bytearray(64)
    head[:6] = b"\x7fELF" + bytes((bits // 32, order))
    head[18:20] = machine.to_bytes(2, "little")
    return bytes(head)


def artifact(name: str, *, mode: int = 0o755, head: bytes = elf(62)) -> Artifact:
    library = name in LIBRARIES
    return Artifact(
        name=name,
        file_name=f"{name}.17.4" if library else name,
        source=ROOT / "usr" / ("lib64" if library else "bin") / name,
        size_bytes=1000,
        mode=mode,
        digest=f"sha256 of {name}",
        head=head,
    )


def source(*, mode: int = 0o755, head: bytes = elf(62)) -> list[Artifact]:
    return [artifact(name, mode=mode, head=head) for name in REQUIRED]


def files(artifacts: list[Artifact] | None = None, low_level: str = "runc") -> tuple[PayloadFile, ...]:
    found = source() if artifacts is None else artifacts
    return list_payload(found, toolkit_dir=TOOLKIT, low_level=(low_level, "crun"), config_text="config\n")


def file_at(path: str, artifacts: list[Artifact] | None = None) -> PayloadFile:
    (file,) = (file for file in files(artifacts) if str(file.path) == path)
    return file


def refuse(
    artifacts: list[Artifact], *, machine: str = "x86_64", absent: Sequence[PurePosixPath] = ()
) -> None:
    found = PayloadFacts(tuple(artifacts), frozenset(absent), machine=machine)
    for error in check_artifacts(found, ROOT):
        raise error


def with_one(changed: Artifact) -> list[Artifact]:
    return [changed if found.name == changed.name else found for found in source()]


def test_a_version_holds_the_names_of_nvidias_installer() -> None:
    assert [str(file.path) for file in files()] == [
        ".config/nvidia-container-runtime/config.toml",
        "libnvidia-container-go.so.1",
        "libnvidia-container-go.so.1.17.4",
        "libnvidia-container.so.1",
        "libnvidia-container.so.1.17.4",
        "nvidia-cdi-hook",
        "nvidia-container-cli",
        "nvidia-container-cli.real",
        "nvidia-container-runtime",
        "nvidia-container-runtime-hook",
        "nvidia-container-runtime-hook.real",
        "nvidia-container-runtime.cdi",
        "nvidia-container-runtime.cdi.real",
        "nvidia-container-runtime.legacy",
        "nvidia-container-runtime.legacy.real",
        "nvidia-container-runtime.real",
        "nvidia-container-toolkit",
        "nvidia-ctk",
        "nvidia-ctk.real",
    ]


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(Text(CONFIG, "config\n", 0o644), id="config"),
        pytest.param(
            Copy(
                PurePosixPath("nvidia-container-cli.real"),
                ROOT / "usr/bin/nvidia-container-cli",
                1000,
                "sha256 of nvidia-container-cli",
                0o755,
            ),
            id="program behind a wrapper",
        ),
        pytest.param(
            Copy(
                PurePosixPath("nvidia-cdi-hook"),
                ROOT / "usr/bin/nvidia-cdi-hook",
                1000,
                "sha256 of nvidia-cdi-hook",
                0o755,
            ),
            id="program as it is",
        ),
        pytest.param(
            Symlink(PurePosixPath("libnvidia-container.so.1"), "libnvidia-container.so.1.17.4"), id="soname"
        ),
        pytest.param(
            Symlink(PurePosixPath("nvidia-container-toolkit"), "nvidia-container-runtime-hook"), id="old name"
        ),
    ],
)
def test_a_file_becomes(file: PayloadFile) -> None:
    assert file in files()


@pytest.mark.parametrize("mode", [0o4750, 0o6777, 0o1777, 0o500, 0o755])
@pytest.mark.parametrize("name", ["nvidia-cdi-hook", "nvidia-ctk", "nvidia-ctk.real"])
def test_everybody_may_run_a_program_and_only_its_owner_write_it(name: str, mode: int) -> None:
    program = file_at(name, source(mode=mode))

    assert isinstance(program, Copy | Text)
    assert program.mode == 0o755


@pytest.mark.parametrize(
    ("found", "installed"),
    [
        pytest.param(0o644, 0o644, id="as the source"),
        pytest.param(0o755, 0o755, id="with execute bits"),
        pytest.param(0o600, 0o644, id="private"),
        pytest.param(0o4666, 0o644, id="setuid and writable"),
    ],
)
def test_a_library_can_be_read_by_everybody(found: int, installed: int) -> None:
    library = file_at("libnvidia-container.so.1.17.4", source(mode=found))

    assert isinstance(library, Copy)
    assert library.mode == installed


@pytest.mark.parametrize(
    "name",
    [
        # As NVIDIA's own test artifacts have it.
        pytest.param("libnvidia-container.so.99.88.77", id="without the soname in its name"),
        pytest.param("stub", id="another name"),
    ],
)
def test_a_link_to_a_library_stays_a_link(name: str) -> None:
    found = replace(artifact("libnvidia-container.so.1"), file_name=name)

    assert file_at("libnvidia-container.so.1", with_one(found)) == Symlink(
        PurePosixPath("libnvidia-container.so.1"), name
    )
    assert isinstance(file_at(name, with_one(found)), Copy)


def test_two_links_to_one_library_stay_links_to_one() -> None:
    one = ROOT / "usr/lib64/stub.so"
    found = [
        replace(found, file_name="stub.so", source=one, digest="one") if found.name in LIBRARIES else found
        for found in source()
    ]

    assert [file_at(name, found) for name in LIBRARIES] == [
        Symlink(PurePosixPath(name), "stub.so") for name in LIBRARIES
    ]
    assert isinstance(file_at("stub.so", found), Copy)


@pytest.mark.parametrize(
    "file_name",
    [
        pytest.param("libnvidia-container.so.1", id="no link"),
        pytest.param("nvidia-ctk", id="the name of a program"),
        pytest.param("nvidia-ctk.real", id="the name of a program behind its wrapper"),
        pytest.param("libnvidia-container-go.so.1", id="the name of the other library"),
        pytest.param("libnvidia-container-go.so.1.17.4", id="the file of the other library"),
    ],
)
def test_a_library_that_has_no_name_of_its_own_is_installed_as_its_soname(file_name: str) -> None:
    found = replace(artifact("libnvidia-container.so.1"), file_name=file_name)

    assert isinstance(file_at("libnvidia-container.so.1", with_one(found)), Copy)
    paths = [file.path for file in files(with_one(found))]
    assert len(paths) == len(set(paths))


def test_a_directory_that_no_search_path_can_name_is_refused() -> None:
    with pytest.raises(InstallerError, match="cannot install into /a:b/toolkit"):
        list_payload(
            source(), toolkit_dir=PurePosixPath("/a:b/toolkit"), low_level=("runc",), config_text="config\n"
        )


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        pytest.param("nvidia-ctk", "usr/local/sbin/nvidia-ctk", "bin/nvidia-ctk", id="program"),
        pytest.param(
            "libnvidia-container.so.1",
            "usr/lib64/libnvidia-container.so.1",
            "usr/lib/aarch64-linux-gnu/libnvidia-container.so.1",
            id="library",
        ),
    ],
)
def test_a_source_is_searched_where_distributions_put_things(name: str, first: str, last: str) -> None:
    paths = search_paths(name)

    assert (paths[0], paths[-1]) == (PurePosixPath(first), PurePosixPath(last))


@pytest.mark.parametrize(
    ("machine", "head"),
    [pytest.param("x86_64", elf(62), id="x86"), pytest.param("aarch64", elf(183), id="arm")],
)
def test_a_complete_source_for_the_node_is_accepted(machine: str, head: bytes) -> None:
    refuse(source(head=head), machine=machine)


def test_where_nothing_is_found_it_says_where_a_toolkit_may_be() -> None:
    with pytest.raises(InstallerError) as refusal:
        refuse([])

    assert str(refusal.value) == (
        "cannot find an NVIDIA container toolkit under /artifacts/deb; "
        "name its root with --toolkit-source, which is / where apt or dnf has installed it"
    )


def test_all_that_is_missing_is_named_in_one_sentence() -> None:
    found = [found for found in source() if found.name not in {"nvidia-ctk", "nvidia-cdi-hook", LIBRARIES[0]}]

    with pytest.raises(InstallerError) as refusal:
        refuse(found)

    assert str(refusal.value) == (
        "cannot find nvidia-cdi-hook, nvidia-ctk and libnvidia-container-go.so.1 under /artifacts/deb; "
        "make --toolkit-source the root of a complete NVIDIA container toolkit"
    )


@pytest.mark.parametrize(
    ("head", "flaw"),
    [
        pytest.param(elf(183), "is built for aarch64, the node is x86_64", id="other node"),
        pytest.param(elf(243), "is built for ELF machine 243, the node is x86_64", id="no node of ours"),
        pytest.param(elf(3, bits=32), "is not a 64-bit little-endian ELF file", id="32 bit"),
        pytest.param(elf(62, order=2), "is not a 64-bit little-endian ELF file", id="big endian"),
        pytest.param(b"#!sh\n", "is neither an ELF file nor a script", id="script for nothing"),
        pytest.param(b"echo\n#!/bin/sh\n", "is neither an ELF file nor a script", id="no first line"),
        pytest.param(elf(62)[:19], "is neither an ELF file nor a script", id="cut short"),
        pytest.param(b"", "is neither an ELF file nor a script", id="empty"),
    ],
)
@pytest.mark.parametrize("name", ["nvidia-ctk", "libnvidia-container.so.1"])
def test_a_file_that_cannot_run_on_the_node_is_refused(name: str, head: bytes, flaw: str) -> None:
    wrong = artifact(name, head=head)

    with pytest.raises(InstallerError) as refusal:
        refuse(with_one(wrong))

    assert str(refusal.value) == (
        f"cannot install {name} ({wrong.source} {flaw}); "
        "make --toolkit-source an NVIDIA container toolkit for x86_64"
    )


SCRIPT = b"#! /bin/sh -e\necho I am a script\n"


def test_a_script_is_a_program_where_the_host_has_its_interpreter() -> None:
    found = with_one(artifact("nvidia-ctk", head=SCRIPT))

    refuse(found, absent=[PurePosixPath("/bin/bash")])
    with pytest.raises(InstallerError) as refusal:
        refuse(found, absent=[PurePosixPath("/bin/sh")])

    assert str(refusal.value) == (
        f"cannot install nvidia-ctk ({ROOT}/usr/bin/nvidia-ctk is a script for /bin/sh, which the host lacks); "
        "install /bin/sh there, or choose another --toolkit-source"
    )


def test_a_script_is_no_library() -> None:
    found = with_one(artifact("libnvidia-container.so.1", head=SCRIPT))

    with pytest.raises(InstallerError, match="is neither an ELF file nor a script"):
        refuse(found)


def test_a_node_nvidia_does_not_build_for_is_refused() -> None:
    with pytest.raises(InstallerError, match="cannot install the toolkit on a node of architecture riscv64"):
        refuse(source(), machine="riscv64")


def test_the_version_does_not_depend_on_order_or_on_where_the_source_is() -> None:
    moved = [replace(found, source=PurePosixPath("/elsewhere", found.name)) for found in source()]

    assert version_of(reversed(files())) == version_of(files(moved)) == version_of(files())


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(files(with_one(replace(artifact("nvidia-ctk"), digest="other"))), id="a program"),
        pytest.param(files(with_one(artifact(LIBRARIES[0], mode=0o644))), id="a mode"),
        pytest.param(files(with_one(replace(artifact(LIBRARIES[0]), file_name=LIBRARIES[0]))), id="a link"),
        pytest.param(files(low_level="/usr/bin/crun"), id="a wrapper"),
        pytest.param(files()[1:], id="a file less"),
    ],
)
def test_any_other_tree_is_another_version(changed: tuple[PayloadFile, ...]) -> None:
    assert version_of(changed) != version_of(files())


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Symlink(PurePosixPath("name"), "other"), id="target of a link"),
        pytest.param(Symlink(PurePosixPath("other"), "content"), id="name of a link"),
        pytest.param(Text(PurePosixPath("name"), "content", 0o644), id="kind"),
    ],
)
def test_a_link_is_known_by_its_name_and_its_target(other: PayloadFile) -> None:
    link = Symlink(PurePosixPath("name"), "content")

    assert version_of([other]) != version_of([link])


def test_equal_content_under_another_name_is_another_version() -> None:
    one, other = (Copy(PurePosixPath(name), ROOT, 1, "digest", 0o755) for name in ("one", "other"))

    assert version_of([one]) != version_of([other])


def test_the_name_of_a_version_is_fit_for_a_path() -> None:
    assert int(version_of(files()), 16) < 16**16
    assert len(version_of(files())) == 16
