"""What the image's payload stage unpacks has the sums that a start believes."""

import subprocess
from pathlib import PurePosixPath

from installer.host.digests import sums_of
from tests.engines.node.test_payload import Archive, archive, made

__all__ = ["archive", "made"]  # the archive that is served


def test_each_family_has_the_sums_of_all_its_files(archive: Archive) -> None:
    assert archive.fetch() == ""

    for family in ("deb", "rpm"):
        root = archive.given / "artifacts" / family
        files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        done = subprocess.run(
            ["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=root, check=False
        )
        assert done.returncode == 0
        assert sums_of(PurePosixPath(root)).keys() == files - {"SHA256SUMS"} != set()
