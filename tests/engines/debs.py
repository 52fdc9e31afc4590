"""Debian packages are looked up, fetched and unpacked in the cache; the machine's own apt never notices."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.engines.cache import build_once, cache, locked
from tests.support.waiting import HANGS_S

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TODAY = "today-"  # in the cache: what the mirror last said
UNREAD = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")


def mirror() -> str | None:
    """Return the Debian mirror this machine is configured for, or the one ``TEST_DEBIAN_MIRROR`` names."""
    if named := os.environ.get("TEST_DEBIAN_MIRROR"):
        return named
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.*"))]
    texts = [file.read_text() for file in files if file.is_file() and file.suffix in {".list", ".sources"}]
    active = "\n".join(line for text in texts for line in text.splitlines() if not line.startswith("#"))
    found = re.search(r"(?:^|\s)([a-z+]+:\S+/debian)/?(?:\s|$)", active)
    return found[1] if found else None


def _apt(suite: str, tool: str, command: str, *args: str) -> str:
    done = subprocess.run(
        ["apt-" + tool, *command.split(), *args],
        env=os.environ | {"APT_CONFIG": str(_configured(suite)), "LC_ALL": "C"},
        cwd=_home(suite),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"cannot apt-{tool} {command} for {suite}: {done.stderr.strip()}")
    return done.stdout


def _home(suite: str) -> Path:
    return cache() / "apt" / suite


def _configured(suite: str) -> Path:
    """Return the apt.conf of an apt that knows one suite and has nothing installed."""
    home = _home(suite)
    for part in ("lists/partial", "archives/partial"):
        (home / part).mkdir(parents=True, exist_ok=True)
    (home / "status").touch()
    _write(home / "sources.list", f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n")
    settings = {
        **{f"Dir::Etc::{own}": "/dev/null" for own in ("main", "parts", "sourceparts", "preferencesparts")},
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::sourcelist": home / "sources.list",
        "Dir::State": home,
        "Dir::State::status": home / "status",
        "Dir::Cache": home,
        "Dir::Log": home,  # where root's apt tells what it planned
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
    }
    lines = [f'{name} "{value}";' for name, value in settings.items()]
    config = home / "apt.conf"
    _write(config, "\n".join([*_machines_ways_to_the_network(), *lines]) + "\n")
    return config


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:  # a newer sources.list makes apt build its index anew
        path.write_text(text)


def _machines_ways_to_the_network() -> list[str]:
    # Proxies and the like; hooks stay out, for they would clean the machine's own apt cache.
    shown = subprocess.run(
        ["apt-config", "dump"], capture_output=True, text=True, timeout=HANGS_S, check=True
    )
    wanted = re.compile(r"Acquire::(?!IndexTargets|CompressionTypes|Changelogs|Languages|GzipIndexes)\S+ ")
    return [line for line in shown.stdout.splitlines() if wanted.match(line)]


def refresh(suites: Iterable[str]) -> None:
    """Ask the mirror what each suite carries now."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda suite: _apt(suite, "get", "update", "-q"), suites))


def with_dependencies(suite: str, packages: Iterable[str]) -> list[str]:
    """Return ``name=version`` of ``packages`` and all they depend on."""
    plan = _apt(suite, "get", "install -y -q --simulate", *packages)
    return sorted(
        f"{name}={version}" for name, version in re.findall(r"^Inst (\S+) \((\S+) ", plan, re.MULTILINE)
    )


def alone(suite: str, packages: Iterable[str]) -> list[str]:
    """Return ``name=version`` of those of ``packages`` that the suite has, without what they depend on."""
    shown = _apt(suite, "cache", "policy", *packages)
    found = re.findall(r"^(\S+):\n.*\n  Candidate: (\S+)$", shown, re.MULTILINE)
    return [f"{name}={version}" for name, version in found if version != "(none)"]


def unpack(suite: str, pinned: Iterable[str], root: Path) -> None:
    """Fetch what the cache lacks and lay the files of all ``pinned`` packages over ``root``."""
    debs = {pin: _deb(suite, pin) for pin in pinned}
    if absent := [pin for pin, found in debs.items() if not found]:
        try:
            _apt(suite, "get", "download -q", *absent)
        except RuntimeError:
            for answer in cache().glob(f"{TODAY}*"):  # the archive moved on: the next run asks again
                answer.unlink()
            raise
        debs |= {pin: _deb(suite, pin) for pin in absent}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda deb: _extract(deb, root), filter(None, debs.values())))


def program(name: str, package: str, suite: str) -> str:
    """Return the machine's own ``name``, or that of a Debian package which needs no other.

    Raises:
        RuntimeError: there is none, and none can be had.
    """
    if own := shutil.which(name):
        return own
    if lack := needed():
        raise RuntimeError(f"{name} is missing, and cannot be fetched: {lack}")

    def build(root: Path) -> None:
        refresh([suite])
        unpack(suite, alone(suite, [package]), root)

    with locked():
        root = build_once(cache() / f"root-{package}", build)
    return next(str(path) for place in ("usr/bin", "bin") if (path := root / place / name).exists())


def _deb(suite: str, pin: str) -> Path | None:
    name, _, version = pin.partition("=")
    return next(_home(suite).glob(f"{name}_{version.replace(':', '%3a')}_*.deb"), None)


def _extract(deb: Path, root: Path) -> None:
    # dpkg -x would put a directory in place of the symlinks that a merged /usr consists of.
    tar = [
        "tar",
        "-x",
        "-C",
        str(root),
        "--keep-directory-symlink",
        *(f"--exclude=./{path}/*" for path in UNREAD),
    ]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as source:
        subprocess.run(tar, stdin=source.stdout, timeout=HANGS_S, check=True)
    if source.returncode:
        deb.unlink()
        raise RuntimeError(f"{deb.name} was torn and is removed; run again")


def needed() -> str | None:
    """Return what this machine lacks to fetch Debian packages, as one sentence, or None."""
    tools = ("apt-get", "apt-cache", "dpkg-deb", "tar")
    if absent := [tool for tool in tools if not shutil.which(tool)]:
        return f"{absent[0]} is missing: the engines come from Debian's archive"
    if mirror() is None:
        return "no Debian mirror is configured in /etc/apt: name one in TEST_DEBIAN_MIRROR"
    if not KEYRING.exists():
        return f"{KEYRING} is missing: install debian-archive-keyring"
    return None
