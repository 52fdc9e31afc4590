"""What this machine needs to build an image for real: buildah and a Debian base, both from Debian's archive."""

import os
import resource
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.engines import debs
from tests.engines.cache import build_once, cache, key_of, locked, sweep
from tests.support.waiting import HANGS_S

SUITE = "trixie"  # its buildah skips the stages that nobody needs; its Python is newer than the nodes'
PACKAGES = (
    *("buildah", "debootstrap", "debian-archive-keyring", "gpgv", "netavark"),
    # What images/fetch-payload needs, and what makes an archive for it to fetch from.
    *("apt", "cpio", "createrepo-c", "curl", "gpg", "gpg-agent", "libxml2-utils", "rpm", "rpm2cpio", "zstd"),
    # Essential ones, which no other package names as what it needs.
    *("coreutils", "dash", "diffutils", "dpkg", "findutils", "grep", "gzip", "mawk", "mount"),
    *("perl-base", "sed", "tar", "util-linux", "xz-utils"),
)
# Nothing here asks for keys, networks of their own or users.
UNNEEDED = frozenset({"containernetworking-plugins", "dirmngr", "gnupg-l10n", "gpgsm", "iptables"})
BASE = "localhost/base:1"
SECRETS = ("--secret=id=pip,src=/given/pip.conf", "--secret=id=ca,src=/etc/ssl/certs/ca-certificates.crt")

# A root of its own, with this machine's ways to the network; buildah wants a mount at its root.
ENTER = """\
set -e
mount --make-rprivate / && mount --bind "$ROOT" "$ROOT"
for tree in proc sys dev etc/ssl/certs; do mount --rbind "/$tree" "$ROOT/$tree"; done
for file in etc/resolv.conf etc/hosts; do mount --bind "/$file" "$ROOT/$file"; done
mount -t tmpfs tmpfs "$ROOT/run"
mount --bind "$GIVEN" "$ROOT/given"
mount --bind "$LAYERS" "$ROOT/layers"
exec chroot "$ROOT" "$@"
"""


@dataclass(frozen=True, slots=True)
class Builder:
    """Where buildah runs, and where it keeps what it has built."""

    root: Path
    layers: Path

    def run(self, given: Path, *command: str, log: Path) -> None:
        """Run a command in the builder's root, ``given`` in its place; what it says goes to ``log``."""
        environment = {"ROOT": str(self.root), "GIVEN": str(given), "LAYERS": str(self.layers)}
        environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        environment |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}
        with log.open("ab") as output:
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c", ENTER, "enter", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=HANGS_S,
                check=False,
            )
        if done.returncode:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
            raise RuntimeError(f"cannot {' '.join(command)}:\n{tail}")


def buildah(*words: str) -> list[str]:
    """Return a command of buildah, which keeps nothing outside of the builder's root."""
    return ["buildah", "--root=/layers", "--runroot=/run/buildah", "--storage-driver=overlay", *words]


def limits() -> list[str]:
    """Return this machine's limits, for buildah would raise them above what is allowed."""
    numbers = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    found = {name: resource.getrlimit(number) for name, number in numbers.items()}
    return [f"--ulimit={name}={soft}:{hard}" for name, (soft, hard) in found.items()]


def prepared(log: Path) -> Builder:
    """Build what the cache does not hold yet: the builder's root, and the base in its layers."""
    with locked():
        key = key_of([Path(__file__).read_text()], "debs.py")
        root = build_once(cache() / f"root-builder-{key}", _build_root)
        layers = cache() / f"root-layers-{key}"
        layers.mkdir(exist_ok=True)
        layers.touch()
        builder = Builder(root, layers)
        build_once(cache() / f"root-base-{key}", lambda given: _build_base(builder, given, log))
        sweep()
    return builder


def _build_root(root: Path) -> None:
    for folder in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for folder in ("proc", "sys", "dev", "run", "tmp", "var/tmp", "given", "layers", "etc/ssl/certs"):
        (root / folder).mkdir(parents=True)
    debs.refresh([SUITE])
    pins = debs.with_dependencies(SUITE, PACKAGES)
    debs.unpack(SUITE, [pin for pin in pins if pin.partition("=")[0] not in UNNEEDED], root)
    for file in ("resolv.conf", "hosts"):
        (root / "etc" / file).touch()
    (root / "usr/bin/awk").symlink_to("mawk")  # as the package's own script would
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


def _build_base(builder: Builder, given: Path, log: Path) -> None:
    """Make a Debian root, empty its caches, and take it in as an image."""
    builder.run(given, "debootstrap", "--variant=minbase", SUITE, "/given/root", debs.mirror() or "", log=log)
    empty = ["var/cache/apt/archives/*.deb", "var/cache/apt/*.bin", "var/lib/apt/lists/*", "var/log/*.log"]
    for pattern in empty:
        for file in (given / "root").glob(pattern):
            if file.is_file():
                file.unlink()
    (given / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
    builder.run(given, "tar", "--create", "--file=/given/base.tar", "--directory=/given/root", ".", log=log)
    builder.run(given, *buildah("build", "--isolation=chroot", f"--tag={BASE}", "/given"), log=log)
    builder.run(given, "rm", "-rf", "/given/root", "/given/base.tar", log=log)


def build(builder: Builder, context: Path, tag: str, log: Path) -> Path:
    """Build Dockerfile.ubuntu by its own script, on the Debian base, and return the archive in ``context``."""
    (context / "pip.conf").write_text("[global]\ncert = /run/secrets/ca\n")
    (context / "buildah").write_text(f'#!/bin/sh\nexec {" ".join(buildah())} "$@"\n')
    (context / "buildah").chmod(0o755)
    variables = [f"BASE={BASE}", f"PAYLOAD_BASE={BASE}", "PAYLOAD=local", "BUILDER=/given/buildah"]
    words = ["--isolation=chroot", "--network=host", "--layers", f"--tag={tag}", *limits(), *SECRETS]
    builder.run(context, "env", *variables, "/given/images/build", "ubuntu", *words, log=log)
    builder.run(context, *buildah("push", tag, f"docker-archive:/given/image.tar:{tag}"), log=log)
    return context / "image.tar"
