"""A pattern that is compiled at its first use is one of the standard library's."""

import re
import subprocess
import sys

from installer.decide.pattern import pattern
from tests.support.site import PROJECT


def test_it_finds_what_a_compiled_one_finds() -> None:
    ours, theirs = pattern(r"(?P<one>a+)B", re.IGNORECASE), re.compile(r"(?P<one>a+)B", re.IGNORECASE)

    for text in ("aab", "xAB ab", "nothing"):
        for name in ("match", "fullmatch", "search"):
            found, expected = getattr(ours, name)(text), getattr(theirs, name)(text)
            assert (found and found.groupdict()) == (expected and expected.groupdict())
        assert ours.sub("-", text) == theirs.sub("-", text)
        assert ours.findall(text) == theirs.findall(text)
        assert ours.split(text) == theirs.split(text)
    assert (ours.pattern, ours.groups, ours.flags) == (theirs.pattern, theirs.groups, theirs.flags)


def test_nothing_is_compiled_before_it_is_used() -> None:
    code = "import re; kept = re.compile; told = []\n"
    code += "re.compile = lambda text, flags=0: told.append(text) or kept(text, flags)\n"
    code += "from installer.decide.pattern import pattern; found = pattern('(a)b'); print(told)\n"
    code += "found.match('ab'); found.match('ab'); print(told)"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT
    )

    assert done.stdout.splitlines() == ["[]", "['(a)b']"]
