"""Configs hold registry passwords: nothing of what they say is logged, and no copy is more readable than they are."""

from pathlib import Path

import pytest

from tests.crash.strace import log_calls
from tests.support.site import CONTAINERD, DAEMON_JSON, Site
from tests.support.stand_in import CONFIGS

SECRET = "hunter2"  # noqa: S105 - nobody's
CRIO = "etc/crio/crio.conf"
TOLD = {
    DAEMON_JSON: (
        f'{{"registry-auth": "{SECRET}", "{SECRET}": "{SECRET}", "default-runtime": "theirs",'
        f' "runtimes": {{"theirs": {{"path": "/usr/bin/theirs", "runtimeArgs": ["{SECRET}"]}}}}}}'
    ),
    CONTAINERD: CONFIGS[CONTAINERD].replace(
        "  sandbox_image", f'  {SECRET} = "{SECRET}"  # {SECRET}\n  sandbox_image'
    )
    + f'[{SECRET}.auth]\npassword = "{SECRET}"\n',
    CRIO: f'{CONFIGS[CRIO]}\n# {SECRET}\n[crio.image]\n{SECRET} = "{SECRET}"\n',
}
BROKEN = [
    pytest.param(DAEMON_JSON, f'{{"a": "{SECRET}" {SECRET}}}', id="JSON that cannot be read"),
    pytest.param(DAEMON_JSON, f'{{"runtimes": "{SECRET}"}}', id="a text in place of a table in JSON"),
    pytest.param(CONTAINERD, f'version = 2\na = "{SECRET}" {SECRET}\n', id="TOML that cannot be read"),
    pytest.param(CONTAINERD, f'version = 2\n{SECRET} = 1\n{SECRET} = "{SECRET}"\n', id="a key twice in TOML"),
    pytest.param(CONTAINERD, f'version = 2\nplugins = "{SECRET}"\n', id="a text in place of a table in TOML"),
    pytest.param(CONTAINERD, f'version = "{SECRET}"\n', id="a schema version that is none"),
    pytest.param(CRIO, f'[crio.runtime]\nruntimes = "{SECRET}"\n', id="a text in place of CRI-O's table"),
]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    for path, text in TOLD.items():
        (made.root / path).write_text(text)
        (made.root / path).chmod(0o600)
    return made


def test_nothing_of_a_config_is_logged_by_any_verb(site: Site) -> None:
    options = ("--set-as-default", "--log-format", "text")
    told = [site.call("install", *options), site.call("install"), site.status(), site.status("--json")]
    for path in TOLD:
        text = (site.root / path).read_text()
        (site.root / path).write_text(
            text.replace("/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi", f"/opt/{SECRET}")
        )
    told += [site.call("install"), site.status(), site.call("uninstall")]

    assert [done.returncode for done in told if done.args[3] in {"install", "uninstall"}] == [0, 0, 0, 0]
    assert [done for done in told if SECRET in done.stdout + done.stderr] == []


@pytest.mark.parametrize(("path", "text"), BROKEN)
def test_nothing_of_a_config_that_is_refused_is_in_the_error(site: Site, path: str, text: str) -> None:
    (site.root / path).write_text(text)

    done = site.call("install")

    assert done.returncode == 1
    assert Path(path).name in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_no_copy_of_a_config_is_more_readable_than_it_is(site: Site) -> None:
    site.install()

    holding = [
        path
        for path in site.root.rglob("*")
        if path.is_file() and not path.is_symlink() and SECRET in path.read_text(errors="replace")
    ]

    assert {path.stat().st_mode & 0o077 for path in holding} == {0}
    assert len(holding) > len(TOLD), "a saved copy of each that was edited, at least"
    site.uninstall()
    assert not [path for path in site.root.rglob("*") if SECRET in path.name or ".toolkit" in path.name]
    assert {path: (site.root / path).read_text() for path in TOLD} == TOLD


def test_no_copy_of_a_config_is_public_not_even_for_a_moment(site: Site) -> None:
    calls = log_calls(site.command("install"), site.root.parent / "log", ("openat", "chmod", "fchmod"))

    made = [call for call in calls if "O_CREAT" in call.arguments and call.result >= 0]
    public = [call.directory / call.strings[0].decode() for call in made if call.arguments[-4:] != "0600"]
    assert len(public) < len(made)
    assert [path for path in public if path.is_relative_to(site.root)] == []
