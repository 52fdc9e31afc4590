"""What has containers start programs besides configs of engines: CDI, hooks, base specs, Podman's config."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import tree_of
from installer.decide.data import replace
from installer.decide.effect import flat
from installer.decide.engines import ENGINES
from installer.decide.engines.crio_effect import HOOK_DIR
from installer.decide.errors import InstallerError
from installer.decide.facts import Facts
from installer.decide.inode import Kind
from installer.decide.layout import Layout
from installer.decide.parts.cdi import OWNER
from installer.decide.toolkit import EXECUTABLES, LINKS
from installer.host.files import Host
from installer.record.links import Ours, links_named, paths_in, paths_of, programs_of, unnamed
from installer.record.started import PATH
from installer.record.texts import text

SPEC_DIRS: Final = (PurePosixPath("/etc/cdi"), PurePosixPath("/var/run/cdi"))
SPEC_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
HOOK_DIRS: Final = (PurePosixPath(HOOK_DIR), PurePosixPath("/etc/containers/oci/hooks.d"))
HOOK_SUFFIXES: Final = frozenset({".json"})
# In the words of Docker, of containerd and of CRI-O, spelled without case and underscores.
CDI_KEYS: Final = frozenset({"cdi-spec-dirs", "cdispecdirs"})
HOOK_KEYS: Final = frozenset({"hooksdir"})
BASE_KEYS: Final = frozenset({"baseruntimespec"})
# Podman's and Buildah's, which have runtimes of their own (containers.conf(5)).
CONTAINERS_CONF: Final = (
    PurePosixPath("/usr/share/containers/containers.conf"),
    PurePosixPath("/etc/containers/containers.conf"),
)
CONF_DIRS: Final = tuple(PurePosixPath(f"{path}.d") for path in CONTAINERS_CONF)
CONF_SUFFIXES: Final = frozenset({".conf"})
# That of the toolkit of NVIDIA's packages, whose programs start what it names.
PACKAGED: Final = PurePosixPath("/etc/nvidia-container-runtime/config.toml")

PROGRAMS: Final = (*(each.name for each in EXECUTABLES), *(str(each.path) for each in LINKS))


def with_handed(host: Host, facts: Facts, layout: Layout) -> Facts:
    """Return the facts with the paths that such files name; one that cannot be read names none."""
    files = {path: dict.fromkeys(paths_in(text(host, path), layout)) for path in _files(host, facts)}
    facts = replace(facts, handed={path: tuple(said) for path, said in files.items()})
    links = links_named(host, facts, layout)
    back = (each for each in programs_of(facts) if given_back(host, str(links.get(each, each)), layout))
    return replace(facts, links=links, returning=frozenset(back))


def given_back(host: Host, value: str, layout: Layout) -> bool:
    """Tell whether an undo leaves a program of that name, of the toolkit that stood there before ours."""
    path = PurePosixPath(value)
    if path.is_relative_to(layout.versions):
        below = path.parts[len(layout.versions.parts) + 1 :]
    elif path.is_relative_to(layout.toolkit):
        below = path.relative_to(layout.toolkit).parts
    else:
        return False
    with suppress(InstallerError):
        return host.kind(layout.replaced.joinpath(*below)) is Kind.FILE
    return False


def with_unnamed(host: Host, facts: Facts, layout: Layout) -> Facts:
    """Return the facts with the programs that engines or people start by a word and that lead to ours."""
    ours, found, paths = Ours(host, layout, theirs=facts.toolkit.theirs), {}, list(paths_of(facts))
    paths += [(engine.exe.parent,) for engine in facts.engines if engine.exe]  # containerd looks there, too
    words = dict.fromkeys(word for engine in ENGINES.values() for word in engine.starts)
    places = tuple(dict.fromkeys(place for path in paths for place in path))
    for path in dict.fromkeys((*unnamed(host, words, paths), *unnamed(host, PROGRAMS, (PATH,)))):
        with suppress(InstallerError):
            leads = ours.behind(host, path, places)
            if leads is not None and not given_back(host, str(leads), layout):
                found[path] = leads
    return replace(facts, unnamed=found)


def _files(host: Host, facts: Facts) -> Iterator[PurePosixPath]:
    """Yield the files, each once, but those that the ledger tells of."""
    seen = {host.resolve(path) for path in _held(facts)}
    said = tuple(_said(facts))
    specs = (*SPEC_DIRS, *(path for key, path in said if key in CDI_KEYS))
    served = (place for engine in facts.engines if engine.serving for place in engine.serving.hook_dirs)
    hooks = (*HOOK_DIRS, *served, *(path for key, path in said if key in HOOK_KEYS))
    found = [*(path for key, path in said if key in BASE_KEYS), *CONTAINERS_CONF, PACKAGED]
    found += [path for place in CONF_DIRS for path in _within(host, place, CONF_SUFFIXES)]
    found += [path for place in dict.fromkeys(specs) for path in _within(host, place, SPEC_SUFFIXES)]
    found += [path for place in dict.fromkeys(hooks) for path in _within(host, place, HOOK_SUFFIXES)]
    for path in found:
        with suppress(InstallerError):
            real = host.resolve(path)
            if real not in seen and host.kind(real) is Kind.FILE:
                yield path
            seen.add(real)


def _held(facts: Facts) -> Iterator[PurePosixPath]:
    """Yield what is judged by its row; a specification of ours that somebody has written anew is his."""
    for row in facts.held.configs:
        now = facts.contents.get(row.path)
        if row.engine != OWNER or now is None or now.digest in row.ours:
            yield row.path


def _said(facts: Facts) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the paths that configs name by such a key; a config that no engine could read names none."""
    for config, file in facts.contents.items():
        with suppress(InstallerError):
            for key, value in flat(tree_of(file, config)):
                if key[-1] in CDI_KEYS | HOOK_KEYS | BASE_KEYS:
                    values = value if isinstance(value, list) else [value]
                    yield from (
                        (key[-1], PurePosixPath(each))
                        for each in values
                        if isinstance(each, str) and each.startswith("/") and "\0" not in each
                    )


def _within(host: Host, place: PurePosixPath, suffixes: frozenset[str]) -> Iterator[PurePosixPath]:
    with suppress(InstallerError):
        yield from (place / name for name in host.names(place) if PurePosixPath(name).suffix in suffixes)
