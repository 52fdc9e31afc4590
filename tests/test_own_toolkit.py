"""A toolkit that a package manager keeps on the host is used where it is: nothing copied, changed or removed."""

import json
import sys
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.site import DAEMON_JSON, ENGINES, TOOLKIT, Site, sentence
from tests.support.stand_in import PROGRAMS, stand_in_payload

RUNTIME = "usr/bin/nvidia-container-runtime"
PACKAGES_CONFIG = "etc/nvidia-container-runtime/config.toml"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a host on which a package manager has installed the toolkit."""
    site = Site(tmp_path)
    stand_in_payload(tmp_path / "packages")
    for file in sorted((tmp_path / "packages").rglob("*")):
        path = site.root / "usr" / file.relative_to(tmp_path / "packages/usr")
        path = path.parents[2] / "bin" / path.name if "local" in path.parts else path
        if not file.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            file.rename(path)
    (site.root / PACKAGES_CONFIG).parent.mkdir(parents=True)
    (site.root / PACKAGES_CONFIG).write_text("# the package's own\n")
    return site


def call(site: Site, verb: str, *more: str) -> preloaded.Done:
    """Call a verb that takes the toolkit from the host itself."""
    where = ["--host-root", str(site.root), "--toolkit-source", str(site.root)]
    return preloaded.run([sys.executable, "-m", "installer", verb, *where, *ENGINES, *more])


def test_programs_are_used_where_they_are_and_all_of_them_stay_as_they_were(clean: Site) -> None:
    done = call(clean, "install")

    assert done.returncode == 0, done.stderr
    runtime = json.loads((clean.root / DAEMON_JSON).read_text())["runtimes"]["nvidia"]["path"]
    assert runtime == f"/{TOOLKIT}/nvidia-container-runtime"
    version = clean.root / "usr/local/nvidia" / (clean.root / TOOLKIT).readlink()
    names = [Path(each).name for each in PROGRAMS if not each.endswith("cdi-hook")]
    links = {path.name: str(path.readlink()) for path in version.iterdir() if path.is_symlink()}
    assert links == {
        "nvidia-cdi-hook": "/usr/bin/nvidia-cdi-hook",
        "nvidia-container-toolkit": "nvidia-container-runtime-hook",
        **{f"{name}.real": f"/usr/bin/{name}" for name in names},
    }
    files = [path for path in version.iterdir() if path.is_file() and not path.is_symlink()]
    assert {path.read_bytes()[:2] for path in files} == {b"#!"}, "wrappers, and nothing that was copied"
    assert (clean.root / PACKAGES_CONFIG).read_text() == "# the package's own\n"

    assert call(clean, "uninstall").returncode == 0


def test_a_host_without_a_package_gets_the_ways_to_a_toolkit(site: Site) -> None:
    for program in (site.root / "usr/bin").iterdir():
        program.unlink()
    for library in (site.root / "usr").glob("lib*/**/libnvidia-container*"):
        library.unlink()

    done = call(site, "install")

    problem = f"cannot find an NVIDIA container toolkit under {site.root}; "
    package = "install NVIDIA's package nvidia-container-toolkit there"
    fetch = "fetch its files (images/fetch-payload DIRECTORY "
    assert sentence(done).startswith(f"{problem}{package}, or {fetch}")
    assert "name its root" not in sentence(done)


def test_an_update_by_the_package_manager_is_no_drift(site: Site) -> None:
    assert call(site, "install").returncode == 0
    program = (site.root / RUNTIME).read_bytes()
    (site.root / RUNTIME).unlink()
    (site.root / RUNTIME).write_bytes(program + b" of the next release")
    (site.root / RUNTIME).chmod(0o755)
    before = site.tree(times=True)

    told, again = site.status("--deep"), call(site, "install")

    assert (told.returncode, again.returncode) == (0, 0), told.stdout + again.stderr
    assert "nothing changed" in again.stderr
    assert site.tree(times=True) == before


def test_a_program_that_leads_to_our_toolkit_is_no_source_of_it(site: Site) -> None:
    assert call(site, "install").returncode == 0
    (site.root / RUNTIME).unlink()
    (site.root / RUNTIME).symlink_to("../local/nvidia/toolkit/nvidia-container-runtime")
    before = site.tree(times=True)

    done = call(site, "install")

    assert done.returncode == 1
    assert "it leads into /usr/local/nvidia/toolkit: to itself" in done.stderr
    assert site.tree(times=True) == before


def test_a_copy_of_before_is_replaced_by_what_is_in_place(site: Site) -> None:
    site.install()
    copied = (site.root / TOOLKIT).readlink()
    assert (site.root / TOOLKIT / "nvidia-ctk.real").is_file()
    config = (site.root / DAEMON_JSON).read_bytes()

    assert call(site, "install").returncode == 0

    assert (site.root / TOOLKIT).readlink() != copied
    assert (site.root / DAEMON_JSON).read_bytes() == config
