"""The program that the engine starts as its plugin, before it serves: it leads to the plugin of ``run``.

The host need not have Python, so it is a script: the engine's connection (fd 3) is copied into two named
pipes beside the socket, at whose other ends the plugin is. It decides nothing.

Each containerd of the node starts what is in that directory, one beside ours too, and tells nothing of
itself: so it looks at the command line of its parent.
"""

from collections.abc import Sequence
from pathlib import PurePosixPath
from shlex import quote
from typing import Final

from installer.decide.nri.wishes import HEARS, SAYS, Nri

SHELL: Final = PurePosixPath("/bin/sh")
PROGRAMS: Final = ("cat", "sleep")
PATH: Final = ("/usr/bin", "/bin")
_FOR_ONE: Final = '[ "$(cat /proc/$PPID/cmdline)" ='


def plugin_name(nri: Nri) -> str:
    """Return the name under which the engine starts the program."""
    return f"{nri.identity.index.zfill(2)}-{nri.identity.name}"


def script(nri: Nri, engine: Sequence[str] = ()) -> str:
    """Return the program; ``engine`` is the command line of the one that it is for, () for any.

    A redirection to a named pipe waits for the other end. Where nobody is there, or answers within a second,
    it ends: the engine waits for it, and then goes on without it.
    """
    # A shell drops the zeros between the words.
    stranger = f"{_FOR_ONE} {quote(''.join(engine))} ] || exit 0\n" if engine else ""
    return f"""#!/bin/sh
# toolkit-installer: leads the engine, on fd 3, to the NRI plugin that run has running in its container.
PATH={":".join(PATH)}
{stranger}cd {quote(str(nri.pipes))} 2>/dev/null && [ -p {HEARS} ] && [ -p {SAYS} ] || exit 0
(
    exec 3>&-
    sleep 1
    # Nobody has answered. The process of that number is still this script only while it is our parent.
    read -r _ _ _ parent _ </proc/self/stat && [ "$parent" = $$ ] && kill -KILL $$
) &
watch=$!
exec 5>{HEARS}
echo >&5
exec 4<{SAYS}
kill $watch
cat <&3 >&5 4<&- 5>&- &
exec 5>&-
cat <&4 >&3 4<&-
kill $! 2>/dev/null
exit 0
"""


def leads(program: str, nri: Nri) -> bool:
    """Tell whether this is the program, for whatever engine."""
    lines = [line for line in program.splitlines(keepends=True) if not line.startswith(_FOR_ONE)]
    return "".join(lines) == script(nri)
