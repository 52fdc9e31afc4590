"""containerd: drop-ins and imported files, which 2.x merges and 1.x takes for the whole table."""

import pytest

from installer.errors import InstallerError
from tests.decide.engines.configs import NVIDIA, at, decided, result

ROOT = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
V3 = "io.containerd.cri.v1.runtime"
CRI2, CRI3 = 'plugins."io.containerd.grpc.v1.cri".containerd', f'plugins."{V3}".containerd'
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("/etc/containerd/conf.d/*.toml", id="of its directory"),
        pytest.param("conf.d/99-*", id="relative to the root file"),
        pytest.param(DROP_IN, id="of its name"),
    ],
)
def test_a_drop_in_that_is_imported_already_needs_no_other_pattern(pattern: str) -> None:
    text = f"version = 3\nimports = ['{pattern}']\n"

    decision = decided("containerd", text, version="2.1.9", drop_in=DROP_IN)

    assert [str(file.path) for file in decision.files] == [DROP_IN]


@pytest.mark.parametrize(
    ("imported", "drop_in"),
    [
        pytest.param(f"[{CRI3}.runtimes.nvidia]\n", "", id="a runtime of our name"),
        pytest.param(f"[{CRI3}]\ndefault_runtime_name = 'x'\n", "", id="the default"),
        pytest.param(
            f"[{CRI3}.runtimes.nvidia-cdi]\n", "/etc/containerd/conf.d/20.toml", id="after our drop-in"
        ),
    ],
)
def test_an_import_that_is_read_after_our_file_may_not_name(imported: str, drop_in: str) -> None:
    path = "/etc/containerd/conf.d/50.toml"

    with pytest.raises(InstallerError) as refusal:
        decided(
            "containerd",
            {ROOT: f"version = 3\n{IMPORTS}", path: imported},
            version="2.1.9",
            drop_in=drop_in,
            default=True,
        )

    assert f"({path} is imported after our file and sets " in str(refusal.value)


@pytest.mark.parametrize(
    ("imports", "files"),
    [
        pytest.param("'conf.d/*.toml'", ["/etc/containerd/conf.d/50.toml"], id="one that sorts before it"),
        pytest.param("'/z/*.toml'", ["/z/50.toml"], id="one of an earlier pattern"),
        pytest.param("", ["/etc/containerd/conf.d/50.toml"], id="one that nobody imports"),
    ],
)
def test_our_drop_in_has_the_last_word_over(imports: str, files: list[str]) -> None:
    text = f"version = 3\nimports = [{imports}]\n"
    other = dict.fromkeys(files, f"[{CRI3}.runtimes.nvidia]\noptions.BinaryName = '/x'\n")

    decision = decided("containerd", {ROOT: text, **other}, version="2.1.9", drop_in=DROP_IN)

    assert at(result(decision, DROP_IN), "plugins", V3, "containerd", "runtimes", "nvidia", "options") == {
        "BinaryName": NVIDIA
    }


def test_on_1_the_last_import_with_a_cri_table_is_the_one_that_counts() -> None:
    table = f"version = 2\n[{CRI2}]\n"
    texts = {
        ROOT: f"version = 2\n{IMPORTS}",
        "/etc/containerd/conf.d/10.toml": table,
        "/etc/containerd/conf.d/20.toml": table,
        "/etc/containerd/conf.d/30.toml": "version = 2\n",
    }

    decision = decided("containerd", texts, version="1.7.24", drop_in=DROP_IN)

    assert [str(file.path) for file in decision.files] == ["/etc/containerd/conf.d/20.toml"]


def test_on_1_a_drop_in_that_nobody_imports_does_not_count() -> None:
    texts = {ROOT: "version = 2\n", DROP_IN: f"version = 2\n[{CRI2}]\n"}

    decision = decided("containerd", texts, version="1.7.24", drop_in=DROP_IN)

    assert [str(file.path) for file in decision.files] == [ROOT]


def test_a_drop_in_of_nvidias_installer_may_be_of_a_higher_schema_than_the_root() -> None:
    runc = f"[{CRI3}.runtimes.runc]\noptions.SystemdCgroup = true\n"
    texts = {ROOT: f"version = 2\n{IMPORTS}[{CRI2}.runtimes.runc]\n", DROP_IN: f"version = 3\n{runc}"}

    decision = decided("containerd", texts, version="2.1.9", drop_in=DROP_IN)

    assert [str(file.path) for file in decision.files] == [DROP_IN]
    ours = at(result(decision, DROP_IN, texts[DROP_IN]), "plugins", V3, "containerd", "runtimes", "nvidia")
    assert at(ours, "options") == {"SystemdCgroup": True, "BinaryName": NVIDIA}


def test_a_root_file_of_schema_1_is_refused_on_2_whatever_the_drop_in_says() -> None:
    texts = {ROOT: f"version = 1\n{IMPORTS}", DROP_IN: f"version = 3\n[{CRI3}]\n"}

    with pytest.raises(InstallerError, match=r"2\.x ignores a file of schema 1"):
        decided("containerd", texts, version="2.1.9", drop_in=DROP_IN)
