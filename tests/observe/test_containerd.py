"""containerd: the schema of the file, what is inherited, what keeps CRI from loading, and imported files."""

import pytest

from installer.config_text import Value
from installer.errors import InstallerError
from tests.observe.texts import CRI2, CRI3, NVIDIA, V2, V3, at, decided, result

ROOT = "/etc/containerd/config.toml"
RUNC = "io.containerd.runc.v2"


def runtimes(text: str, *, plugin: str = V2, version: str = "1.7.24", default: bool = False) -> Value:
    proposal = decided("containerd", text, version=version, default=default)
    return at(result(proposal, ROOT, text), "plugins", plugin, "containerd", "runtimes")


@pytest.mark.parametrize(
    ("text", "version", "plugin"),
    [
        pytest.param(f"version = 2\n[{CRI3}]\n", "2.1.9", V3, id="2 with the id of 3 on 2.x"),
        pytest.param(f"version = 2\n[{CRI3}]\n", "1.7.24", V2, id="2 with the id of 3 on 1.x"),
    ],
)
def test_the_table_is_the_one_of_the_files_schema(text: str, version: str, plugin: str) -> None:
    tree = result(decided("containerd", text, version=version), ROOT, text)

    assert at(tree, "plugins", plugin, "containerd", "runtimes", "nvidia", "options", "BinaryName") == NVIDIA


@pytest.mark.parametrize(
    ("text", "version", "flaw"),
    [
        pytest.param("version = 3\n", "1.7.24", "does not read schema 3", id="3 on 1.x"),
        pytest.param("version = 0\n", "", "does not read schema 0", id="0"),
        pytest.param("version = 2.0\n", "", "version is 2.0 where a whole number belongs", id="2.0"),
    ],
)
def test_a_file_of_another_schema_is_refused(text: str, version: str, flaw: str) -> None:
    with pytest.raises(InstallerError, match=f"{ROOT} .*{flaw}"):
        decided("containerd", text, version=version)


@pytest.mark.parametrize(
    ("version", "kind", "served"),
    [
        pytest.param("1.7.24", "io.containerd.runc.v1", "io.containerd.runc.v1", id="runc.v1 on 1.x"),
        pytest.param("2.1.9", "io.containerd.runc.v1", RUNC, id="not on 2.x, which has it no more"),
        pytest.param("1.7.24", "", RUNC, id="runc where it says none"),
    ],
)
def test_a_shim_is_inherited_if_it_is_of_runc(version: str, kind: str, served: str) -> None:
    text = f"version = 2\n[{CRI2}.runtimes.runc]\nruntime_type = '{kind}'\n"

    assert at(runtimes(text, version=version), "nvidia", "runtime_type") == served


@pytest.mark.parametrize(
    ("said", "starts"),
    [
        pytest.param("options.binaryName = '/b/gpu'", "/b/gpu", id="by its binary"),
        pytest.param("runtime_type = 'io.containerd.gpu.v1'", "io.containerd.gpu.v1", id="by its shim"),
    ],
)
def test_a_name_that_another_runtime_has_is_refused(said: str, starts: str) -> None:
    with pytest.raises(InstallerError, match=f"a runtime named gpu is there already and starts {starts}"):
        decided("containerd", f"version = 2\n[{CRI2}.runtimes.gpu]\n{said}\n", name="gpu")


# Drop-ins and imported files, which 2.x merges and 1.x takes for the whole table

DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'


@pytest.mark.parametrize(
    ("imported", "drop_in"),
    [
        pytest.param(f"[{CRI3}]\ndefault_runtime_name = 'x'\n", "", id="the default"),
        pytest.param(
            f"[{CRI3}.runtimes.nvidia-cdi]\n", "/etc/containerd/conf.d/20.toml", id="after our drop-in"
        ),
    ],
)
def test_an_import_that_is_read_after_our_file_may_not_name(imported: str, drop_in: str) -> None:
    path = "/etc/containerd/conf.d/50.toml"
    texts = {ROOT: f"version = 3\n{IMPORTS}", path: imported}

    with pytest.raises(InstallerError, match=rf"\({path} is imported after our file and sets "):
        decided("containerd", texts, version="2.1.9", drop_in=drop_in, default=True)


def test_on_1_our_runtimes_go_where_the_last_import_with_a_cri_table_is() -> None:
    directory, table = "/etc/containerd/conf.d", f"version = 2\n[{CRI2}]\n"
    others = {"10.toml": table, "20.toml": table, "30.toml": "version = 2\n"}
    texts = {ROOT: f"version = 2\n{IMPORTS}"} | {f"{directory}/{name}": text for name, text in others.items()}

    proposal = decided("containerd", texts, version="1.7.24", drop_in=DROP_IN)

    assert [str(file.path) for file in proposal.files] == [f"{directory}/20.toml"]
