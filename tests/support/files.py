"""Files of a node below a directory."""

from collections.abc import Mapping
from pathlib import Path, PurePath, PurePosixPath

from installer.host.files import Host


def put(root: Path, texts: Mapping[str, str] | Mapping[PurePosixPath, str], mode: int = 0o644) -> Host:
    """Write ``texts`` by their paths on the host that has this root; return that host."""
    for path, text in texts.items():
        place = root / str(PurePath(path)).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)
    return Host.under(PurePosixPath(root))
