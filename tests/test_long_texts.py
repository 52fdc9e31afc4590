"""A text full of one character is read, or refused, at a cost of its length and not of its square."""

import json
import sys

import pytest

from tests.support.limits import POD_BYTES, limited

READ_TEXT = """
import json
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath
from time import process_time
from types import SimpleNamespace
from installer.cdi import specification
from installer.change import observe, references
from installer.config_text import Syntax, WantedKey
from installer.config_text.change import apply, parse, undo
from installer.config_text.masked import mask
from installer.engines import k3s, microk8s, node_shell, startup, templates, toolkit_paths
from installer.engines.containerd import load as containerd_load
from installer.engines.crio import config as crio
from installer.engines.crio import load as crio_load
from installer.engines.crio.printed import PrintedConfig
from installer.errors import InstallerError
from installer.host.programs import Ran
from installer.model.files import File, Kind
from installer.report.doctor import read, system

PATH = PurePosixPath("/etc/file")
TOOLKIT = "/usr/local/nvidia/toolkit"
WANTS = [WantedKey(("runtimes", "nvidia", "path"), TOOLKIT)]

def edit(text, syntax):
    parse(text, syntax, name="x")
    new, edits = apply(text, WANTS, syntax, name="x")
    undo(new, edits, syntax, name="x")

def read_crio(text):
    PrintedConfig.read(text)
    tree = parse(text, Syntax.TOML, name="x")
    crio.read_effective(tree)
    list(crio.list_programs(tree))

def read_cdi(text):
    for look in (specification.named_paths, specification.device_names, read.HOST_PATH.findall):
        look(text)
    for pattern in (system.WRITTEN_IN, system.UVM_MAJOR, system.CAP):
        pattern.findall(text)
    specification.read_devices(text, "nvidia.com/gpu")

def read_template(text):
    microk8s._fill(text, microk8s._guess_values(parse(text, Syntax.TOML, name="x"), text))

class OneFile:
    "A host with the same text in each file."

    def __init__(self, text):
        self.file = File(text.encode())

    def kind(self, path):
        return Kind.FILE

    def read(self, path):
        return self.file

    def names(self, path):
        return ("a.json", "b.conf")

def start_of_crio(text):
    return SimpleNamespace(host=OneFile(text), texts=lambda *key: ("/hooks",))

def read_hooks(text):
    crio_load._find_flaw_of_profile(start_of_crio(text), PATH)
    list(crio_load._find_bad_hooks(start_of_crio(text)))

def read_output(text):
    ran = Ran(2, "", text)
    ran.last_line, ran.has_panicked, ran.was_cut_short
    node_shell.LINKED.findall(text)

def find_flaw_of_spec(text):
    loading = SimpleNamespace(given=SimpleNamespace(host=OneFile(text)))
    containerd_load._find_flaw_of_spec(loading, str(PATH))

def find_references(text):
    toolkit_paths.find_paths(text + TOOLKIT, (TOOLKIT,))
    observe.TOOLKITS.findall(text.encode())

READERS = {
    "toml": lambda text: edit(text, Syntax.TOML),
    "json": lambda text: edit(text, Syntax.JSON),
    "crio": read_crio,
    "cdi": read_cdi,
    "template": read_template,
    "masked toml": lambda text: mask(text, Syntax.TOML),
    "masked json": lambda text: mask(text, Syntax.JSON),
    "references": find_references,
    "hooks of crio": read_hooks,
    "registries of crio": lambda text: list(crio_load._find_bad_registries(start_of_crio(text))),
    "classes of crio": lambda text: crio_load._find_flaw_of_classes(text, ("classes",)),
    "base spec": find_flaw_of_spec,
    "settings of k3s": lambda text: templates._find_yaml_flaw(OneFile(text), PATH),
    "template of k3s": k3s.may_define_ours,
    "environment file": lambda text: startup._read_environment_file(OneFile(text), PATH),
    "output of a program": read_output,
}
name, filler = sys.argv[1], bytes.fromhex(sys.argv[2]).decode()
seconds = []
for size in map(int, sys.argv[3].split(",")):
    for before, after in [line.split("|") for line in sys.argv[4:]]:
        text = before + filler * (size // len(filler)) + after
        began = process_time()
        with suppress(InstallerError, ValueError, LookupError, TypeError):
            READERS[name](text)
        seconds.append(process_time() - began)
# Not ru_maxrss: the kernel hands the peak of the process that forked this one on to it.
status = Path("/proc/self/status").read_text()
peak_kb = int(status.partition("VmHWM:")[2].split()[0])
print(json.dumps([seconds, peak_kb]))
"""
FILLERS = {
    "newlines": "\n",
    "blanks": " ",
    "comments": "#",
    "lines of comments": "#\n",
    "open brackets": "[",
    "closed brackets": "]",
    "arrays": "[]",
    "double quotes": '"',
    "single quotes": "'",
    "backslashes": "\\",
    "braces": "{",
    "closed braces": "}",
    "panics": "panic: a\n",
    "commas": ",",
    "carriage returns": "\r",
    "CRLF": "\r\n",
}
AROUND = {
    "toml": ("|", "a = 1\n# |\n[b]\nc = 1\n", "a = [1,|1]\n[b]\nc = 1\n", 'a = """|"""\nb = 1\n'),
    "json": ("|", '{"a": |1}', '{"a": "|", "b": 1}', '{"a": [|], "b": 1}'),
    "cdi": (
        "|",
        "kind: nvidia.com/gpu\n|\na: 1\n",
        'kind: nvidia.com/gpu\na: "|"\n',
        "kind: nvidia.com/gpu\na: [|]\n",
    ),
    "yaml": ("|", "a: 1\n|\nb: 2\n", 'a: "|"\n', "a: [|]\n"),
    "program": ("|", "panic: x\n|\ngoroutine 1 [running]:\n"),
}
# Each size is timed beside a quarter of it in one run, so that a slow machine is slow for both. The largest file that is
# read has 16 MiB: some of these readers take half a minute for it, so by day a sixteenth of that is enough.
READERS = (
    *("references", "toml", "json", "crio", "cdi", "template", "masked toml", "masked json"),
    *("hooks of crio", "registries of crio", "classes of crio", "base spec"),
    *("settings of k3s", "template of k3s", "environment file", "output of a program"),
)
LENGTHS = [pytest.param(1 << 20, id="1 MiB"), pytest.param(16 << 20, id="16 MiB", marks=pytest.mark.night)]
SYNTAX = {
    "json": "json",
    "masked json": "json",
    "hooks of crio": "json",
    "base spec": "json",
    "cdi": "cdi",
    "classes of crio": "yaml",
    "settings of k3s": "yaml",
    "output of a program": "program",
}
YAML_BYTES = (1 << 20) - 64  # longer texts of YAML are not read
# Of a cost that grows with the length, 4; of one that grows with its square, 16.
MOST_TIMES = 8
LEAST_S = 0.25  # below that the clock and the machine decide
BYTES_OF_ONE = 24  # memory for each byte of the text: an editor keeps some copies, and a mask the lines


@pytest.mark.sampled(8)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("reader", READERS)
def test_a_text_full_of_one_character_costs_no_square_of_its_length(
    reader: str, filler: str, length: int
) -> None:
    syntax = SYNTAX.get(reader, "toml")
    around = AROUND[syntax]
    if syntax == "yaml":
        length = min(length, YAML_BYTES)
    sizes = f"{length // 4},{length}"
    words = [sys.executable, "-c", READ_TEXT, reader, FILLERS[filler].encode().hex(), sizes, *around]

    done = limited(words, memory=1 << 30, cpu_s=200)

    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    seconds, memory_kb = json.loads(done.stdout)
    for place, short_s, long_s in zip(around, seconds, seconds[len(around) :], strict=False):
        assert long_s < MOST_TIMES * max(short_s, LEAST_S), (place, short_s, long_s)
    assert memory_kb << 10 < POD_BYTES / 2 + BYTES_OF_ONE * length, memory_kb
