"""What admins do with the configs of a containerd between our install and our undo, and how configs are put together.

Each version's own program says what would be in force (``config dump``); it runs no daemon for that.
"""

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from installer.config_text import Syntax, Want
from installer.config_text.change import apply
from installer.engines.containerd.effective import V2_PLUGIN, V3_PLUGIN
from installer.engines.dry_run import compare_configs
from installer.errors import InstallerError
from installer.model.engine_spec import Runtime, find_disturbances
from tests.engines.dumps import HOST, OURS, Containerd, Node, a_node, writes

OLD = f'plugins."{V2_PLUGIN}".containerd'
NEW = f'plugins."{V3_PLUGIN}".containerd'
RUNC = 'runtime_type = "io.containerd.runc.v2"'
SYSTEMD = "options.SystemdCgroup = true"
KATA = 'runtime_type = "io.containerd.kata.v2"'
DRIVER = f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n[{OLD}.runtimes.runc.options]\nSystemdCgroup = true\n"
STARTS = {"no file": None, "comments alone": "# as the package ships it\n#root = '/var/lib/containerd'\n"}


def driver(node: Node, name: str) -> bool:
    """Tell whether a runtime uses systemd's cgroup driver, as containerd itself has it."""
    options = node.truth().handlers[name].table.get("options")
    return isinstance(options, Mapping) and options.get("SystemdCgroup") is True


def schema_of(containerd: Containerd) -> tuple[int, str]:
    """Return the newest schema that a containerd reads, and the table of its runtimes."""
    return (3, NEW) if containerd[1] >= (2,) else (2, OLD)


def test_runc_stays_where_a_runtime_of_others_takes_the_built_in_one_away(
    containerd: Containerd, tmp_path: Path
) -> None:
    node = a_node(containerd, tmp_path, "version = 2\n")
    node.install()
    node.edit(
        node.config,
        Want((*node.cri(node.config), "runtimes", "mine", "runtime_type"), "io.containerd.runc.v2"),
    )

    done = node.uninstall()

    left = node.truth()
    assert not left.undefined
    assert {"runc", "mine"} <= left.handlers.keys()
    assert done.final is None
    assert not node.names_us()


MERGED = {
    "an older file under a root of schema 3": (
        'version = 3\nimports = ["@/conf.d/old.toml"]\n',
        {"conf.d__old": f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n"},
    ),
    "imports of imports": (
        'version = 2\nimports = ["@/conf.d/*.toml"]\n',
        {
            "conf.d__a": 'imports = ["@/more/b.toml"]\n',
            "more__b": f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n",
        },
    ),
    "NVIDIA's own as the default, in an import": (
        f'version = 2\nimports = ["@/conf.d/*.toml"]\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n',
        {
            "conf.d__gpu": f'version = 2\n[{OLD}]\ndefault_runtime_name = "nvidia"\n'
            f"[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n"
            f'[{OLD}.runtimes.nvidia]\n{RUNC}\noptions.BinaryName = "/usr/bin/nvidia-container-runtime"\n'
        },
    ),
    "CRI's table in an imported file": (
        'version = 2\nimports = ["@/conf.d/*.toml"]\n[grpc]\ngid = 7\n',
        {"conf.d__cri": f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n{SYSTEMD}\n"},
    ),
    "no schema, and nothing but a directory": ('root = "/var/lib/elsewhere"\n', {}),
    # As AKS has Kata in its images: the schema of 1.x, and a runtime under the plugin of 2.x.
    "both plugins in schema 2": (
        f"version = 2\n[{OLD}.runtimes.runc]\n{RUNC}\n[{NEW}.runtimes.kata]\n{KATA}\n",
        {},
    ),
    "a drop-in of schema 3": (
        f'version = 2\nimports = ["@/conf.d/*.toml"]\n[{OLD}.runtimes.runc]\n{RUNC}\n',
        {"conf.d__site": f"version = 3\n[{NEW}.runtimes.kata]\n{KATA}\n"},
    ),
}


@pytest.mark.parametrize("case", MERGED)
def test_what_containerd_makes_of_all_files_is_inherited_and_left_alone(
    containerd: Containerd, tmp_path: Path, case: str
) -> None:
    root, files = MERGED[case]
    node = a_node(containerd, tmp_path, root, **files)
    untouched, before = node.files(), node.truth()
    wanted = driver(node, before.default) if before.default in before.handlers else False
    if before.broken or before.undefined:
        with pytest.raises(InstallerError):
            node.install()
        assert node.files() == untouched
        return

    node.install()

    served = node.truth()
    assert [*find_disturbances(before, served, OURS)] == []
    assert served.handlers.keys() >= OURS
    assert {driver(node, name) for name in OURS} == {wanted or driver(node, "runc")}
    (row,) = node.held.engines
    assert writes(node.install()) == []
    assert compare_configs(HOST, row, node.held)[:2] == ("", ())
    node.uninstall()
    assert node.files() == untouched


def test_an_import_that_is_not_there_keeps_containerd_from_starting_whatever_it_dumps(
    containerd: Containerd, tmp_path: Path
) -> None:
    node = a_node(
        containerd, tmp_path, f'version = 2\nimports = ["@/absent.toml"]\n[{OLD}.runtimes.runc]\n{RUNC}\n'
    )
    facts, trials = node.facts(None)
    dumped = node.truth()

    told = trials(facts.engines[0], facts.contents)

    assert told.broken
    assert bool(dumped.broken) == (containerd[1] < (2,)), "2.x prints its defaults"
    with pytest.raises(InstallerError, match=r"absent\.toml"):
        node.install()


def test_a_file_that_nobody_imports_is_not_brought_into_force(containerd: Containerd, tmp_path: Path) -> None:
    version, _ = schema_of(containerd)
    files = {"conf.d__50-gpu-old": "oom_score = -1\n"}
    node = a_node(containerd, tmp_path, f"version = {version}\n", **files)
    untouched = node.files()

    if containerd[1] >= (2,):
        with pytest.raises(InstallerError, match=r"would load .*/50-gpu-old\.toml too"):
            node.install(drop_in="etc/conf.d/50-gpu.toml")
        assert node.files() == untouched
        node.install(drop_in="etc/conf.d/60-gpu.toml")
    else:
        node.install(drop_in="etc/conf.d/50-gpu.toml")

    assert b"oom_score" not in node.config.read_bytes()
    node.uninstall()
    assert node.files() == untouched


ADDITIONS = {
    "a registry": Want(("plugins", V2_PLUGIN, "registry", "config_path"), "/etc/containerd/certs.d"),
    "an option of runc": Want(
        ("plugins", V2_PLUGIN, "containerd", "runtimes", "runc", "options", "SystemdCgroup"), value=True
    ),
    "a runtime under the other plugin": Want(
        ("plugins", V3_PLUGIN, "containerd", "runtimes", "mine", "runtime_type"), "io.containerd.runc.v2"
    ),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("added", ADDITIONS.values(), ids=ADDITIONS)
def test_what_is_added_to_a_config_that_we_began_stays_in_force(
    containerd: Containerd, tmp_path: Path, start: str | None, added: Want
) -> None:
    node = a_node(containerd, tmp_path, start)
    node.install()
    assert node.truth().handlers.keys() >= OURS
    text, _ = apply(node.config.read_text(), [added], Syntax.TOML, name="config.toml")
    node.config.write_text(text)
    edited = node.truth()
    # 2.x passes over the older plugin where a file has both: ours have to move.
    moves = V3_PLUGIN in added.key and containerd[1] >= (2,)
    assert (edited.handlers.keys() >= OURS) == (not moves)

    again = node.install()
    run = node.install()

    follows = moves or "options" in added.key  # ours inherit them
    assert [bool(writes(each)) for each in (again, run)] == [follows, False]
    assert follows or node.config.read_text() == text
    installed = node.truth()
    assert installed.handlers.keys() >= OURS
    assert [*find_disturbances(edited, installed, OURS)] == []
    node.uninstall()
    left = node.truth()
    assert not OURS & left.handlers.keys()
    assert [*find_disturbances(edited, left, OURS)] == []
    assert tomllib.loads(node.config.read_text())["version"] == 2


def without_each(text: str) -> list[str]:
    """Return the text less each line of our first runtime in turn, but where no engine could read that."""
    lines = text.splitlines(keepends=True)
    named = [at for at, line in enumerate(lines) if re.search(r"runtimes\.nvidia[].]", line)]
    end = next(at for at, line in enumerate(lines) if "runtimes.nvidia-cdi" in line)
    texts = list[str]()
    for at in (each for each in range(named[0], end) if lines[each].strip()):
        with suppress(tomllib.TOMLDecodeError):
            one = "".join(lines[:at] + lines[at + 1 :])
            texts += [one] if tomllib.loads(one) else []
    return texts


def test_a_line_of_ours_that_is_gone_is_written_again(containerd: Containerd, tmp_path: Path) -> None:
    node = a_node(containerd, tmp_path, DRIVER)
    node.install()
    installed, proper, held = node.config.read_text(), node.truth().handlers["nvidia"], node.held
    texts = without_each(installed)
    assert len(texts) >= 3, installed

    for text in texts:
        node.config.write_text(text)
        node.held = held
        gone = not node.truth().handlers.get("nvidia", Runtime()).shows(proper)

        plan = node.install()

        assert node.truth().handlers["nvidia"].shows(proper), text
        assert bool(writes(plan)) == gone, text
        assert writes(node.install()) == []


@pytest.mark.parametrize("default", [True, False], ids=["default", "no default"])
@pytest.mark.parametrize(
    "root", [None, "version = 2\n", DRIVER], ids=["no file", "only a version", "schema 2"]
)
@pytest.mark.parametrize(
    ("first", "second"),
    [("sid", "trixie"), ("sid", "bookworm"), ("trixie", "sid"), ("bookworm", "sid")],
    ids=["2.1 to 1.7", "2.1 to 1.6", "1.7 to 2.1", "1.6 to 2.1"],
)
def test_a_config_of_ours_serves_the_containerd_that_takes_the_place_of_another(  # noqa: PLR0913 - a table
    containerds: dict[str, Containerd],
    tmp_path: Path,
    first: str,
    second: str,
    root: str | None,
    *,
    default: bool,
) -> None:
    node = a_node(containerds[first], tmp_path, root)
    files = node.files()
    before = node.truth()
    node.install(default=default)
    if root is not None:  # 1.x prints nothing of a file that is not there
        assert [*find_disturbances(before, node.truth(), OURS)] == []

    node.program, node.version = containerds[second]

    assert not node.truth().fatal
    assert node.truth().handlers.keys() == {"runc", *OURS}
    assert writes(node.install(default=default)) == []
    node.uninstall()
    assert node.files() == files
