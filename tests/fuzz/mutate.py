"""Bytes like those that are honest, and spoilt: what a neighbour, a broken disk or another program may leave."""

from random import Random

# What parsers stumble over: brackets without end, half a code point, huge numbers, dates, odd escapes, no bytes.
TOKENS = (
    b"[", b"{", b"]", b"}", b'"', b"'", b'"""', b"\\", b"\0", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\n", b"\r",
    b"[" * 300, b'{"a":' * 300, b"null", b"true", b"-0", b"1e999", b"9" * 5000, b"nan", b"1979-05-27", b"0x", b"=",
    b":", b",", b"..", b"/", b"%n", b"${HOME}", b"\xef\xbb\xbf", b"[[a]]\n", b"a.b=1\n", b"-1", b"4294967296", b" ",
)  # fmt: skip
LONGEST = 100_000


def mutated(random: Random, content: bytes) -> bytes:
    """Return ``content`` after a few changes."""
    spoilt = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 12))):
        start = random.randint(0, len(spoilt))
        end = min(len(spoilt), start + random.choice((0, 1, 2, 8, 64)))
        match random.randrange(6):
            case 0:
                spoilt[start:end] = random.choice(TOKENS)
            case 1:
                del spoilt[start:end]
            case 2:
                spoilt[start:start] = spoilt[start : start + random.choice((8, 64, 512))]
            case 3 if spoilt:
                spoilt[start % len(spoilt)] = random.randrange(256)
            case 4:
                del spoilt[random.choice((start, end)) :]
            case _:
                other = random.randint(0, len(spoilt))
                spoilt[start:end] = spoilt[other : other + end - start]
    return bytes(spoilt[:LONGEST])
