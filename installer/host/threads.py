"""Work done beside other work, by threads where there may be any: ``ulimit -v`` or ``-u`` may forbid them."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def begun(pool: ThreadPoolExecutor, work: Callable[[], T]) -> Callable[[], T]:
    """Begin ``work`` and return what waits for it; where no thread can be had it is done then."""
    once = _once(work)
    try:
        return pool.submit(once).result
    except RuntimeError:  # it is queued all the same, and another thread may come to it
        return once


def each(function: Callable[[S], T], items: Iterable[S], *, at_once: int | None = None) -> list[T]:
    """Return what ``function`` makes of each item, in their order."""
    with ThreadPoolExecutor(at_once) as pool:
        answers = [begun(pool, partial(function, item)) for item in items]
        return [answer() for answer in answers]


def _once(work: Callable[[], T]) -> Callable[[], T]:
    lock, done = Lock(), list[T]()

    def run() -> T:
        with lock:
            if not done:
                done.append(work())
            return done[0]

    return run
