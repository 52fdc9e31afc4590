"""``make image``: builds the image for real, and reads what is in it."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.engines.cache import PROJECT, cache, locked
from tests.engines.conftest import missing, must_run
from tests.engines.payload import STAND_IN, mark_payload
from tests.engines.roots import prepared as prepared_roots
from tests.engines.versions import today
from tests.image import archive, builder
from tests.support.entry import VERSION

BUILT = PROJECT / "build"
CONTEXT = (
    *("Dockerfile.ubuntu", ".dockerignore", "LICENSE", "README.md"),
    *("pyproject.toml", "requirements.txt"),
)
# The image, and the one that an update brings: another payload.
IMAGES = {f"node-toolkit-installer:{VERSION}": "1.0.0", "node-toolkit-installer:next": "2.0.0"}


def path_of(tag: str) -> Path:
    """Return where the archive of an image lies once ``make image`` has run."""
    return BUILT / f"{tag.replace(':', '-')}.tar"


def _context(directory: Path, payload: str) -> None:
    """Copy what the build may see, and put a payload of stand-ins in the place of NVIDIA's."""
    for name in CONTEXT:
        shutil.copy(PROJECT / name, directory)
    shutil.copytree(
        PROJECT / "installer", directory / "installer", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(PROJECT / "images", directory / "images", ignore=shutil.ignore_patterns("payload"))
    with locked():
        base = prepared_roots(today()).base
    for kind in ("deb", "rpm"):
        mark_payload(directory / "images/payload" / kind, base / STAND_IN.lstrip("/"), payload)


def main() -> int:
    """Build both images; return 1 where something is in them that should not be, or they have to be built."""
    if lack := missing():
        print(f"no image is built here: {lack}")
        return 1 if must_run() else 0
    BUILT.mkdir(exist_ok=True)
    log = BUILT / "image.log"
    log.unlink(missing_ok=True)
    started = time.monotonic()
    ready = builder.prepared(log)
    print(f"the builder is ready after {time.monotonic() - started:.0f} s; it writes to {log}")
    for tag, payload in IMAGES.items():
        with tempfile.TemporaryDirectory(dir=cache()) as directory:
            _context(Path(directory), payload)
            shutil.move(builder.build(ready, Path(directory), f"localhost/{tag}", log), path_of(tag))
        weight = path_of(tag).stat().st_size / 1_000_000
        print(f"built {tag} of {weight:.1f} MB after {time.monotonic() - started:.0f} s")
    image = archive.read(path_of(next(iter(IMAGES))))
    found = [f"BAD {problem}" for problem in archive.problems(image)]
    print(*(found or ["no compiler, no pip, no cache; bytecode compiled"]), sep="\n")
    if not found:
        (BUILT / ".image").touch()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
