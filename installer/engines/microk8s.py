"""MicroK8s: at each start it generates the config of its containerd from a template."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.config_text import Key, Syntax, Tree, Value, WantedKey, leaves
from installer.config_text.change import parse
from installer.engines.containerd import config as containerd
from installer.engines.containerd import effective
from installer.engines.containerd.engine import Containerd
from installer.errors import InstallerError
from installer.model.engine import (
    RUNC_TYPE,
    CommandLine,
    Configs,
    DropIns,
    DryRunCommand,
    EffectiveConfig,
    EngineState,
    Extras,
    Place,
    Proposal,
    ProposedFile,
    RuntimeEntry,
)

DATA: Final = PurePosixPath("/var/snap/microk8s")
ARGS: Final = DATA / "current/args"
TEMPLATE: Final = "containerd-template.toml"
RENDERED: Final = PurePosixPath("containerd.toml")
# The values that its wrapper puts in (microk8s-resources/wrappers/run-containerd-with-args). The first two
# depend on the node: the generated config has them.
TYPE: Final = "RUNTIME_TYPE"
USUAL: Final = {
    "SNAPSHOTTER": "overlayfs",
    TYPE: RUNC_TYPE,
    "SNAP": "/snap/microk8s/current",
    "SNAP_DATA": "/var/snap/microk8s/current",
}
ALWAYS: Final = {"RUNTIME": effective.BUILT_IN}
SPLIT_BY_ONE: Final = 3  # a text with one variable has three parts: before it, its name, after it
VARIABLE: Final = re.compile(r"\$\{(" + "|".join([*USUAL, *ALWAYS]) + r")\}")


def _propose(
    state: EngineState,
    configs: Configs,
    entries: tuple[RuntimeEntry, ...],
    extras: Extras,
    before: EffectiveConfig | None,
) -> Iterator[Proposal]:
    """Yield the proposals that have our runtimes in the template.

    Raises:
        InstallerError: the template is not there.
    """
    if state.config not in configs.trees:
        raise InstallerError(
            f"configure MicroK8s in {state.config} (it is not there, and MicroK8s does not start without)",
            remedy="put it back: the snap has one in /snap/microk8s/current/default-args",
        )
    template = configs.trees[state.config]
    values = _guess_values(template, _read_rendered(state))
    for proposal in containerd.propose(state, _render(state, configs), entries, extras, before):
        files: list[ProposedFile] = []
        for file in proposal.files:
            if file.path == state.config:
                files.append(_put_in_template(file, template, values))
            else:
                files.append(file)
        yield replace(proposal, files=tuple(files))


def _render(state: EngineState, configs: Configs) -> Configs:
    """Return the configs with the template as MicroK8s would render it."""
    path = state.config
    text = _render_template(state, configs.texts)
    tree = parse(text, Syntax.TOML, name=str(path))
    return Configs(texts={**configs.texts, path: text}, trees={**configs.trees, path: tree})


def _render_template(state: EngineState, texts: Mapping[PurePosixPath, str]) -> str:
    """Return the config that MicroK8s would generate of its template."""
    template = texts.get(state.config, "")
    tree = parse(template, Syntax.TOML, name=str(state.config))
    return _fill(template, _guess_values(tree, _read_rendered(state)))


def _read_rendered(state: EngineState) -> str:
    """Return the config that MicroK8s has generated at its last start; "" if unknown."""
    if state.rendered is None:
        return ""
    return state.rendered.content.decode(errors="replace")


def _guess_values(template: Tree, rendered: str) -> Mapping[str, str]:
    """Return the value of each variable, by the config that was generated last."""
    values = dict(USUAL)
    generated: dict[Key, Value] = {}
    with suppress(InstallerError):  # nobody corrects the generated config: the next start generates it anew
        generated = dict(leaves(parse(rendered, Syntax.TOML, name=str(RENDERED))))
    for key, worded in leaves(template):
        value = generated.get(key)
        if not isinstance(worded, str) or not isinstance(value, str):
            continue
        parts = VARIABLE.split(worded)
        if len(parts) != SPLIT_BY_ONE:
            continue
        before, name, after = parts
        if value.startswith(before) and value.endswith(after):
            values[name] = value[len(before) : len(value) - len(after)]
    return values | ALWAYS


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of its variables."""

    def value_of_variable(variable: re.Match[str]) -> str:
        return values[variable[1]]

    return VARIABLE.sub(value_of_variable, text)


def _put_in_template(file: ProposedFile, template: Tree, values: Mapping[str, str]) -> ProposedFile:
    """Return the proposed keys of the template in its own words: a value by a variable stays so."""
    present = dict(leaves(template))
    type_variable = f"${{{TYPE}}}"
    has_variable = type_variable in present.values()

    def word(wanted: WantedKey) -> WantedKey:
        worded = present.get(wanted.key)
        if isinstance(worded, str) and _fill(worded, values) == wanted.value:
            return replace(wanted, value=worded)
        # The type of runc depends on the boot (cgroups 1 or 2): a new runtime gets the variable, too.
        is_new_type = worded is None and wanted.key[-1] == "runtime_type"
        if is_new_type and has_variable and str(wanted.value) == values[TYPE]:
            return replace(wanted, value=type_variable)
        return wanted

    return replace(file, keys=tuple(word(wanted) for wanted in file.keys))


class MicroK8s(Containerd):
    """MicroK8s: at each start it generates the config of its containerd from a template, which is edited."""

    __slots__ = ()

    name = "microk8s"
    title = "MicroK8s"
    config = ARGS / TEMPLATE
    drop_ins = DropIns(imports=True)
    config_markers = ("/microk8s/",)
    units = ("snap.microk8s.daemon-containerd.service",)
    start_s = 60.0  # it waits for a default route at its start
    generated_config = RENDERED
    needs_root_file = True
    # A refresh copies the data of the snap, a revert takes the older copy again.
    copies = DATA / "*/args" / TEMPLATE
    program = PurePosixPath("/snap/microk8s/current/bin/containerd")
    unit = "snap.microk8s.daemon-containerd.service"
    socket = PurePosixPath("/var/snap/microk8s/common/run/containerd.sock")
    cmdline = CommandLine(config=())  # containerd is given the generated config
    state = Place(PurePosixPath("/var/snap/microk8s/common/run/containerd"), "--state", "state")
    data = None

    def propose(
        self,
        state: EngineState,
        configs: Configs,
        entries: tuple[RuntimeEntry, ...],
        extras: Extras,
        before: EffectiveConfig | None = None,
    ) -> Iterable[Proposal]:
        """Return the candidates that have our runtimes in the template.

        Raises:
            InstallerError: the template is not there.
        """
        return _propose(state, configs, entries, extras, before)

    def predict(self, state: EngineState, configs: Configs) -> EffectiveConfig:
        """Return the config in force, as MicroK8s would generate it."""
        return effective.predict(state, _render(state, configs))

    def describe_dry_run(self, state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
        """Return the dry run by containerd with the config that MicroK8s would generate."""
        rendered = _render_template(state, texts)
        return effective.describe_dry_run(state, {**texts, state.config: rendered})
