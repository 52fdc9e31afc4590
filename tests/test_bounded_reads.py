"""A file that is far too large, whoever's it is, holds no verb up and takes no memory, by the real program."""

import os
from pathlib import Path, PurePosixPath

import pytest

from installer.errors import InstallerError
from installer.host.files import MOST_BYTES, Host
from tests.support.bounded import bounded
from tests.support.cdi_site import CdiSite
from tests.support.site import Site, sentence

STRANGER = 65534
SPECIFICATION = "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n"
KEYS = f'x: {{? &a "{"ẞ" * 500_000}" : 1}}\ndevices:\n' + "- {? *a : 1}\n" * 30_000
TABLES = f"x:\n  <<: [{'{}, ' * 100_000}]\n" + "".join(f"  k{number}:\n" for number in range(50_000))
METRICS = "var/lib/node-exporter/toolkit-installer.prom"
FEATURES = "etc/kubernetes/node-feature-discovery/features.d/toolkit-installer"
ASKED = ("--metrics-textfile", f"/{METRICS}", "--nfd-features", f"/{FEATURES}")


def hole(path: Path, size: int = 1 << 30, owner: int = 0) -> None:
    """Make a file that is large and takes no disk."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    if os.geteuid() == 0:
        os.chown(path, owner, owner)


@pytest.mark.skipif(os.geteuid() != 0, reason="a stranger's file is made by root")
@pytest.mark.parametrize("name", [METRICS, FEATURES])
def test_a_strangers_file_in_the_place_of_ours_is_not_read(tmp_path: Path, name: str) -> None:
    site = Site(tmp_path)
    for each in (METRICS, FEATURES):
        (site.root / each).parent.mkdir(parents=True)
    assert site.call("install", *ASKED).returncode == 0
    hole(site.root / name, owner=STRANGER)

    done = [
        bounded(site, verb, *more) for verb, more in (("plan", ASKED), ("install", ASKED), ("uninstall", ()))
    ]

    assert [each.returncode for each in done] == [0, 0, 0], done
    assert (site.root / name).stat().st_size == 1 << 30


def test_a_config_without_end_is_refused_in_a_sentence(tmp_path: Path) -> None:
    site = Site(tmp_path)
    hole(site.root / "etc/docker/daemon.json")

    done = bounded(site, "install")

    assert done.returncode == 1
    assert sentence(done) == (
        "cannot read /etc/docker/daemon.json (it has more than 16 MiB); make it smaller, or move it away"
    )


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        pytest.param(KEYS, "an alias or a tag", id="a long key, by aliases"),
        pytest.param(TABLES, "tables that are merged", id="tables that are merged"),
        pytest.param(KEYS * 2, "more than 1 MiB", id="long"),
    ],
)
def test_a_specification_of_others_does_not_multiply(tmp_path: Path, more: str, reason: str) -> None:
    site = CdiSite(tmp_path)
    path = site.root / "etc/cdi/theirs.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(SPECIFICATION + more)

    with site.docker():
        done = bounded(site, "plan")

    assert done.returncode == 10, done.stderr
    assert f"read a CDI specification (it has {reason}" in done.stderr


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    host, path = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/file")
    hole(tmp_path / "file", MOST_BYTES)
    found = host.read(path)
    hole(tmp_path / "file", MOST_BYTES + 1)

    assert found is not None
    assert len(found.content) == MOST_BYTES
    with pytest.raises(InstallerError, match="it has more than 16 MiB"):
        host.read(path)
