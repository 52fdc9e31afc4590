"""A config as it may be shown: values under names of secrets and passwords in addresses are masked.

The lines stay what they are, one for one, so that a diff of the texts can be shown in masked lines.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, Protocol

from installer.config_text import Pair, Syntax, TextError, json, toml

_COMMENT: Final = re.compile(r"#.*")
_PLAIN: Final = frozenset({"true", "false", "null"})
# Of a pair of a name and its value, as in the environment of a Pod: {"name": NAME, "value": VALUE}.
_NAME: Final = frozenset({"name", "key"})

_Span = tuple[int, int, bool]  # of a value, and whether all of it is secret
MASK: Final = "***"
_SECRET: Final = re.compile(
    r"passw|passphrase|(?<!by)(?<!com)pass\d*$|secret|token|credential|authoriz|cookie|bearer|signature|^sig$"
    r"|^auths?$|registryauth|(api|access|private|signing|encryption|account|auth)key|^key$|keydata|keypem"
)
# As the last word of a name only: ``spwd`` and ``format`` are none.
_SHORT: Final = re.compile(r"(?:^|[^A-Za-z]|(?<=[a-z])(?=[A-Z]))(?i:pwd?|pat)\d*$|\.key$")
# Where a secret is, what asks for it, or that it comes by another way.
_HARMLESS: Final = re.compile(r"(file|path|dir|plugins?|endpoint|stdin)$")
_ESCAPE: Final = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|U000([0-9a-fA-F]{5})|(/))")
_BREAK: Final = re.compile(r"\\+[nrtbf]")
PLAIN_LENGTH: Final = 6  # one more than they have: it is the end of the line
# In a string or a comment: NAME=value, NAME: value and "NAME": "value", and --NAME value.
_NAMED: Final = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]+)(?:\\*[\"'])?[ \t]*[=:][ \t]*(?:\\*[\"'])?(?=[^\s\"'])"
)
_FLAG: Final = re.compile(r"(?<![\w-])(?P<name>--?[A-Za-z][\w-]*)[ \t]+(?=\S)")
_USER: Final = re.compile(r"(?<![\w-])(?:-u|--(?:proxy-)?user)[ \t=]+(?=[^\s:]+:[^\s:])(?!\d+:\d+\b)")
_SCHEME: Final = re.compile(r"\b(?i:bearer|basic|negotiate)[ \t]+(?=[\w+/=.~-]*[A-Z\d=])")
_PEM: Final = re.compile(r"(-----BEGIN [^-\n]*-----)(.*?)(-----END|\Z)", re.DOTALL)
_WHOLE_PEM: Final = re.compile(r"(-----BEGIN [^-\n]*-----)(.*?)(-----END)", re.DOTALL)
_ISSUED: Final = re.compile(
    r"\b(?:eyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(?:gh[opsur]_|github_pat_|glpat-|xox[a-z]-|dckr_pat_)[\w-]{10,}"
    r"|A[KS]IA[A-Z\d]{12}\w*)|(?<=hooks\.slack\.com/)[^\s\"']+"
)
# Also as it is spelt in the text of a config: with escapes, which mean the same.
_ADDRESS: Final = re.compile(
    r"((?::|\\u003[aA]|\\U0000003[aA])(?:\\*/|\\u002[fF]|\\U0000002[fF]){2})[^\s\"'<>]*(@|\\u0040|\\U00000040)"
)
_BARE_ADDRESS: Final = re.compile(r"(proxy[^\n]*?[\"'=\s])[^\s\"'/@]+:[^\s\"'/@]+@", re.IGNORECASE)
# USER:PASSWORD@HOST, which is not an image with its digest.
_LOGIN: Final = re.compile(r"(?<![^\s\"'@])([^\s\"'@]++)@(?!sha\d+:)(?=[\w(\[])")
_USER_OF: Final = re.compile(r"[\w.+%-]++:(?=[^/])")


def mask(text: str, syntax: Syntax) -> str:
    """Return ``text`` without its secrets, in as many lines; one that is not understood without any value."""
    try:
        # Of megabytes only what is shown otherwise is kept.
        found = {
            (start, end): shown
            for start, end, secret in _find_values(text, syntax)
            if (shown := _show(text[start:end], secret=secret)) is not None
        }
    except (TextError, RecursionError):
        return re.sub(r"[^\n]+", MASK, text)
    out, done = [], 0
    for (start, end), literal in sorted(found.items()):
        out += [text[done:start], literal]
        done = end
    shown = "".join((*out, text[done:]))
    if syntax is Syntax.TOML:
        shown = _COMMENT.sub(lambda comment: hide_secrets(comment[0]), shown)
    # Then what is a secret wherever it stands.
    shown = _ISSUED.sub(MASK, _WHOLE_PEM.sub(_mask_pem, shown))
    return _BARE_ADDRESS.sub(rf"\1{MASK}@", _ADDRESS.sub(rf"\1{MASK}\2", shown))


class _Scanner(Protocol):
    def pairs(self, text: str, start: int) -> list[Pair]: ...
    def items(self, text: str, start: int) -> list[tuple[int, int]]: ...


def _show(literal: str, *, secret: bool) -> str | None:
    """Return what is shown in the place of a value; None where that is itself."""
    quoted = re.match(r"\"\"\"|'''|[\"']|", literal)
    quote = quoted[0] if quoted else ""
    if secret:
        kept = literal in _PLAIN
        return literal if kept else f"{quote[:1]}{MASK}{quote[:1]}" + "\n" * literal.count("\n")
    if not quote:
        return None
    inside = literal[len(quote) : -len(quote)]
    shown = hide_secrets(inside)
    return None if shown == inside else quote + shown + quote


def _find_values(text: str, syntax: Syntax) -> Iterator[_Span]:
    """Yield the values of a text, and the names in which a secret may stand."""
    if syntax is Syntax.TOML:
        for table in toml.tables(text, ()):
            secret = any(map(is_secret, table.name))
            yield from _walk_pairs(text, toml, table.pairs(text), secret=secret)
    elif root := re.search(r"[\[{]", text):
        json.value(text[root.start() :])
        yield from _walk_value(text, json, root.start(), len(text), secret=False)


def _walk_pairs(text: str, scanner: _Scanner, pairs: Sequence[Pair], *, secret: bool) -> Iterator[_Span]:
    named = any(
        pair.name[-1].lower() in _NAME and announces(unescape(text[pair.value : pair.end].strip("\"'")))
        for pair in pairs
    )
    for pair in pairs:
        yield pair.start, pair.start + len(pair.raw[0]), False
        hidden = any(map(is_secret, pair.name)) or (named and pair.name[-1].lower() == "value")
        yield from _walk_value(text, scanner, pair.value, pair.end, secret=secret or hidden)


def _walk_value(text: str, scanner: _Scanner, start: int, end: int, *, secret: bool) -> Iterator[_Span]:
    """Yield what stands in a value; it is secret, or what secret names in it hold."""
    if text[start] == "{":
        yield from _walk_pairs(text, scanner, scanner.pairs(text, start), secret=secret)
    elif text[start] == "[":
        before = ""
        for begin, stop in scanner.items(text, start):
            said = unescape(text[begin:stop].strip("\"'"))
            # A flag with which the next one is a user with a password.
            login = before[:2] in {"-u", "--"} and _USER.match(f"{before} {said}")
            hidden = secret or announces(before) or bool(login)
            yield from _walk_value(text, scanner, begin, stop, secret=hidden)
            before = said
    else:
        yield start, end, secret


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Tell whether a key of this name holds what is not to be shown."""
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    found = _SECRET.search(word) or (name not in {"PWD", "OLDPWD"} and _SHORT.search(name))  # a shell's place
    return bool(found) and _HARMLESS.search(word) is None


def announces(word: str) -> bool:
    """Tell whether an item of a list says that the next one is a secret: a flag, or a variable's name."""
    return re.fullmatch(r"[\w.-]+", word) is not None and is_secret(word)


def unescape(text: str) -> str:
    """Return a string's text without the escapes that it could do without."""
    return _ESCAPE.sub(_decode_escape, text) if "\\" in text else text


def hide_secrets(text: str) -> str:
    """Return what stands in a string or a comment, as it is written if there is no secret in it."""
    meant = unescape(text)
    shown = "\n".join(map(_hide_in_line, _PEM.sub(_mask_pem, meant).split("\n")))
    return text if shown == meant else shown


def _decode_escape(match: re.Match[str]) -> str:
    if match[3]:
        return "/"
    letter = chr(int(match[1] or match[2], 16))
    if letter in '"\\':
        return f"\\{letter}"
    return letter if letter.isprintable() else " " if letter == "\t" else match[0]


def _mask_pem(match: re.Match[str]) -> str:
    return match[1] + re.sub(r"[^\n]+", MASK, match[2]) + match[3]


def _hide_in_line(line: str) -> str:
    """Return a line without what follows a secret's name, all to its end, and without logins."""
    # A name begins behind a line break, too; "\n" is two letters here.
    seen = _BREAK.sub(lambda match: " " * len(match[0]), line) if "\\" in line else line
    ends = [
        match.end() for pattern in (_SCHEME, _USER) for match in itertools.islice(pattern.finditer(seen), 1)
    ]
    for pattern in (_NAMED, _FLAG):
        found = (
            match.end()
            for match in pattern.finditer(seen)
            # The end of a path is no name.
            if is_secret(match["name"])
            and not (match["name"].endswith(".key") and seen[: match.start()][-1:] == "/")
        )
        ends += [end for end in itertools.islice(found, 1) if seen[end : end + PLAIN_LENGTH] not in _PLAIN]
    shown = line[: min(ends)] + MASK if ends else line
    if "@" in shown:
        shown = _LOGIN.sub(_mask_login, _ADDRESS.sub(rf"\1{MASK}\2", shown))
    return _ISSUED.sub(MASK, shown)


def _mask_login(match: re.Match[str]) -> str:
    user = _USER_OF.search(match[1])
    return f"{match[1][: user.start()]}{MASK}@" if user else match[0]
