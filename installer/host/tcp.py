"""Where a process listens besides unix sockets: addresses of TCP, proven by the descriptors that it holds."""

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from installer.decide.data import dataclass
from installer.host.kernel import text_of
from installer.host.sockets import held_by

LISTENING: Final = "0A"  # TCP_LISTEN (include/net/tcp_states.h)
WORD: Final = 8  # hexadecimal digits of a part of an address, in the byte order of the machine
FIELDS: Final = 10


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """An address of TCP on this node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def tcp_listening(process: Path) -> tuple[TcpAddress, ...]:
    """Return the addresses at which a process, a directory of /proc, listens; loopback for any address."""
    return tuple(sorted(_listening(process, held_by(process)), key=str))


def same_network(process: Path) -> bool:
    """Tell whether a process is in the network namespace that we are in: its addresses mean the same here."""
    try:
        return (process / "ns/net").readlink() == Path("/proc/self/ns/net").readlink()
    except OSError:
        return False


def _listening(process: Path, held: frozenset[str]) -> Iterator[TcpAddress]:
    for table in ("tcp", "tcp6"):
        try:
            lines = [line.split() for line in text_of(process / "net" / table).split("\n")[1:]]
        except OSError:  # a kernel without IPv6
            continue
        for line in lines:
            # number, local address, remote address, state, ..., inode (net/ipv4/tcp_ipv4.c: get_tcp4_sock)
            if len(line) >= FIELDS and line[3] == LISTENING and f"socket:[{line[9]}]" in held:
                yield _address(line[1])


def _address(said: str) -> TcpAddress:
    place, _, port = said.partition(":")
    words = [place[at : at + WORD] for at in range(0, len(place), WORD)]
    address = ipaddress.ip_address(b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words))
    loopback = "127.0.0.1" if address.version == 4 else "::1"  # noqa: PLR2004 - IPv4
    return TcpAddress(loopback if address.is_unspecified else str(address), int(port, 16))
