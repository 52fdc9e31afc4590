"""Old against new: random lives of a node, lived twice from the same root, once by each version of the program.

    python -m tests.differential.differ OLD NEW [--lives 200] [--seed 1] [--keep DIR] [--accept FILE]

OLD and NEW are bin/ directories that hold `toolkit-installer` and `nvidia-toolkit`. After each act these have to be equal:
exit code, the codes of errors in the JSON log, and the whole tree (kind, mode, owner, link target, sha256 of each file), but for
what is the program's own business: the contents of its ledger directory besides the versions, state files below /run,
and digests in names. A difference is printed with the acts that led to it and the command to see it again. Exit 1 if there is one.

FILE of --accept holds regular expressions, one a line, each for one act and one thing that differs after it ("verb install: file etc/x.toml …"),
of differences that are decided: each needs its line in CHANGELOG.md. The life goes on behind one; behind one of a line that begins with "end " it is not
looked at any more, for all that follows differs. No answer within two minutes is a difference.
No engine runs and nothing outside the throw-away roots is touched: it judges files and exit codes, the tests with real engines the rest.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

Act = tuple[Any, ...]
DOCKER = [
    None,
    "",
    "{}\n",
    '{\n\t"log-level": "warn",  \n\t"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}\n}',
    '{"exec-opts": ["native.cgroupdriver=systemd"], "big": 12345678901234567890}\r\n',
    "\ufeff{}",
    '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}',
    '{"runtimes": []}',
    "{",
    '{"default-runtime": "nvidia"}',
    '{"a": 1, "a": 2}',
    '{"features": {"cdi": false}}\n',
]
V2, V3 = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"
CONTAINERD = [
    None,
    "",
    "version = 2\n",
    f'# keep\r\nversion = 2\r\n[{V2}.containerd.runtimes.runc] # c\r\n  runtime_type = "io.containerd.runc.v2"\r\n',
    f'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n[{V2}.containerd]\ndefault_runtime_name = "runc"\n[{V2}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n[{V2}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n',
    f"version = 3\n[{V3}.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n[{V3}.containerd.runtimes.kata]\nruntime_type = 'io.containerd.kata.v2'\n",
    'disabled_plugins = ["cri"]\n',
    '[plugins.cri.containerd.default_runtime]\nruntime_type = "io.containerd.runc.v1"\n',
    "version = 99\n",
    "version = \n",
    f'version = 2\n[{V2}.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n[{V2}.containerd.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n',
    f"version = 2\n{V2}.enable_cdi = true\n",
]
CRIO = [
    None,
    "",
    '[crio.runtime]\n# default_runtime = "crun"\n',
    '[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n',
    "[crio\n",
]
FILES = {
    "docker": "etc/docker/daemon.json",
    "containerd": "etc/containerd/config.toml",
    "crio": "etc/crio/crio.conf",
}
TEXTS = {"docker": DOCKER, "containerd": CONTAINERD, "crio": CRIO}
OWN = re.compile(
    r"^usr/local/nvidia/\.toolkit-installer(/(?!versions(/|$)).*)?$|^run(/|$)|^\.t(/|$)"
    r"|^usr/local/nvidia/\.toolkit-installer/versions/[^/]+/\.config/(?!nvidia-container-runtime)"  # what it notes for itself
)
NO_ANSWER = -99
DIGEST = re.compile(r"\b[0-9a-f]{16}\b")


PROGRAMS = (
    *("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-cli", "nvidia-container-runtime-hook"),
    *(f"nvidia-container-runtime{mode}" for mode in ("", ".cdi", ".legacy")),
)


def payload(at: Path) -> None:
    """Make a stand-in for NVIDIA's package: this very interpreter's ELF under the real names, cut short, and two libraries."""
    real = Path(os.path.realpath("/bin/true")).read_bytes()
    programs, libraries = at / "usr/bin", at / "usr/lib/x86_64-linux-gnu"
    for directory in (programs, libraries):
        directory.mkdir(parents=True)
    for name in PROGRAMS:
        (programs / name).write_bytes(real)
        (programs / name).chmod(0o755)
    for name in ("libnvidia-container", "libnvidia-container-go"):
        (libraries / f"{name}.so.1.20.0").write_bytes(real)
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.1.20.0")


def tree(root: Path) -> dict[str, str]:
    """Return what stands below a root, but for the program's own business; digests in names are all the same."""
    found = {}
    for base, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(base, name)
            key = str(path.relative_to(root))
            if OWN.match(key):
                continue
            at, what = path.lstat(), "dir"
            if path.is_symlink():
                what = str(path.readlink())
            elif path.is_file():
                what = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
            found[DIGEST.sub("DIGEST", key)] = f"{at.st_mode:o} {at.st_uid} {DIGEST.sub('DIGEST', what)}"
    return found


class Life:
    """One life of one root by one version; what is random was drawn before, so that both live the same."""

    env: ClassVar[dict[str, str]] = {**os.environ, "TOOLKIT_INSTALLER_LOG_FORMAT": "json"}

    def __init__(self, bin_: Path, root: Path, source: Path) -> None:
        self.bin, self.root, self.source = bin_, root, source

    def call(self, command: list[str]) -> tuple[int, list[str]]:
        quiet = subprocess.DEVNULL
        done = subprocess.run(
            command, capture_output=True, timeout=120, stdin=quiet, env=self.env, check=False
        )
        return done.returncode, codes(done.stderr)

    def verb(self, name: str, words: list[str]) -> list[str]:
        """Return what a shell is told for a verb of ours."""
        where = ["--host-root", str(self.root)]
        if name in {"install", "run", "plan"}:
            where += ["--toolkit-source", str(self.source)]
        if name in {"install", "run", "plan", "uninstall"}:
            where += ["--restart-mode", "none"]
        return [str(self.bin / "toolkit-installer"), name, *where, *words]

    def compat(self, engine: str) -> list[str]:
        """Return what a shell is told by NVIDIA's command line."""
        flags = {
            "host-root": self.root,
            "toolkit-source-root": self.source,
            "restart-mode": "none",
            "pid-file": self.root / "run/toolkit.pid",
            "runtime": engine,
            "config": self.root / FILES[engine],
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        return [str(self.bin / "nvidia-toolkit"), str(self.root / "usr/local/nvidia"), *words, "--no-daemon"]

    def run(self, flags: list[str], number: int) -> tuple[int, list[str]]:
        """Start `run`, wait until it has settled, end it."""
        log, quiet = self.root / ".t", subprocess.DEVNULL
        command = self.verb("run", ["--pid-file", str(self.root / "run/t.pid"), *flags])
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=quiet, stderr=out, stdin=quiet, env=self.env, start_new_session=True
            )
            try:
                until = time.monotonic() + 60
                while process.poll() is None and time.monotonic() < until:
                    if b'"waiting for a signal"' in log.read_bytes():
                        break
                    time.sleep(0.05)
                if process.poll() is None:
                    time.sleep(0.3)
                    end = os.killpg if number == signal.SIGKILL else os.kill
                    end(process.pid, number)
                code = process.wait(timeout=60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        said = codes(log.read_bytes())
        log.unlink()
        return code, said


def codes(log: bytes) -> list[str]:
    found = set()
    for line in log.decode(errors="replace").splitlines():
        with suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and said.get("code"):
                found.add(str(said["code"]))
    return sorted(found)


def acts(rnd: random.Random) -> list[Act]:
    """Draw what happens in one life."""
    engines = rnd.sample(sorted(FILES), rnd.choice((1, 1, 2, 3)))
    named = [word for engine in engines for word in ("--runtime", engine)]
    flags = named + rnd.choice(
        ([], [], ["--set-as-default"], ["--runtime-name", "gpu"], ["--driver-root", "/"])
    )
    found: list[Act] = [("texts", {engine: rnd.randrange(len(TEXTS[engine])) for engine in FILES})]
    for _ in range(rnd.randint(3, 9)):
        others = named + rnd.choice(([], ["--set-as-default"], ["--runtime-name", "other"]))
        drawn = (
            *(("verb", "install", flags), ("verb", "install", flags), ("verb", "plan", flags)),
            *(("verb", "status", []), ("verb", "uninstall", []), ("verb", "install", others)),
            ("run", flags, rnd.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL))),
            ("compat", engines[0]),
            *(("edit", rnd.choice(engines), rnd.randrange(9)) for _ in range(2)),
            *(("payload", rnd.randrange(4)), ("node", rnd.randrange(6))),
        )
        found.append(rnd.choice(drawn))
    return [*found, ("verb", "uninstall", []), ("verb", "status", [])]


def edit(root: Path, engine: str, number: int) -> None:
    """Do what an administrator does to a config."""
    path = root / FILES[engine]
    if not path.exists():
        if number == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}\n" if engine == "docker" else "")
        return
    text = path.read_bytes().decode(errors="surrogateescape")
    if number == 0:
        path.unlink()
        return
    new = {
        1: text + ("" if engine == "docker" else "\n# mine\n"),
        2: text.replace("{", '{"mine": 1, ', 1) if engine == "docker" and '"' in text else text,
        3: text.replace("nvidia-container-runtime", "my-runtime", 1),
        4: text.replace("\n", "\r\n"),
        5: re.sub(r'"nvidia": \{[^{}]*\},? ?', "", text, count=1),
        6: re.sub(r'(default_runtime_name|default_runtime) = "\w+"', r'\1 = "nvidia"', text),
        7: indented(text) if engine == "docker" else text,
        8: text[: len(text) // 2],
    }[number]
    path.write_bytes(new.encode(errors="surrogateescape"))


def indented(text: str) -> str:
    with suppress(ValueError):
        return json.dumps(json.loads(text), indent=2)
    return text


def act(life: Life, what: Act) -> tuple[int, list[str]]:
    """Do one act; return what is compared of it besides the tree."""
    kind, *rest = what
    if kind == "verb":
        return life.call(life.verb(*rest))
    if kind == "compat":
        return life.call(life.compat(*rest))
    if kind == "run":
        return life.run(*rest)
    if kind == "texts":
        for engine, number in rest[0].items():
            text, path = TEXTS[engine][number], life.root / FILES[engine]
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                path.write_bytes(text.encode())
    elif kind == "edit":
        edit(life.root, *rest)
    elif kind == "payload":
        change_payload(life.source, *rest)
    elif kind == "node":
        change_node(life.root, *rest)
    return 0, []


def change_payload(source: Path, number: int) -> None:
    program = source / "usr/bin/nvidia-container-runtime"
    if number == 0 and program.exists():
        program.write_bytes(program.read_bytes() + b"\n")
    elif number == 1:
        program.unlink(missing_ok=True)
    elif number == 2 and not program.exists():
        shutil.copy(source / "usr/bin/nvidia-ctk", program)
    elif number == 3:
        (source / "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1").unlink(missing_ok=True)


def change_node(root: Path, number: int) -> None:
    base = root / "usr/local/nvidia"
    toolkit = base / "toolkit"
    if number == 0 and toolkit.is_dir() and not toolkit.is_symlink():
        shutil.rmtree(toolkit, ignore_errors=True)
    elif number == 0:
        toolkit.unlink(missing_ok=True)
    elif number == 1:
        shutil.rmtree(base, ignore_errors=True)
    elif number == 2:
        if not toolkit.exists():
            toolkit.mkdir(parents=True, exist_ok=True)
        (base / "theirs").write_text("theirs\n")
    elif number == 3:
        for config in (each for each in (root / "etc").rglob("*.*") if each.is_file()):
            config.chmod(0o640)
    elif number == 4:
        (root / "etc/containerd/conf.d").mkdir(parents=True, exist_ok=True)
        (root / "etc/containerd/conf.d/50-site.toml").write_text("version = 2\n[debug]\nlevel = 'debug'\n")
    elif number == 5:
        shutil.rmtree(root / "run", ignore_errors=True)  # a reboot
        (root / "run").mkdir()


def differences(old: Act, new: Act) -> list[str]:
    """Return what differs after one act, a line for each thing: what --accept excuses one by one."""
    (what, (old_code, old_errors), before), (_, (new_code, new_errors), after) = old, new
    kind = f"{what[0]} {what[1]}" if what[0] == "verb" else str(what[0])
    found = []
    if old_code != new_code or new_code == NO_ANSWER:
        found.append(f"{kind}: exit code {old_code} -> {new_code} with {old_errors} -> {new_errors}")
    if old_errors != new_errors:
        found.append(f"{kind}: error codes {old_errors} -> {new_errors}")
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return found + [f"{kind}: file {path} {before.get(path)} -> {after.get(path)}" for path in paths]


def lived(bin_: Path, scratch: Path, drawn: list[Act], keep: Path | None) -> list[Act]:
    """Live one life; return each act, what came of it, and the tree then. The root is left at ``keep``."""
    # The same paths for both: they stand in texts.
    root, source = scratch / "node", scratch / "payload"
    for path in (root, source):
        shutil.rmtree(path, ignore_errors=True)
    for below in ("etc", "run", "usr/local", "opt", "bin"):
        (root / below).mkdir(parents=True)
    payload(source)
    life, seen = Life(bin_, root, source), []
    for each in drawn:
        try:
            result = act(life, each)
        except subprocess.TimeoutExpired:
            result = (NO_ANSWER, ["no answer"])
        seen.append((each, result, tree(root)))
    if keep:
        shutil.rmtree(keep, ignore_errors=True)
        shutil.copytree(root, keep, symlinks=True)
    return seen


def main(words: list[str]) -> int:
    """Live, compare and tell; return 1 where there is a difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--lives", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave the roots of the first difference here")
    parser.add_argument("--accept", type=Path)
    given = parser.parse_args(words)
    lines = given.accept.read_text().splitlines() if given.accept else []
    accepted = [re.compile(line) for line in lines if line.strip() and not line.startswith(("#", "end "))]
    ends = [re.compile(line.removeprefix("end ")) for line in lines if line.startswith("end ")]
    different, excused, done = [], 0, 0
    with tempfile.TemporaryDirectory(prefix="differ-") as scratch:
        for number in range(given.seed, given.seed + given.lives):
            chance = random.Random(number)  # noqa: S311 - lives, not secrets
            drawn = acts(chance)
            keep = given.keep / "old" if given.keep else None
            lives = lived(given.old, Path(scratch), drawn, keep), lived(given.new, Path(scratch), drawn, None)
            done += 1
            for at, (old, new) in enumerate(zip(*lives, strict=True)):
                differs = differences(old, new)
                found = [each for each in differs if not any(pattern.search(each) for pattern in accepted)]
                excused += len(differs) - len(found)
                if any(pattern.search(each) for pattern in ends for each in found):
                    excused += 1
                    break
                if found:
                    different.append(number)
                    print(f"life {number}, act {at + 1} of {len(drawn)}, {old[0]}:", *found[:8], sep="\n  ")  # noqa: T201
                    print(f"  acts: {drawn[: at + 1]}\n  again: --seed {number} --lives 1", flush=True)  # noqa: T201
                    break
    seeds = f"seeds {given.seed} to {given.seed + given.lives - 1}"
    print(f"{done} lives, {len(different)} different, {excused} accepted, {seeds}")  # noqa: T201
    return bool(different)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
