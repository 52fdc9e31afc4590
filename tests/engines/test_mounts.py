"""A container's mounts as the kernel makes them: what the host calls the paths that variables name. Root, no engine.

The container's image has /var/run as a link to /run, as Debian, Ubuntu and UBI have it, or as a directory.
"""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

from installer.host.files import Host
from tests.engines.conftest import missing, must_run
from tests.support.entry import NVIDIAS
from tests.support.stand_in import stand_in_payload
from tests.support.waiting import HANGS_S

PROJECT = Path(__file__).parents[2]
RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin", "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
ENVIRONMENT |= {"NO_DAEMON": "true", "RUNTIME_RESTART_MODE": "none", "RUNTIME": "containerd"}
CDI = {"CDI_ENABLED": "true", "CREATE_DEVICE_NODES": "none", "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false"}
MARK = "mark"
# Puts a file into the directory that an option names, through the mounts that the options tell.
WRITE = f"""
import os, sys
from pathlib import PurePosixPath
from installer.cli.nvidia import options_from
from installer.cli.nvidia_flags import read
from installer.errors import InstallerError
from installer.model.files import File
from installer.host.files import Host
options = options_from(read([], os.environ))
places = next(iter(options.places.values()))
try:
    path = PurePosixPath(eval(sys.argv[1]))
    Host.under(options.host_root, options.mounts).replace(path / "{MARK}", File(b""))
except InstallerError as error:
    print(error, end="")
"""
# Mounts what the lines of its first argument say (how, host's path, container's path), and enters the container.
ENTER = """\
set -e
while read -r how from to; do
    [ -n "$how" ] || continue
    if [ -d "$from" ]; then mkdir -p "$to"; else mkdir -p "${to%/*}"; [ -e "$to" ] || : > "$to"; fi
    mount --rbind "$from" "$to"
    [ "$how" = rw ] || mount -o remount,ro,bind "$to"
done <<END
$1
END
shift
exec chroot "$@"
"""


@dataclass
class Container:
    """The root of a container, the host's root, and what is mounted from one into the other."""

    root: Path
    host: Path
    mounts: list[tuple[str, str, str]] = field(default_factory=list)

    def mount(self, there: str, here: str, how: str = "rw") -> None:
        """Mount a path of the host's."""
        self.mounts.append((how, str(self.host / there.lstrip("/")), here))

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run NVIDIA's entry point in it, for one installation, or a Python with other ``words``."""
        # The interpreter and the project, as the image has them.
        own = {Path(path) for path in ("/usr", "/proc", PROJECT, sys.prefix, sys.base_prefix)}
        needed = [("rw", str(path), str(path)) for path in sorted(own) if path != Path("/usr/local")]
        # As runc does: a link of the image, such as /var/run, is followed within the image.
        image = Host.under(PurePosixPath(self.root))
        lines = ""
        for how, there, here in [*needed, *self.mounts]:
            lines += f"{how} {there} {image.local_path(PurePosixPath(here))}\n"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "enter", lines]
        command += [str(self.root), sys.executable, *(words or NVIDIAS)]
        environment = ENVIRONMENT | variables
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False
        )

    def text(self, config: str) -> str:
        """Return what the host has in a config of containerd's."""
        return (self.host / "etc/containerd" / config).read_text()

    def found(self, name: str) -> list[str]:
        """Return where files of a name are, on the host."""
        return sorted(f"/{path.relative_to(self.host)}" for path in self.host.rglob(name))

    def writes(self, path: str, **variables: str) -> str:
        """Write to the path that an option holds; return where the host then has it, or why not."""
        done = self.run("-c", WRITE, path, **variables)
        assert done.returncode == 0, done.stderr
        found = self.found(MARK)
        for name in found:
            (self.host / name[1:]).unlink()
        return done.stdout or " and ".join(found)


@pytest.fixture(params=["link", "directory"])
def container(tmp_path: Path, request: pytest.FixtureRequest) -> Container:
    """Return a container of one kind, on a host on which /var/run is a link, as on all that systemd runs."""
    if (lack := missing()) and not must_run():
        pytest.skip(lack)
    made = Container(tmp_path / "container", tmp_path / "host")
    for root in (made.root, made.host):
        for folder in ("run", "var", "etc", "opt"):
            (root / folder).mkdir(parents=True)
    (made.host / "var/run").symlink_to("/run")
    for link in ("bin", "lib", "lib64", "sbin"):
        (made.root / link).symlink_to(f"usr/{link}")
    if request.param == "link":
        (made.root / "var/run").symlink_to("/run")
    else:
        (made.root / "var/run").mkdir()
    for folder in (
        "etc/containerd/conf.d",
        "run/containerd",
        "run/cdi",
        "run/nvidia/toolkit",
        "usr/local/nvidia",
    ):
        (made.host / folder).mkdir(parents=True)
    (made.host / "etc/containerd/config.toml").write_text("version = 3\n")
    (made.host / "bin").mkdir()
    (made.host / "bin/sh").touch()
    stand_in_payload(made.root / "artifacts/deb")
    return made


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("mounted", "variable", "value", "option"),
    [
        (("/opt/nvidia", "/var/run/toolkit"), "ROOT", "/var/run/toolkit/", "options.install_dir"),
        (("/run/pids", "/var/run/pids"), "PID_FILE", "/var/run/pids/toolkit.pid", "options.pid_file.parent"),
        (("/etc", "/conf"), "CONTAINERD_CONFIG", "/conf/k//config.toml", "places.config.parent"),
        (("/etc/k", "/var/run/k"), "CONTAINERD_SOCKET", "/var/run/k/containerd.sock", "places.socket.parent"),
        (("/run/cdi", "/var/run/cdi"), "CDI_OUTPUT_DIR", "/var/run/../run/cdi/", "options.cdi.directory"),
        (("/etc/cdi", "/var/run/cdi"), "CDI_OUTPUT_DIR", "/var/run/cdi", "options.cdi.directory"),
        (
            ("/opt/driver", "/var/run/driver"),
            "DRIVER_ROOT_CTR_PATH",
            "/var/run/driver/",
            "options.driver_root",
        ),
    ],
)
def test_a_variable_names_what_the_mount_has_brought(
    container: Container, mounted: tuple[str, str], variable: str, value: str, option: str
) -> None:
    there, here = mounted
    (container.host / there[1:] / "k").mkdir(parents=True, exist_ok=True)
    container.mount("/", "/host", "ro")
    container.mount(there, here)

    found = container.writes(option, **CDI, DRIVER_ROOT="/opt/driver", **{variable: value})

    below = "/k" if "/k/" in value.replace("//", "/").removeprefix(here) else ""
    assert found == f"{there}{below}/{MARK}"


@pytest.mark.sampled(16)
def test_a_config_that_is_mounted_alone_is_edited_through_the_hosts_root(container: Container) -> None:
    container.mount("/", "/host")
    container.mount("/etc/containerd/config.toml", "/conf/config.toml")

    done = container.run(CONTAINERD_CONFIG="/conf/config.toml", RUNTIME_DROP_IN_CONFIG="")

    assert done.returncode == 0, done.stderr
    assert RUNTIME in container.text("config.toml")


@pytest.mark.sampled(16)
def test_a_config_that_is_mounted_alone_is_refused_and_the_remedy_works_in_the_form_of_2021(
    container: Container,
) -> None:
    said = {"TOOLKIT_ARGS": "--driver-root /", "RUNTIME_ARGS": "-c /etc/containerd/config.toml"}
    words = (*NVIDIAS, "/usr/local/nvidia", "--drop-in-config=")
    container.mount("/usr/local/nvidia", "/usr/local/nvidia")
    container.mount("/run/nvidia", "/run/nvidia")
    container.mount("/etc/containerd/config.toml", "/etc/containerd/config.toml")
    before = container.found("*")

    refused = container.run(*words, **said)
    after = container.found("*")
    container.mounts.pop()
    container.mount("/etc/containerd", "/etc/containerd")
    done = container.run(*words, **said)

    assert refused.returncode == 1
    assert "replace /etc/containerd/config.toml (it is mounted as a single file)" in refused.stderr
    assert "mount its directory /etc/containerd instead" in refused.stderr
    assert after == before
    assert done.returncode == 0, done.stderr
    assert RUNTIME in container.text("config.toml")
