"""The program that the engine starts as its plugin, before it serves: it leads to the plugin of ``run``.

The host need not have Python, so it is a script: the engine's connection (fd 3) is copied into two named
pipes beside the socket, at whose other ends the plugin is. It decides nothing.
"""

from pathlib import PurePosixPath
from shlex import quote
from typing import Final

from installer.decide.nri.wishes import HEARS, SAYS, Nri

SHELL: Final = PurePosixPath("/bin/sh")
PROGRAMS: Final = ("cat", "sleep")
PATH: Final = ("/usr/bin", "/bin")


def plugin_name(nri: Nri) -> str:
    """Return the name under which the engine starts the program."""
    return f"{nri.identity.index.zfill(2)}-{nri.identity.name}"


def script(nri: Nri) -> str:
    """Return the program.

    A redirection to a named pipe waits for the other end. Where nobody is there, or answers within a second,
    it ends: the engine waits for it, and then goes on without it.
    """
    return f"""#!/bin/sh
# toolkit-installer: leads the engine, on fd 3, to the NRI plugin that run has running in its container.
PATH={":".join(PATH)}
cd {quote(str(nri.pipes))} 2>/dev/null && [ -p {HEARS} ] && [ -p {SAYS} ] || exit 0
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
