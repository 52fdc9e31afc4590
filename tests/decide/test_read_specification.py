"""What is made of a specification of somebody else: exactly what engines make of it."""

import re

import pytest
import yaml

from installer.cdi.specification import read_devices
from installer.errors import InstallerError
from installer.host.files import text_of
from installer.model.files import File, Meta
from tests.support.specifications import FLOW, JSON, READ, UNREAD, YAML

KIND = "nvidia.com/gpu"
HIGHEST = (1, 0, 0)  # of containerd 2.1.9
DEEPER = YAML.replace(KIND, "foo.com/gpu") + f"annotations:\n  kind: {KIND}\n"


def _has(text: str | bytes) -> bool:
    content = text.encode() if isinstance(text, str) else text
    return bool(read_devices(text_of(File(content, Meta())), KIND, HIGHEST))


def _refused(text: str | bytes) -> bool:
    """Tell whether it is refused in a sentence; engines may read it."""
    try:
        _has(text)
    except InstallerError as error:
        return error.problem.startswith("read a CDI specification (it has ")
    return False


# JSON of tabs, and words with tabs behind them: PyYAML without its parser in C reads none of them.
# What is refused in a sentence has one of these: a tag, an alias or anchor, a merge, a directive, `\\/`.
SIGN = re.compile(r"!|[&*]\w|<<|%|\\/")
# Nobody writes these: a kind that no search finds, and words that are no numbers where numbers belong.
ENCODED = {"in base 64"}
UNKNOWN = re.compile(r"a directive that nobody knows|number .*|rdt .*enableCMT: 1")
TABS = {"a tab behind the colon", "a tab at the end", "JSON with tabs"}


@pytest.mark.parametrize("in_c", [True, False], ids=["C", "Python"])
def test_what_containerd_reads_gives_devices_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, *, in_c: bool
) -> None:
    if not in_c:
        monkeypatch.delattr(yaml, "CBaseLoader")

    refused = {name for name, text in (READ | UNREAD).items() if _refused(text)}

    unread = {name for name, text in READ.items() if name not in refused and not _has(text)}
    assert unread == ENCODED | (set() if in_c else TABS)
    read = {name for name, text in UNREAD.items() if name not in refused and _has(text)}
    assert [name for name in read if not UNKNOWN.fullmatch(name)] == []
    assert all(SIGN.search(str(each)) for name, each in (READ | UNREAD).items() if name in refused)


LATER = "0.6.0"  # has annotations


HAS = {
    "the first of two documents": f"{YAML}---\n{YAML.replace(KIND, 'a.b/c')}",
    "other braces": f"{YAML}annotations: {{kind: b.c/d}}\n".replace("0.5.0", LATER),
    "braces over lines": FLOW.replace("[{", "[\n#\n{"),
}
HAS_NOT = {
    "comments alone": "".join(f"# {line}\n" for line in YAML.splitlines()),
    "the kind of a deeper table": DEEPER.replace("0.5.0", LATER),
    "management's": YAML.replace(KIND, "management.nvidia.com/gpu"),
    "the device plugin's": YAML.replace(KIND, f"k8s.device-plugin.{KIND}"),
    "another kind": JSON.replace(KIND, "a.b/c"),
    "a version that nobody reads": YAML.replace("0.5.0", "9.9.0"),
    "no version": YAML.partition("\n")[2],
    "empty": "",
    "nothing": "null",
    "long": f"{KIND}: {'x' * 100_000}",
    "the second of two documents, which nobody reads": f"{YAML.replace(KIND, 'a.b/c')}---\n{YAML}",
}


def test_only_what_an_engine_reads_gives_devices_of_a_kind() -> None:
    assert [name for name, text in HAS.items() if not _has(text)] == []
    assert [name for name, text in HAS_NOT.items() if _has(text)] == []


def test_what_an_engine_of_a_later_time_may_know_has_devices() -> None:
    text = YAML.replace("0.5.0", "9.9.0") + "later: 1\n"

    assert read_devices(text, KIND)
