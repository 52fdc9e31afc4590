"""An install that would change nothing ends here, for a third of what it takes to find that out anew.

An install leaves how all stands that the next one will look at, if that would come to nothing, and what it
would say then (``remembered.py``). Asked for the same again, each of these questions is put once more: to the
files, to systemd, to the engine itself. Where all answers are as they were, there is nothing to do. In any
other case, also where anything is not understood here, the whole program is loaded, and finds out.
"""

import posix
from _signal import sigpending  # type: ignore[import-not-found]  # as signal has it, without enum
from _stat import S_ISREG
from time import gmtime, strftime, time_ns

from installer.host.glance import OPEN, is_plain
from installer.host.witness import digest, found
from installer.probes import HOST_ROOT, INSTALL_DIR, content

SAYS = "says"
FILE = ".config/unchanged"
HOME = ".toolkit-installer"
VERSIONS = f"{HOME}/versions/"
STDERR = 2
AT_ONCE_BYTES = 4096  # as much as a pipe with room takes whole (pipe(7))


def ends(words: list[str]) -> bool:
    """Tell whether an install of these words has come to its end: it changes nothing."""
    if words[:1] != ["install"] or posix.isatty(STDERR) or sigpending():
        return False
    held: list[int] = []
    try:
        return _ends(words[1:], held)
    except Exception:  # noqa: BLE001 - whatever it is, the whole program finds it, and says what it is
        return False
    finally:
        for fd in held:
            posix.close(fd)


def _ends(words: list[str], held: list[int]) -> bool:
    host_root = _said(words, "--host-root", *HOST_ROOT).rstrip("/")
    directory = host_root + _said(words, "--install-dir", *INSTALL_DIR)
    link = posix.readlink(f"{directory}/toolkit")
    path = f"{directory}/{link}/{FILE}"
    if not (is_plain(path) and link.startswith(VERSIONS) and ".." not in link):
        return False
    first, _, rest = content(path).partition("\n")
    if first != headed(rest):
        return False
    _lock(f"{directory}/{HOME}", held)
    said = []
    for line in rest.split("\n")[:-1]:
        kind, _, text = line.partition(" ")
        if kind == SAYS:
            said.append(text)
            continue
        answer, _, what = text.partition(" ")
        if found(kind, what) != answer:
            return False
    return _told(said)


def headed(lines: str) -> str:
    """Return the first line, which tells that the others are whole."""
    return f"as it was, 1 {digest(lines.encode())}"


def _said(words: list[str], flag: str, variable: str, default: str) -> str:
    """Return the value of a flag; a wrong one leads to what was left for other words, or to nothing."""
    value = posix.environ.get(variable.encode(), b"").decode() or default
    for at, word in enumerate(words):
        if word == flag:
            value = words[at + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value


def _lock(home: str, held: list[int]) -> None:
    """Lock the ledger as every install does; who finds it locked is told so by the whole program."""
    from fcntl import LOCK_EX, LOCK_NB, flock

    for path in (home, f"{home}/lock"):
        held.append(posix.open(path, OPEN))
        flock(held[-1], LOCK_EX | LOCK_NB)


def _told(said: list[str]) -> bool:
    """Say what was said then, at today's time, if it finds room at once."""
    from select import POLLOUT, poll

    seconds, ns = divmod(time_ns(), 10**9)
    now = f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(seconds))}.{ns // 1000:06}Z"
    text = "".join(f'{line}"timestamp": "{now}"}}\n' for line in said).encode()
    room = poll()
    room.register(STDERR, POLLOUT)
    if len(text) > AT_ONCE_BYTES or [event for _, event in room.poll(0)] != [POLLOUT]:
        return False
    return posix.write(STDERR, text) == len(text) or S_ISREG(posix.fstat(STDERR).st_mode)
