"""The image's payload stage against an archive as NVIDIA's is laid out: what it believes, and what it does not."""

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.engines.cache import PROJECT, cache
from tests.engines.versions import EngineSet
from tests.image.builder import Builder, prepared

PACKAGES = (
    "libnvidia-container-tools libnvidia-container1 nvidia-container-toolkit nvidia-container-toolkit-base"
)
# Two keys, as deb and rpm packages of one version each; run in the builder's root.
MAKE = """\
set -eu
export GNUPGHOME=/given/gnupg
mkdir -m 700 "$GNUPGHOME"
for who in nvidia stranger; do
    gpg --quiet --batch --passphrase '' --quick-gen-key "$who <$who@example.org>" rsa2048 sign never
    gpg --with-colons --list-keys "$who" | awk -F: '$1 == "fpr" { print $10 }' >"/given/$who"
done
mkdir /given/archive
gpg --armor --export nvidia >/given/archive/gpgkey
make() { # DEB_ARCHITECTURE RPM_ARCHITECTURE
    deb=/given/archive/stable/deb/$1 rpm=/given/archive/stable/rpm/$2
    mkdir -p "$deb" "$rpm"
    for package in libnvidia-container1 libnvidia-container-tools nvidia-container-toolkit nvidia-container-toolkit-base; do
        tree=/given/trees/$1/$package
        mkdir -p "$tree/DEBIAN" "$tree/usr/bin"
        echo "$package" >"$tree/usr/bin/$package"
        printf 'Package: %s\\nVersion: 1.0.0-1\\nArchitecture: %s\\nMaintainer: x\\nDescription: x\\n' "$package" "$1" \
            >"$tree/DEBIAN/control"
        file=${package}_1.0.0-1_$1.deb
        dpkg-deb --build "$tree" "$deb/$file" >/dev/null
        sum=$(sha256sum "$deb/$file" | cut -d ' ' -f 1)
        cat "$tree/DEBIAN/control" >>"$deb/Packages"
        printf 'Filename: ./%s\\nSize: %s\\nSHA256: %s\\n\\n' "$file" "$(wc -c <"$deb/$file")" "$sum" >>"$deb/Packages"
        cat >"/given/$package.spec" <<SPEC
Name: $package
Version: 1.0.0
Release: 1
Summary: x
License: x
%description
%install
mkdir -p %{buildroot}/usr/bin
echo $package >%{buildroot}/usr/bin/$package
%files
/usr/bin/$package
SPEC
        rpmbuild --quiet -bb --target "$2" --define "_topdir /given/rpmbuild" --define '__os_install_post %{nil}' \
            "/given/$package.spec"
    done
    cp "/given/rpmbuild/RPMS/$2"/*.rpm "$rpm"
    createrepo_c --quiet "$rpm"
    for who in nvidia stranger; do
        gpg --quiet --armor --local-user "$who" --detach-sign --output "/given/repomd.$who-$2" "$rpm/repodata/repomd.xml"
    done
    cp "/given/repomd.nvidia-$2" "$rpm/repodata/repomd.xml.asc"
    cd "$deb"
    printf 'Suite: stable\\nDate: %s\\nSHA256:\\n %s %s Packages\\n' "$(LC_ALL=C date -u '+%a, %d %b %Y %T UTC')" \
        "$(sha256sum Packages | cut -d ' ' -f 1)" "$(wc -c <Packages)" >Release
    gpg --quiet --local-user nvidia --clearsign --output InRelease Release
    gpg --quiet --local-user stranger --clearsign --output "/given/InRelease.stranger-$1" Release
    rm Release
}
make amd64 x86_64
make arm64 aarch64
gpgconf --kill all
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that is served, and what is needed to fetch from it."""

    builder: Builder
    given: Path
    url: str

    def scripts(self) -> Path:
        """Return a copy of images/ that builds from this archive."""
        images = self.given / "images"
        shutil.rmtree(images, ignore_errors=True)
        shutil.copytree(PROJECT / "images", images, ignore=shutil.ignore_patterns("payload*"))
        return images

    def fetch(self, key: str = "", sums: str = "") -> str:
        """Fetch into ``given``/artifacts; return what was said where that was refused."""
        (self.scripts() / "payload.sha256").write_text(sums)
        fingerprint = key or (self.given / "nvidia").read_text().strip()
        variables = [f"TOOLKIT_ARCHIVE={self.url}", f"TOOLKIT_KEY={fingerprint}", "TOOLKIT_VERSION=1.0.0-1"]
        said = self.run("env", *variables, "/given/images/fetch-payload", "/given/artifacts", "amd64")
        assert bool(said) is not (self.given / "artifacts").exists(), "what is not believed is not unpacked"
        return said

    def run(self, *command: str) -> str:
        """Run a command in the builder's root; return what was said where it failed."""
        log = self.given / "log"
        log.unlink(missing_ok=True)
        try:
            self.builder.run(self.given, *command, log=log)
        except RuntimeError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, engines_today: list[EngineSet]
) -> Iterator[tuple[Builder, Path]]:
    """Make the archive once, where engines can be had, too."""
    assert engines_today
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        given = Path(directory)
        log = tmp_path_factory.mktemp("builder") / "log"
        builder = prepared(log)
        (given / "make").write_text(MAKE)
        builder.run(given, "sh", "/given/make", log=log)
        yield builder, given


@pytest.fixture
def archive(made: tuple[Builder, Path]) -> Iterator[Archive]:
    """Serve a copy that a test may spoil."""
    builder, original = made
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        given = Path(directory) / "given"
        shutil.copytree(original, given)
        handler = partial(SimpleHTTPRequestHandler, directory=str(given / "archive"))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield Archive(builder, given, f"http://127.0.0.1:{server.server_port}")
            server.shutdown()


def test_what_is_signed_is_unpacked_for_both_families_with_the_sums_of_all_files(archive: Archive) -> None:
    assert archive.fetch() == ""

    for family in ("deb", "rpm"):
        root = archive.given / "artifacts" / family
        assert " ".join(sorted(path.name for path in (root / "usr/bin").iterdir())) == PACKAGES
        files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=root, check=True)
        lines = (root / "SHA256SUMS").read_text().splitlines()
        listed = {line.split(maxsplit=1)[1].removeprefix("./") for line in lines}
        assert listed == files - {"SHA256SUMS"}


DEBS, RPMS = "archive/stable/deb/amd64", "archive/stable/rpm/x86_64"
TOOLKIT_RPM = "nvidia-container-toolkit-1.0.0-1.x86_64.rpm"
# What a stranger has signed, by its place.
STRANGERS = {
    f"{DEBS}/InRelease": "InRelease.stranger-amd64",
    f"{RPMS}/repodata/repomd.xml.asc": "repomd.stranger-x86_64",
}
SPOILT = {
    f"{DEBS}/InRelease": "its signed index was not believed",
    f"{RPMS}/repodata/repomd.xml.asc": "the index of its rpms is not signed by TOOLKIT_KEY",
    f"{DEBS}/nvidia-container-toolkit_1.0.0-1_amd64.deb": "no nvidia-container-toolkit 1.0.0-1 for amd64",
    f"{RPMS}/{TOOLKIT_RPM}": f"{TOOLKIT_RPM} is not what its index says",
    f"{RPMS}/repodata/*primary.xml*": "is not what its index says",
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("pattern", SPOILT)
def test_what_was_exchanged_or_signed_by_a_stranger_is_not_believed(archive: Archive, pattern: str) -> None:
    (file,) = archive.given.glob(pattern)
    theirs = STRANGERS.get(pattern)
    file.write_bytes((archive.given / theirs).read_bytes() if theirs else file.read_bytes()[:-1] + b"x")

    assert SPOILT[pattern] in archive.fetch()


def test_another_key_or_other_sums_than_the_pinned_ones_are_not_believed(archive: Archive) -> None:
    assert "the archive does not offer the key 0000" in archive.fetch(key="0" * 40)
    assert "payload.sha256 does not have" in archive.fetch(sums=f"{'0' * 64}  debs/x.deb\n")


# What an archive in other hands could serve as its key: the stranger's beside the right one, also where a listing
# shows the right one first and alone, because it is dressed as a secret key without its secret.
OFFERED = {
    "beside it": "gpg --armor --export nvidia stranger >/given/archive/gpgkey",
    "behind a stub": """
        export GNUPGHOME=/given/stub && mkdir -m 700 /given/stub
        gpg --homedir /given/gnupg --batch --export-secret-subkeys nvidia >/given/stub.gpg
        gpg --homedir /given/gnupg --export stranger >/given/stranger.gpg
        cat /given/stub.gpg /given/stranger.gpg >/given/archive/gpgkey
    """,
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("offered", OFFERED)
def test_what_a_stranger_signs_is_not_believed_whatever_key_the_archive_offers(
    archive: Archive, offered: str
) -> None:
    shell = f"set -eu; export GNUPGHOME=/given/gnupg; {OFFERED[offered]}"
    assert archive.run("sh", "-c", shell) == ""
    for place, theirs in STRANGERS.items():
        shutil.copy(archive.given / theirs, archive.given / place)

    said = archive.fetch()

    assert "its signed index was not believed" in said or "does not offer the key" in said
