"""Specifications as somebody else may write them, and whether engines read them.

Each was given to containerd 2.1.9, whose answer stands here; tests/engines/test_nri.py asks it again.
"""

from typing import Final

DEVICE: Final = "zero"  # to be replaced where several are in one directory
KIND: Final = "kind: nvidia.com/gpu"
_VERSION: Final = "cdiVersion: 0.5.0\n"
_NAMED: Final = '- name: "zero"\n  containerEdits:\n    env: [A=theirs]\n'
_DEVICES: Final = f"devices:\n{_NAMED}"
YAML: Final = f"{_VERSION}{KIND}\n{_DEVICES}"
_IN_BRACES: Final = "devices: [{name: 'zero', containerEdits: {env: [A=b]}}]"
FLOW: Final = f"{{cdiVersion: 0.5.0, {KIND}, {_IN_BRACES}}}"
JSON: Final = '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"zero","containerEdits":{"env":["A=b"]}}]}'


def _kind(lines: str) -> str:
    return f"{_VERSION}{lines}\n{_DEVICES}"


def _edits(edit: str) -> str:
    return YAML.replace("env: [A=theirs]", edit)


READ: Final[dict[str, str | bytes]] = {
    "plain": YAML,
    "a key in quotes": _kind('"kind": nvidia.com/gpu'),
    "a tag": _kind("kind: !!str nvidia.com/gpu"),
    "in base 64": _kind("kind: !!binary bnZpZGlhLmNvbS9ncHU="),
    "an anchor": _kind("kind: &k nvidia.com/gpu"),
    "folded": _kind("kind: >-\n  nvidia.com/gpu"),
    "u escaped": _kind('kind: "nvidia\\u002ecom/gpu"'),
    "merged": f"{_VERSION}<<: {{{KIND}}}\n{_DEVICES}",
    "a tab behind the colon": _kind("kind:\tnvidia.com/gpu"),
    "a byte order mark": f"\ufeff{YAML}",
    "lines of Windows": YAML.replace("\n", "\r\n"),
    "in another case": _kind("KIND: nvidia.com/gpu"),
    "twice in two cases": _kind("kind: nvidia.com/gpu\nKind: a.b/c"),
    "JSON": JSON,
    "JSON with tabs": JSON.replace(",", ",\n\t"),
    "JSON with commas too many": JSON.replace("}", ",}").replace("]", ",]"),
    "JSON with nothing in its place": JSON.replace('"env"', '"mounts":null,"env"'),
    "a version with its letter": YAML.replace("0.5.0", "v0.5.0"),
    "a document behind it": f"{YAML}---\n[[[\n",
    "a directive": f"%YAML 1.1\n---\n{YAML}",
    "in braces": f"--- {FLOW}\n",
}
UNREAD: Final[dict[str, str | bytes]] = {
    "a slash escaped": _kind('kind: "nvidia.com\\/gpu"'),
    "over two lines": _kind('kind: "nvidia.com/\n  gpu"'),
    "a colon in it": _kind("kind: nvidia.com/gpu: x"),
    "tabs for blanks": f"{_VERSION}{KIND}\ndevices:\n\t- name: zero\n",
    "one byte that is no UTF-8": f"{YAML}# ".encode() + b"\xe4\n",
    "a key that nobody knows": f"{YAML}x: 1\n",
    "a deeper key that nobody knows": YAML.replace("env", "envv"),
    "a version that is a number": YAML.replace("0.5.0", "0.5"),
    "a later version": YAML.replace("0.5.0", "1.1.0"),
    "a device without an effect": f"{_VERSION}{KIND}\ndevices:\n- name: zero\n  containerEdits: {{}}\n",
    "one of two devices wrong": f'{YAML}- name: "1"\n',
    "two devices of a name": f"{YAML}{_NAMED}",
    "a name that is none": YAML.replace("zero", "ze ro"),
    "a variable without a value": _edits("env: [A]"),
    "a mount to nowhere": _edits("mounts: [{hostPath: /a}]"),
    "a node without a path": _edits("deviceNodes: [{hostPath: /a}]"),
    "a hook of no kind": _edits("hooks: [{hookName: x, path: /a}]"),
    "a number in quotes": _edits("deviceNodes: [{path: /dev/x, major: '1'}]"),
    "groups in an early version": _edits("additionalGids: [5]"),
    "wrong for all devices": f"{YAML}containerEdits: {{env: [A]}}\n",
    "marks of a conflict": f"<<<<<<< HEAD\n{YAML}=======\n{YAML}>>>>>>> x\n",
    "a template": f"{KIND}\ndevices:\n{{{{- range .x }}}}\n- name: zero\n{{{{- end }}}}\n",
    "no devices": f"{_VERSION}{KIND}\ndevices: ~\n",
    "a table of devices": f"{_VERSION}{KIND}\ndevices: {{name: zero}}\n",
    "text": "TODO: nvidia.com/gpu\nsomething else here\n",
}

# Each integer has as many bits as Go gives it: 64 with a sign, 32 without.
_LATER: Final = YAML.replace("0.5.0", "0.7.0")
_NODE: Final = "deviceNodes: [{path: /dev/x, type: c, major: %s, minor: %s, fileMode: %s, uid: %s, gid: %s}]"


def _words(edits: str, *words: str) -> dict[str, str]:
    return {
        f"number {word[:30]} in {edits[:11]}": _LATER.replace("env: [A=theirs]", edits % word)
        for word in words
    }


_TIMED: Final = "hooks: [{hookName: prestart, path: /a, timeout: %s}]"
_OWNED: Final = "deviceNodes: [{path: /dev/x, uid: %s}]"
READ["numbers"] = _LATER.replace("env: [A=theirs]", _NODE % ("0x1f", "-1", "0o17", "4294967295", "~"))
READ["more numbers"] = _LATER.replace("env: [A=theirs]", _NODE % ("+1", "-0b1", "017", "1e3", "1_000"))
READ.update(
    _words(_TIMED, "-9223372036854775808", "1e18", "!!int '1'") | _words("additionalGids: [%s]", "08", "&a 1")
)
UNREAD.update(
    _words(_TIMED, "1.5", "'1'", "!!str 1", "true", "2006-01-02", "9223372036854775808", "9" * 5000)
)
UNREAD.update(_words(_OWNED, "-1", "4294967296", "0b2", "1:30", "!!float 1.5"))


def _rdt(*words: str, version: str = "1.0.0") -> dict[str, str]:
    later = YAML.replace("0.5.0", version)
    return {
        f"rdt {version} {word[:30]}": later.replace("env: [A=theirs]", f"intelRdt: {{{word}}}")
        for word in words
    }


READ.update(_rdt("", "closID: ''", "closID: ...", f"closID: {'x' * 4095}", "enableCMT: yes", "enableCMT: y"))
READ.update(
    _rdt("enableCMT: ~", "enableMBM: off", "enableCMT: !!bool 'true'", "l3CacheSchema: 1", version="0.7.0")
)
UNREAD.update(_rdt("closID: .", "closID: ..", "closID: a/b", 'closID: "a\\nb"', f"closID: {'x' * 4096}"))
UNREAD.update(_rdt("enableCMT: 1", "enableCMT: 'true'", "enableMonitoring: true", "schemata: ~"))
UNREAD.update(_rdt("closID: a", version="0.5.0"))
UNREAD["devices of the network"] = _edits("env: [A=b]\n    netDevices: [{hostInterfaceName: a, name: b}]")
