"""Work done beside other work, by threads where there may be any: ``ulimit`` may forbid them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

S = TypeVar("S")
T = TypeVar("T")


class Begin(Protocol):
    """Begins a piece of work, and returns what waits for it and returns what it comes to."""

    def __call__(self, work: Callable[[], T], *, long: bool) -> Callable[[], T]:
        """Begin ``work``: in a thread if it is ``long``, else it is done at once."""


@contextmanager
def beside() -> Iterator[Begin]:
    """Do long work while the block goes on.

    What is short is done at once: a thread takes longer to start, and to take turns with the others. An error
    of either is raised where its outcome is asked for.
    """
    with ExitStack() as stack:
        pools: list[ThreadPoolExecutor] = []

        def begin(work: Callable[[], T], *, long: bool) -> Callable[[], T]:
            if not long or _confined():
                return _done(work)
            if not pools:
                pools.append(stack.enter_context(_threads()))
            return _begun(pools[0], work)

        yield begin


def each(function: Callable[[S], T], items: Iterable[S], *, at_once: int | None = None) -> list[T]:
    """Return what ``function`` makes of each item, in their order."""
    if _confined():
        return [function(item) for item in items]
    with _threads(at_once) as pool:
        answers = [_begun(pool, partial(function, item)) for item in items]
        return [answer() for answer in answers]


def _confined() -> bool:
    """Tell whether memory has an end for this process alone, in which case it is to have no threads.

    Who starts one waits for its first word, for ever where it dies for want of memory before that; and one
    that cannot load what it needs for its end (glibc: libgcc_s) takes the whole process with it.
    """
    from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_DATA, getrlimit

    return any(getrlimit(limit)[0] != RLIM_INFINITY for limit in (RLIMIT_AS, RLIMIT_DATA))


def _threads(at_once: int | None = None) -> "ThreadPoolExecutor":
    # Which brings the standard library's logging; a start that changes nothing needs no thread.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(at_once)


def _begun(pool: "ThreadPoolExecutor", work: Callable[[], T]) -> Callable[[], T]:
    """Begin ``work`` and return what waits for it; where no thread can be had it is done then."""
    once = _once(work)
    try:
        return pool.submit(once).result
    except RuntimeError:  # it is queued all the same, and another thread may come to it
        return once


def _done(work: Callable[[], T]) -> Callable[[], T]:
    """Do ``work`` now; return what returns its outcome, or raises its error."""
    try:
        found = work()
    except Exception as error:  # noqa: BLE001 - told where it is asked for, as of a thread
        return partial(_raise, error)
    return lambda: found


def _raise(error: Exception) -> NoReturn:
    raise error


def _once(work: Callable[[], T]) -> Callable[[], T]:
    from threading import Lock

    lock, done = Lock(), list[T]()

    def run() -> T:
        with lock:
            if not done:
                done.append(work())
            return done[0]

    return run
