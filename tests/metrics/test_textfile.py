"""The textfile and the counts behind it, with the real program on real files."""

import json
import re
import signal
import stat
from pathlib import Path

import pytest

from tests.support.entry import VERSION
from tests.support.program import patched
from tests.support.site import DAEMON_JSON, LEDGER, Site, ended, waits
from tests.support.waiting import until_it_sleeps

DIRECTORY = "var/lib/prometheus/node-exporter"
TEXTFILE = f"/{DIRECTORY}/toolkit-installer.prom"
COUNTS = "usr/local/nvidia/.toolkit-installer/counts"
ASKED = ("--metrics-textfile", TEXTFILE)
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/toolkit-installer"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    found = Site(tmp_path)
    (found.root / DIRECTORY).mkdir(parents=True)
    return found


def samples(site: Site, path: str = TEXTFILE) -> dict[str, float]:
    lines = (site.root / path.lstrip("/")).read_text().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.removeprefix("toolkit_installer_"): float(value) for name, value in pairs}


def test_an_install_tells_its_figures_and_labels_and_an_uninstall_leaves_no_trace(site: Site) -> None:
    features, text = (site.root / path.lstrip("/") for path in (FEATURES, TEXTFILE))
    features.parent.mkdir(parents=True)
    before = site.tree()

    site.install(*ASKED, "--nfd-features", FEATURES)
    told, lines = samples(site), features.read_text().splitlines()
    mode = stat.S_IMODE(text.stat().st_mode)

    site.uninstall()
    assert site.tree() == before
    assert mode == 0o644
    assert told["installs_total"] == 1
    assert told["last_success_timestamp_seconds"] > 1_700_000_000
    assert told[f'info{{toolkit_version="1.99.0",version="{VERSION}"}}'] == 1
    # Nobody has asked these engines: --restart-mode none.
    assert told["ready"] == 0
    for name in ("engine_serves", "config_drifted"):
        assert {each: value for each, value in told.items() if each.startswith(name)} == {
            f'{name}{{engine="{engine}"}}': 0 for engine in ("docker", "containerd", "crio")
        }
    name = "toolkit-installer.feature.node.kubernetes.io"
    assert lines[0].startswith("# ")
    assert lines[1:] == [
        f"{name}/ready=false",
        f"{name}/version={VERSION}",
        f"{name}/toolkit-version=1.99.0",
        *(f"{name}/engine-{engine}=false" for engine in ("docker", "containerd", "crio")),
    ]


def test_counters_survive_a_kill_tell_of_repairs_and_end_with_a_complete_undo(site: Site) -> None:
    with site.running(*ASKED):
        pass  # it is killed
    with site.running(*ASKED) as child:
        told = [samples(site)]
        for text in ("{", "{}"):
            until_it_sleeps(child.pid)
            (site.root / DAEMON_JSON).write_text(text)
            child.send_signal(signal.SIGHUP)
            waits(child)
            told.append(samples(site))
        ended(child)

    assert [each["installs_total"] for each in told] == [2, 2, 2]
    assert [each.get('failures_total{code="config-unusable"}', 0) for each in told] == [0, 1, 1]
    assert [each['config_drifted{engine="docker"}'] for each in told] == [0, 1, 0]
    assert [each["repairs_total"] for each in told] == [0, 0, 1]
    assert not (site.root / TEXTFILE.lstrip("/")).exists()
    site.install(*ASKED)
    assert samples(site)["installs_total"] == 1


@pytest.mark.parametrize("flag", ["--metrics-textfile", "--nfd-features"])
def test_what_is_not_from_us_stays_and_stops_nothing(site: Site, flag: str) -> None:
    path = TEXTFILE if flag == "--metrics-textfile" else FEATURES
    place = site.root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("# HELP node_boot\n")
    before = site.tree()

    planned = site.call("plan", flag, path)
    done = site.call("install", flag, path)
    (event,) = (line for line in map(json.loads, done.stderr.splitlines()) if "metrics" in line["event"])
    status = site.status()
    undone = site.call("uninstall")

    assert (planned.returncode, done.returncode, undone.returncode) == (10, 0, 0)
    assert event["error"].startswith(f"cannot write {path} (it is another program's file); ")
    assert flag in event["error"]
    assert re.search(rf"^ok  {re.escape(path)} +another program's file", status.stdout, re.MULTILINE)
    assert site.tree() == before


def test_another_path_takes_the_place_of_the_first_and_none_removes_it(site: Site) -> None:
    site.install()
    assert not (site.root / COUNTS).exists()
    for path in (TEXTFILE, f"/{DIRECTORY}/other.prom"):
        site.install("--metrics-textfile", path)
    found = [path.name for path in (site.root / DIRECTORY).iterdir()]
    site.install()

    assert found == ["other.prom"]
    assert not [*(site.root / DIRECTORY).iterdir()]
    assert "published" not in json.loads((site.root / LEDGER).read_text())


NO_ADDRESS = ["node:9400", "127.0.0.1", "127.0.0.1:0", "::1:9400", "unix:/x"]


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--metrics-textfile", "/var/lib/x", "ends in .prom"),
        ("--metrics-textfile", "/a/../x.prom", "without .."),
        ("--nfd-features", "/etc/x.prom", "not *.prom"),
        ("--metrics-listen", "unix:run/x.sock", "absolute path"),
        *(("--metrics-listen", where, "listen on") for where in NO_ADDRESS),
    ],
)
def test_a_place_that_makes_no_sense_is_a_usage_error(site: Site, flag: str, value: str, words: str) -> None:
    assert words in site.refuses("run", flag, value, code=2)


def test_a_mistake_of_ours_in_the_figures_costs_no_install(site: Site) -> None:
    broken = "from installer.metrics import snapshot\nsnapshot.render = lambda *_: 1 // 0\n"
    done = patched(broken, *site.command("install", *ASKED)[3:])

    assert done.returncode == 0
    assert '"event": "metrics not written"' in done.stderr
    site.uninstall()


STUCK = """
import sys
from installer.errors import InstallerError
from installer.host.files import Host
times = int(sys.argv.pop(1))
real = Host.remove
def remove(self, path):
    global times
    if path.suffix == ".prom" and times:
        times -= 1
        raise InstallerError(f"remove {path} (read-only file system)", remedy="remount it", code="no-space")
    real(self, path)
Host.remove = remove
"""


@pytest.mark.parametrize(("times", "code"), [(1, 0), (9, 4)])
def test_the_ledger_goes_only_after_the_textfile(site: Site, times: int, code: int) -> None:
    before = site.tree()
    site.install(*ASKED)

    done = patched(STUCK, str(times), *site.command("uninstall")[3:])

    assert done.returncode == code
    assert (site.tree() == before) is not bool(code)
    site.uninstall()
    assert site.tree() == before
