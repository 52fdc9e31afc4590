"""What an owner has made of our runtimes, default, hook and drop-ins stays his at an undo."""

import json

import pytest
from msgspec.structs import replace

from installer.config_text import ABSENT, Key, Syntax, Tree, Value, WantedKey, value_at
from installer.config_text.change import apply, parse
from tests.support.preloaded import Done
from tests.support.site import CONTAINERD, CRIO, DAEMON_JSON, LEDGER, TOOLKIT, Site

OURS = f"/{TOOLKIT}/nvidia-container-runtime"
CRI = ("plugins", "io.containerd.grpc.v1.cri", "containerd")
RUNTIMES = (*CRI, "runtimes")


def _tree(site: Site, path: str) -> Tree:
    return parse(site.read(path), _syntax(path), name=path)


def _syntax(path: str) -> Syntax:
    return Syntax.JSON if path.endswith(".json") else Syntax.TOML


def _edit(site: Site, path: str, *wants: WantedKey) -> None:
    text, _ = apply(site.read(path), wants, _syntax(path), name=path)
    site.write(path, text)


def _notes(done: Done) -> list[str]:
    return [line["note"] for line in map(json.loads, done.stderr.splitlines()) if "note" in line]


@pytest.mark.parametrize(
    ("path", "runtimes", "program"),
    [
        pytest.param(CONTAINERD, RUNTIMES, ("options", "BinaryName"), id="containerd"),
        pytest.param(CRIO, ("crio", "runtime", "runtimes"), ("runtime_path",), id="CRI-O"),
        pytest.param(DAEMON_JSON, ("runtimes",), ("path",), id="Docker"),
    ],
)
@pytest.mark.parametrize(
    "between",
    [
        pytest.param(None, id="by an undo"),
        pytest.param(("--runtime-name", "gpu"), id="when ours gets another name"),
        pytest.param((), id="when it was ours again in between"),
    ],
)
def test_all_of_a_runtime_that_leads_elsewhere_stays_and_the_others_go(
    site: Site, path: str, runtimes: Key, program: Key, between: tuple[str, ...] | None
) -> None:
    site.install("--set-as-default")
    key = (*runtimes, "nvidia")
    _edit(site, path, WantedKey((*key, *program), "/usr/sbin/runc"))
    taken = value_at(_tree(site, path), key)
    if between is not None:
        site.install(*between)
        again = _tree(site, path)
        assert value_at(again, key) == taken if between else value_at(again, (*key, *program)) == OURS

    done = site.uninstall()

    left = value_at(_tree(site, path), runtimes)
    assert isinstance(left, dict)
    assert left["nvidia"] == taken
    assert left.keys().isdisjoint({"nvidia-cdi", "gpu"})
    if between is None:
        note = f"left the runtime nvidia in /{path} as it is: it was edited to start /usr/sbin/runc"
        assert _notes(done) == [note]
        assert not (site.root / "usr/local/nvidia").exists()


@pytest.mark.parametrize(
    ("path", "program"),
    [
        pytest.param(CONTAINERD, (*RUNTIMES, "nvidia", "options", "BinaryName"), id="containerd"),
        pytest.param(CRIO, ("crio", "runtime", "runtimes", "nvidia", "runtime_path"), id="CRI-O"),
        pytest.param(DAEMON_JSON, ("runtimes", "nvidia", "path"), id="Docker"),
    ],
)
@pytest.mark.parametrize(
    "binary",
    [
        f"{OURS}.cdi",
        f"/{OURS}.cdi",
        f"{OURS}.mine",
        "/usr//local/nvidia//toolkit/nvidia-container-runtime.cdi",
    ],
)
@pytest.mark.parametrize("is_repaired", [True, False], ids=["repaired", "not repaired"])
def test_a_runtime_that_leads_to_another_file_of_the_toolkit_goes_with_it(
    clean: Site, path: str, program: Key, binary: str, *, is_repaired: bool
) -> None:
    clean.install()
    installed = clean.read(path)
    _edit(clean, path, WantedKey(program, binary))
    if is_repaired:
        clean.install()
        assert clean.read(path) == installed

    done = clean.uninstall()

    assert done.returncode == 0, done.stderr
    assert _notes(done) == []


def test_an_owners_program_that_goes_with_the_toolkit_is_named(clean: Site) -> None:
    clean.install()
    clean.write(f"{TOOLKIT}/my-wrapper", "#!/bin/sh\n").chmod(0o755)
    _edit(clean, DAEMON_JSON, WantedKey(("runtimes", "nvidia", "path"), f"/{TOOLKIT}/my-wrapper"))

    done = clean.uninstall()

    assert _notes(done) == [f"/{TOOLKIT}/my-wrapper goes with the toolkit: the install did not make it"]


def test_an_owners_file_that_an_update_leaves_behind_is_named(clean: Site) -> None:
    clean.install()
    clean.write(f"{TOOLKIT}/d/data", "mine\n")
    old = (clean.root / TOOLKIT).resolve().relative_to(clean.root)
    for program in clean.source.rglob("nvidia-ctk"):
        program.write_bytes(program.read_bytes() + b"2")

    done = clean.install()

    left = f"it stays as /{old}/d/data, until the next update or uninstall deletes it"
    assert f"/{TOOLKIT}/d/data is not part of the new toolkit: {left}" in done.stderr
    assert clean.read(f"{old}/d/data") == "mine\n"
    assert "data" not in clean.install().stderr
    clean.uninstall()


def test_an_owners_file_that_a_repair_removes_is_named(clean: Site) -> None:
    clean.install()
    clean.write(f"{TOOLKIT}/d/data", "mine\n")
    (clean.root / TOOLKIT / "nvidia-ctk").unlink()

    planned, done = clean.call("plan"), clean.install()

    removed = f"/{TOOLKIT}/d/data goes with the damaged toolkit: the install did not make it"
    assert removed in planned.stdout
    assert removed in done.stderr
    assert not (clean.root / TOOLKIT / "d").exists()
    clean.uninstall()


def test_an_undo_names_no_file_of_ours_as_an_owners(clean: Site) -> None:
    """A program as large as NVIDIA's is copied with a note of its digest beside it."""
    for program in clean.source.rglob("nvidia-ctk"):
        program.write_bytes(program.read_bytes() + bytes(2 << 20))
    clean.install()

    assert _notes(clean.uninstall()) == []


def test_a_runtime_that_has_another_shim_stays_and_so_does_the_program_that_it_names(installed: Site) -> None:
    key = (*RUNTIMES, "nvidia", "runtime_type")
    _edit(installed, CONTAINERD, WantedKey(key, "io.containerd.runsc.v1"))
    taken = value_at(_tree(installed, CONTAINERD), key[:-1])

    done = installed.uninstall(code=4)

    assert f"remove the toolkit (/{CONTAINERD} names {OURS}" in done.stderr
    assert value_at(_tree(installed, CONTAINERD), key[:-1]) == taken
    _edit(installed, CONTAINERD, WantedKey((*key[:-1], "options", "BinaryName"), "/usr/bin/runsc"))
    installed.uninstall()
    assert not (installed.root / "usr/local/nvidia").exists()


def test_a_runtime_whose_options_have_lost_their_header_goes_whole(site: Site) -> None:
    before = _tree(site, CONTAINERD)
    site.install()
    lines = site.read(CONTAINERD).splitlines(keepends=True)
    site.write(CONTAINERD, "".join(line for line in lines if "runtimes.nvidia.options]" not in line))

    site.uninstall()

    assert _tree(site, CONTAINERD) == before
    assert not (site.root / "usr/local/nvidia").exists()


def test_an_old_default_table_that_its_owner_sets_again_stays_and_all_of_ours_goes(site: Site) -> None:
    key = ("plugins", "cri", "containerd")
    old = '[plugins.cri.containerd.default_runtime]\nruntime_type = "io.containerd.runc.v1"\n'
    site.write(CONTAINERD, old)
    site.install("--set-as-default")
    _edit(site, CONTAINERD, WantedKey((*key, "default_runtime", "runtime_type"), "io.containerd.runc.v2"))

    said = site.uninstall().stderr

    assert (
        "default_runtime.runtime_type in /etc/containerd/config.toml: it was edited after the install" in said
    )
    left = value_at(_tree(site, CONTAINERD), key)
    assert left == {"default_runtime": {"runtime_type": "io.containerd.runc.v2"}}


@pytest.mark.parametrize("lost", [False, True], ids=["by the ledger", "its ledger lost"])
def test_what_only_toml_can_say_goes_with_our_runtime_too(site: Site, *, lost: bool) -> None:
    before = _tree(site, CONTAINERD), _tree(site, DAEMON_JSON)
    site.install()
    ours, huge = site.read(CONTAINERD), site.read(DAEMON_JSON).replace('"path"', '"x": 1e400, "path"', 1)
    values = ("[2024-01-01T07:32:00Z]", "07:32:00", "nan", "[{a = -inf}]", "1e400", '"\\u007f"')
    theirs = "".join(f"x{index} = {value}\n" for index, value in enumerate(values))
    site.write(CONTAINERD, ours.replace("BinaryName", f"{theirs}BinaryName", 1))
    assert (theirs in site.read(CONTAINERD), "1e400" in huge) == (True, True)
    if lost:
        (site.root / LEDGER).unlink()
    else:  # without a ledger a runtime of Docker with a key of another is an owner's
        site.write(DAEMON_JSON, huge)

    site.uninstall()

    assert (_tree(site, CONTAINERD), _tree(site, DAEMON_JSON)) == before


@pytest.mark.parametrize("path", [CONTAINERD, DAEMON_JSON])
def test_a_plan_names_each_runtime_that_is_missing_or_changed_and_no_other(site: Site, path: str) -> None:
    before = site.read(path)
    site.install()
    site.write(path, site.read(path).replace(f'{OURS}"', '/usr/bin/x"'))
    changed = site.call("plan").stdout
    site.install()
    site.write(path, before)

    gone = site.call("plan").stdout

    reason = f"edit /{path}: missing or different: nvidia"
    assert (f"{reason}\n" in changed, f"{reason}, nvidia-cdi, nvidia-legacy\n" in gone) == (True, True)


def test_what_docker_may_not_have_beside_a_path_does_not_come_back_beside_somebody_elses(site: Site) -> None:
    options = '{"BinaryName": "/usr/bin/nvidia-container-runtime"}'
    theirs = f'{{"nvidia": {{"runtimeType": "io.containerd.runc.v2", "options": {options}}}}}'
    site.write(DAEMON_JSON, f'{{"runtimes": {theirs}}}')
    site.install()
    _edit(site, DAEMON_JSON, WantedKey(("runtimes", "nvidia", "path"), "/usr/sbin/runc"))

    site.uninstall()

    left = _tree(site, DAEMON_JSON)["runtimes"]
    assert left == {"nvidia": {"runtimeType": "", "options": {}, "path": "/usr/sbin/runc"}}


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        pytest.param(CONTAINERD, (*RUNTIMES, "nvidia", "options", "SystemdCgroup"), False, id="containerd"),
        pytest.param(DAEMON_JSON, ("runtimes", "nvidia", "args"), ["--debug"], id="Docker"),
    ],
)
def test_a_setting_that_was_changed_goes_with_our_runtime_and_is_told_of_once(
    site: Site, path: str, key: Key, value: Value
) -> None:
    before = _tree(site, path)
    site.install()
    _edit(site, path, WantedKey(key, value))

    done = site.uninstall()

    assert _notes(done) == [f"removed {'.'.join(key)} from /{path}: it was a setting of our runtime"]
    assert _tree(site, path) == before


def test_a_default_that_was_taken_over_stays_where_nobody_defines_the_one_before_it(site: Site) -> None:
    v2 = WantedKey(("runtimes", "v2", "path"), "/usr/sbin/runc")
    _edit(site, DAEMON_JSON, v2, WantedKey(("default-runtime",), "v2"))
    site.install("--set-as-default")
    _edit(site, DAEMON_JSON, replace(v2, key=v2.key[:2], value=ABSENT))
    _edit(site, DAEMON_JSON, WantedKey(("runtimes", "nvidia", "path"), "/usr/sbin/runc"))
    kept = _tree(site, DAEMON_JSON)

    done = site.uninstall(code=4)

    assert _tree(site, DAEMON_JSON) == kept
    assert "is not defined)" in done.stderr


def test_a_comment_keeps_no_built_in_runtime_that_was_not_named_before_the_install(site: Site) -> None:
    runtime = f'[plugins."{CRI[1]}".containerd.runtimes.nvidia'
    options = f'{runtime}.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
    text = f'version = 2\n{runtime}]\nruntime_type = "io.containerd.runc.v2"\n{options}'
    site.write(CONTAINERD, text)
    site.install()
    site.write(CONTAINERD, site.read(CONTAINERD) + "# mine\n")

    site.uninstall()

    assert site.read(CONTAINERD) == f"{text}# mine\n"


HOOK = "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
OTHER = ("--drop-in-config", "crio={root}/etc/crio/crio.conf.d/98-gpu.toml")
THEIRS = '{"version": "1.0.0", "hook": {"path": "/usr/bin/site-hook"}, "when": {"always": true}, "stages": ["poststop"]}\n'


@pytest.mark.parametrize(
    ("before", "edited", "left"),
    [
        pytest.param("", "createRuntime", "", id="of ours, edited"),
        pytest.param(THEIRS, "createRuntime", THEIRS, id="of an owner, edited"),
        pytest.param("", THEIRS, THEIRS, id="of an owner, in the place of ours"),
    ],
)
@pytest.mark.parametrize("repaired", [False, True], ids=["once", "with a repair"])
def test_a_hook_goes_whole_or_comes_back_whole(
    site: Site, before: str, edited: str, left: str, *, repaired: bool
) -> None:
    if before:
        site.write(HOOK, before)
    site.install("--crio-hook")
    site.write(HOOK, edited if edited == THEIRS else site.read(HOOK).replace("prestart", edited))
    if repaired:
        site.install("--crio-hook")
        assert edited == THEIRS or json.loads(site.read(HOOK))["stages"] == ["prestart"]

    site.uninstall()

    assert site.read(HOOK) == left


@pytest.mark.parametrize(
    ("first", "then"),
    [(("--crio-hook",), ()), ((), ("--crio-hook",)), (OTHER, ())],
    ids=["hook to runtimes", "runtimes to hook", "the usual drop-in"],
)
def test_what_an_install_takes_away_is_not_missed(
    site: Site, first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    files = site.tree()
    site.install(*(each.format(root=site.root) for each in first))
    site.install(*then)

    told = site.status()

    assert (told.returncode, "somebody" in told.stdout) == (0, False), told.stdout
    site.uninstall()
    assert site.tree() == files
