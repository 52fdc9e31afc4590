"""What is expensive to make is made once, under one lock, and is there whole or not at all."""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
WEEK_S = 7 * 24 * 3600


def cache() -> Path:
    """Return the directory all downloads and root file systems live in, made if absent."""
    path = Path(os.environ.get("TEST_CACHE") or PROJECT / ".cache" / "engines").resolve()
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def locked() -> Iterator[None]:
    """Hold the cache's one lock: a second run waits here until the first has built."""
    with (cache() / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def key_of(parts: list[str], *recipes: str) -> str:
    """Name a build by what goes into it: ``parts``, and the text of the modules that build it."""
    sources = [Path(__file__).with_name(recipe).read_text() for recipe in recipes]
    return hashlib.sha256("\0".join([*parts, *sources]).encode()).hexdigest()[:12]


def build_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Return ``path``, a directory, built beside its place and renamed when complete.

    Call it with the lock held: what an interrupted build left is swept first.
    """
    if path.exists():
        path.touch()
        return path
    staged = path.with_name(path.name + ".building")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    build(staged)
    staged.rename(path)
    path.touch()  # unpacking set an old time
    return path


def sweep() -> None:
    """Remove what no run has used for a week: the archive moved on. Hold the lock."""
    for path in [*cache().glob("root-*"), *cache().glob("site-*")]:
        if time.time() - path.stat().st_mtime > WEEK_S:
            shutil.rmtree(path)
