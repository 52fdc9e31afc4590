"""MicroK8s: the template that it makes the config of its containerd of at each start."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.config_text import Syntax, Tree, Want, leaves
from installer.config_text.change import parse
from installer.engines.containerd import config as containerd
from installer.engines.containerd import effective
from installer.errors import InstallerError
from installer.model.engine_spec import (
    CommandLine,
    ConfigFiles,
    Decision,
    DropIns,
    Extras,
    FileWants,
    Place,
    RuntimeEntry,
)

DATA: Final = PurePosixPath("/var/snap/microk8s")
ARGS: Final = DATA / "current/args"
TEMPLATE: Final = "containerd-template.toml"
RENDERED: Final = PurePosixPath("containerd.toml")
# What its wrapper puts in (microk8s-resources/wrappers/run-containerd-with-args): the first two depend on the
# node, and the file that it has made tells of them.
TYPE: Final = "RUNTIME_TYPE"
USUAL: Final = {
    "SNAPSHOTTER": "overlayfs",
    TYPE: effective.RUNC_TYPE,
    "SNAP": "/snap/microk8s/current",
    "SNAP_DATA": "/var/snap/microk8s/current",
}
ALWAYS: Final = {"RUNTIME": effective.BUILT_IN}
SPLIT_BY_ONE: Final = 3  # a text with one variable has three parts: before it, its name, after it
VARIABLE: Final = re.compile(r"\$\{(" + "|".join([*USUAL, *ALWAYS]) + r")\}")


def draft(files: ConfigFiles, entries: tuple[RuntimeEntry, ...], extras: Extras) -> Iterator[Decision]:
    """Yield the ways to have our runtimes served by the template; raise where it is not there."""
    if files.config not in files.trees:
        raise InstallerError(
            f"configure MicroK8s in {files.config} (it is not there, and MicroK8s does not start without)",
            remedy="put it back: the snap has one in /snap/microk8s/current/default-args",
        )
    template = files.trees[files.config]
    values = _guess_values(template, files.rendered)
    for decision in containerd.draft(_render(files), entries, extras):
        worded = (
            _put_in_template(file, template, values) if file.path == files.config else file
            for file in decision.files
        )
        yield replace(decision, files=tuple(worded))


def _render(files: ConfigFiles) -> ConfigFiles:
    """Return the files with the template as it will be rendered."""
    path, template = files.config, files.texts.get(files.config, "")
    values = _guess_values(parse(template, Syntax.TOML, name=str(path)), files.rendered)
    text = _fill(template, values)
    tree = parse(text, Syntax.TOML, name=str(path))
    return replace(files, trees={**files.trees, path: tree}, texts={**files.texts, path: text})


def _guess_values(template: Tree, rendered: str) -> Mapping[str, str]:
    """Return what stands for each variable, as the text tells that was rendered last."""
    values, made = dict(USUAL), {}
    with suppress(InstallerError):  # its text is not corrected: it is made anew
        made = dict(leaves(parse(rendered, Syntax.TOML, name=str(RENDERED))))
    for key, said in leaves(template):
        parts, found = VARIABLE.split(said) if isinstance(said, str) else [], made.get(key)
        if len(parts) == SPLIT_BY_ONE and isinstance(found, str):
            before, name, after = parts
            if found.startswith(before) and found.endswith(after):
                values[name] = found[len(before) : len(found) - len(after)]
    return values | ALWAYS


def _fill(text: str, values: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda found: values[found[1]], text)


def _put_in_template(file: FileWants, template: Tree, values: Mapping[str, str]) -> FileWants:
    """Return what is wanted of the template, in its own words: what it says by a variable stays so."""
    said = dict(leaves(template))
    # The type of runc depends on the boot (cgroups of version 1 or 2): a new runtime gets it by that, too.
    by_variable = {values[TYPE]: f"${{{TYPE}}}"} if f"${{{TYPE}}}" in said.values() else {}

    def worded(want: Want) -> Want:
        now = said.get(want.key)
        if isinstance(now, str) and _fill(now, values) == want.value:
            return replace(want, value=now)
        if now is None and want.key[-1] == "runtime_type":
            return replace(want, value=by_variable.get(str(want.value), want.value))
        return want

    return replace(file, wants=tuple(map(worded, file.wants)))


MICROK8S: Final = replace(
    containerd.CONTAINERD,
    name="microk8s",
    title="MicroK8s",
    config=ARGS / TEMPLATE,
    drop_ins=DropIns(imports=True),
    socket=PurePosixPath("/var/snap/microk8s/common/run/containerd.sock"),
    unit="snap.microk8s.daemon-containerd.service",
    program=PurePosixPath("/snap/microk8s/current/bin/containerd"),
    cmdline=CommandLine(config=()),  # it is given the file that is rendered
    state=Place(PurePosixPath("/var/snap/microk8s/common/run/containerd"), "--state", "state"),
    data=None,
    draft=draft,
    make_check=lambda files: effective.make_check(_render(files)),
    estimate=lambda files: effective.estimate(_render(files)),
    # It waits for a default route at its start.
    marks=("/microk8s/",),
    units=("snap.microk8s.daemon-containerd.service",),
    start_s=60.0,
    makes=RENDERED,
    needs_root=True,
    # A refresh copies the data of the snap, a revert takes the older copy again.
    copies=DATA / "*/args" / TEMPLATE,
)
