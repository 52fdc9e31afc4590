"""Our own command line: all verbs, with options of click made from the table of flags."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial, update_wrapper
from pathlib import Path, PurePosixPath
from typing import Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from installer.cli import flags
from installer.cli import log as logging
from installer.engines import ENGINES
from installer.errors import Exit, StoppedError
from installer.host import locks
from installer.host.events import SERVICES, log
from installer.host.files import Host, read_json_of_root
from installer.host.kernel import OWN, allow_files, mount_namespace
from installer.model.files import ROOT
from installer.model.options import OPTIONS_SUFFIX, Options, RunRequest

INSPECTING: Final = frozenset(
    {"install_dir", "host_root", "mount", "driver_root", "config", "socket", "timeout", "log_format"}
)
# The flags of a verb; the other verbs have all flags, so that one environment can serve them all.
SOME: Final = {
    "status": frozenset({"install_dir", "host_root", "mount", "pid_file", "nri_socket"}),
    "doctor": INSPECTING | {"nri_socket"},
    "verify": INSPECTING,
    "reconcile": frozenset({"host_root", "mount", "pid_file", "log_format"}),
    "nri": (flags.GROUPS[flags.NRI] - {"nri"}) | {"host_root", "mount", "log_format"},
    "untaint": frozenset({"log_format"}),
}
# Flags that a verb accepts and ignores: its help leaves them out.
UNHEEDED: Final = {
    "run": frozenset({"adopt"}),
    "install": flags.OF_RUN | {"in_use", "adopt"},
    "plan": (flags.GROUPS[flags.CLUSTER] - {"node_name"})
    | {"on_exit", "in_use", "drift", "adopt", "pid_file"},
    "uninstall": (
        flags.OF_RUN | (flags.GROUPS[flags.ENGINE] - {"runtime"}) | flags.GROUPS[flags.TOOLKIT] | {"retry"}
    ),
}
# The help of a flag with another effect on an uninstall than on an install.
AT_UNINSTALL: Final = {
    "runtime": "Engine that --adopt examines; our changes are undone on all engines.",
    "restart_mode": "Reload or restart engines; with none restart them yourself afterwards, Docker too.",
}
SECRETS: Final = "Show the passwords and tokens in the configs, too."
VARIABLES: Final = (
    "A flag with a value, or with --[no-], can also be set by a variable: --runtime-name by"
    " TOOLKIT_INSTALLER_RUNTIME_NAME."
)
# What stands in the place of a flag of NVIDIA's installer that has another name and form here.
FOR_NVIDIAS: Final = {
    "no-daemon": "toolkit-installer install ends when it is done",
    "cdi-enabled": "use --mode cdi",
    "enable-cdi-in-runtime": "use --mode cdi",
    "enable-nri-plugin": "use --nri",
    "config-mode": "use --crio-hook",
}
# Flags of `nvidia-ctk runtime configure`.
OF_NVIDIA_CTK: Final = frozenset({"--cdi.enabled", "--cdi.enable"})
click.ParamType.envvar_list_splitter = ","  # between the values in an environment variable
# Verbs that do not take the host's root and mounts from a ``run`` in the same container.
ALONE: Final = frozenset({"run", "nri", "untaint"})
# Verbs of other programs, and ours.
SYNONYMS: Final = {**dict.fromkeys(("remove", "delete", "undo", "stop"), "uninstall"), "check": "status"}
# Verbs that configure the engines in --runtime.
INSTALLING: Final = frozenset({"run", "install", "plan"})
# Verbs that a pod is for.
OF_A_POD: Final = frozenset({"run", "install", "uninstall", "nri", "untaint"})


class Command(click.Command):
    """A verb that answers a word without a flag by the flag that was meant."""

    allow_extra_args = True  # click's own error names no remedy

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of the verb; raise UsageError for words that belong to no flag."""
        words = super().parse_args(ctx, args)
        if words and not ctx.resilient_parsing:
            raise click.UsageError(_explain_words(str(ctx.info_name), words), ctx)
        return words


def _explain_words(verb: str, words: Sequence[str]) -> str:
    """Return the error for words that belong to no flag of a verb."""
    engines = [word.lower() for word in words]
    if verb in INSTALLING and ENGINES.keys() >= set(engines):
        return f"Write the engine as a flag: toolkit-installer {verb} {_spell_engines(engines)}"
    if click.types.BoolParamType.bool_states.keys() >= set(words):
        return f"{verb} takes no word '{' '.join(words)}': a switch has no value."
    return f"{verb} takes no word '{' '.join(words)}'."


class Verb(Command):
    """A verb with groups of flags in the help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group with a visible flag; an option outside the table is output."""
        options = [each for each in self.params if isinstance(each, click.Option)]
        for title, fields in flags.GROUPS.items():
            listed = []
            if title == flags.OUTPUT:
                listed = [each for each in options if each.name not in flags.DEFAULTS]
            listed += [each for each in options if each.name in fields]
            records = [each.get_help_record(ctx) for each in listed]
            visible = [_short(record) for record in records if record is not None]
            if visible:
                with formatter.section(title):
                    formatter.write_dl(visible)
        formatter.write_paragraph()
        formatter.write_text(VARIABLES)


def _short(record: tuple[str, str]) -> tuple[str, str]:
    """Return a line of help with ``--[no-]x`` for both names of a switch: together they can be too long."""
    names, text = record
    names = re.sub(r"^--(\S+) / --no-\1$", r"--[no-]\1", names)
    return names, text.replace("(on)", "on")


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's call
    if asked:
        from installer.host.own_version import describe_version

        click.echo(f"{ctx.find_root().info_name} {describe_version()}")
        ctx.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def program() -> None:
    """Install the NVIDIA container toolkit, configure the node's engines to use it, and undo all of it."""


class _Number(click.types.FloatParamType):
    """A number, with an error that says so."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail for other text."""
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number.", param, ctx)


class _Switch(click.types.BoolParamType):
    """On or off, with an error that names two words of the many that count."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return whether a switch is on."""
        if isinstance(value, str) and value.strip().lower() not in self.bool_states:
            self.fail(f"{value!r} is neither true nor false.", param, ctx)
        return super().convert(value, param, ctx)


class _Choice(click.Choice[str]):
    """One of several words, with an error that separates words between commas."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the error for another word."""
        words = str(value).split(",")
        if len(words) > 1 and ENGINES.keys() >= set(words):
            return f"{value!r} is not one engine: write {_spell_engines(words)}."
        return super().get_invalid_choice_message(value, ctx)


def _spell_engines(names: Sequence[str]) -> str:
    """Return the flags for several engines."""
    return " ".join(f"--runtime {name}" for name in names)


class _Option(click.Option):
    """A flag with the variable in errors; the help of a verb explains variables once, at the end."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return f"{super().get_error_hint(ctx)} (env var: '{self.envvar}')"


def _verb(act: Callable[..., Exit]) -> click.Command:
    """Make a verb of a function, which gets the options of the table as ``Options``, and others by name."""
    verb = act.__name__

    def call(**values: Any) -> Exit:
        others = {}
        for field in [*values]:
            if field not in flags.DEFAULTS:
                others[field] = values.pop(field)
        return act(_options(verb, values), **others)

    params: list[click.Parameter] = []
    for flag in flags.FLAGS:
        field = flag.field
        if field in SOME.get(verb, flags.DEFAULTS):
            help_text = flag.help
            if verb == "uninstall":
                help_text = AT_UNINSTALL.get(field, help_text)
            params.append(_option(flag, help_text, hidden=field in UNHEEDED.get(verb, ())))
    return program.command(cls=Verb, params=params)(update_wrapper(call, act))


@cache
def _option(flag: flags.Flag, help_text: str, *, hidden: bool) -> click.Option:
    """Return click's option for a flag; most verbs have the same."""
    usage = flag.name
    extra: dict[str, Any] = {}
    if isinstance(flag.default, bool):
        usage = f"{usage}/--no-{usage.removeprefix('--')}"
        extra["type"] = _Switch()
    elif flag.choices:
        extra["type"] = _Choice(flag.choices)
    else:
        extra["type"] = _Number() if isinstance(flag.default, float) else str
        extra["metavar"] = flag.metavar
        if flag.metavar.endswith("PATH"):
            extra["shell_complete"] = _complete_path
    return _Option(
        [usage, flag.field],
        default=flag.default,
        envvar=flag.variable,
        help=help_text,
        hidden=hidden,
        multiple=isinstance(flag.default, tuple),
        show_default="on" if flag.default is True else bool(flag.default),
        **extra,
    )


def _complete_path(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete a path."""
    return [CompletionItem(incomplete, type="file")]


def _options(verb: str, values: dict[str, Any]) -> Options:
    """Build the options of a verb from its flags; raise UsageError for a contradiction."""
    logging.configure(_log_format(verb, values))
    has_all_flags = verb not in SOME
    if has_all_flags:
        _warn_of_unknown_variables()
    source = click.get_current_context().get_parameter_source
    given = frozenset(name for name in values if source(name) is not ParameterSource.DEFAULT)
    if verb == "uninstall":
        # Flags about an install have no effect here, so a mistake in them refuses no uninstall.
        for field in ("mode", "driver_root", "toolkit_source"):
            values[field] = flags.DEFAULTS[field]
    values = flags.DEFAULTS | values
    if verb not in ALONE and "mount" not in given:
        named_root = PurePosixPath(values["host_root"]) if "host_root" in given else None
        beside = _find_run_beside(Path(values["pid_file"]))
        # The mounts of a run belong to its host root.
        if beside is not None and named_root in {None, beside.host_root}:
            values["host_root"] = str(beside.host_root)
            values["mount"] = tuple(f"{path}={here}" for path, here in beside.mounts)
    options = flags.options_from(values, given)
    if verb in INSTALLING:
        flags.refuse_unused_paths(options)
        flags.refuse_no_root(options)
        flags.refuse_mounted_toolkit(options)
    if has_all_flags:
        allow_files()
    return options


def _log_format(verb: str, values: Mapping[str, Any]) -> str:
    """Return the form of a verb's events: a verb that answers and ends answers a person, also in a pipe.

    A verb without --log-format is one of these; a kubelet shows its sentence to a person.
    """
    wanted: str = values.get("log_format", "auto")
    if wanted == "auto" and verb not in SERVICES:
        return "text"
    return wanted


def _warn_of_unknown_variables() -> None:
    """Log a warning for each variable with our prefix and without a flag."""
    known = {flag.variable for flag in flags.FLAGS}
    known.add(flags.SHOW_SECRETS)
    for variable in sorted(os.environ):
        if variable.startswith(flags.PREFIX) and variable not in known:
            meant = next(iter(get_close_matches(variable, known, n=1)), "")
            log.warning("unknown variable ignored", variable=variable, meant=meant)


def _find_run_beside(pid_file: Path) -> Options | None:
    """Return the options of a waiting ``run`` in this container; None without a ``run``."""
    pid = locks.holder_of(pid_file)
    own = mount_namespace(OWN)
    # In the same mount namespace the paths of ``run`` are valid for this process.
    if not pid or not own or mount_namespace(locks.PROC / str(pid)) != own:
        return None
    options_file = PurePosixPath(f"{pid_file}{OPTIONS_SUFFIX}")
    request = read_json_of_root(Host.under(ROOT), options_file, RunRequest)
    return request.options if request is not None else None


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@_verb
def run(options: Options) -> Exit:
    """Install, publish readiness, then repair drift until stopped. TERM, INT and QUIT undo everything."""
    from installer.lifecycle import install as daemon

    return daemon.run(RunRequest(options, nvidia=False, log_format=logging.current_format()))


@_verb
def install(options: Options) -> Exit:
    """Install the toolkit, configure the engines, verify, exit."""
    from installer.lifecycle import install as daemon

    return daemon.install(options)


@_verb
def uninstall(options: Options) -> Exit:
    """Undo everything that install or run did on this node."""
    from installer.lifecycle import uninstall as undo

    return undo.uninstall(options)


@_verb
@_json
@click.option("--show-secrets", is_flag=True, envvar=flags.SHOW_SECRETS, help=SECRETS)
@click.option("--summary", is_flag=True, help="End with one line: the node and what install would do.")
def plan(options: Options, *, as_json: bool, show_secrets: bool, summary: bool) -> Exit:
    """Print what install would change, and change nothing. Exits 10 if something would change."""
    from installer.cli import output

    if as_json and summary:
        raise click.UsageError("Give --json or --summary, not both.")
    if summary:
        return output.show_plan_and_summary(options, show_secrets=show_secrets)
    return output.show_plan(options, show_secrets=show_secrets, as_json=as_json)


@_verb
@click.option("--ready", is_flag=True, help="Exit 0 if run is ready; else print why and exit 1.")
@click.option("--alive", is_flag=True, help="Exit with 0 if run holds its pidfile; else exit with 1.")
@click.option("--deep", is_flag=True, help="Compare the digests of the installed programs.")
@_json
def status(options: Options, *, ready: bool, alive: bool, as_json: bool, deep: bool) -> Exit:
    """Show what is installed, drifted or pending."""
    from installer.report import status as report

    if ready and alive:
        raise click.UsageError("Give --ready or --alive, not both.")
    if alive:
        return report.alive(options)
    return report.show_status(options, ready=ready, as_json=as_json, deep=deep)


@program.command(cls=Command)
def demo() -> Exit:
    """Show install and uninstall in a temporary directory. Needs no root rights and no engine."""
    from installer.cli import demo as cycle

    return cycle.demo()


@_verb
@click.option("--all", "show_all", is_flag=True, help="Also show the checks that do not apply.")
@_json
def doctor(options: Options, *, as_json: bool, show_all: bool) -> Exit:
    """Check this node, installed or not, and change nothing. Exits 1 if something is wrong."""
    from shutil import get_terminal_size

    from installer.report.doctor import verb

    columns = get_terminal_size((verb.WIDEST, 0)).columns
    return verb.doctor(options, columns, as_json=as_json, show_all=show_all)


@_verb
@_json
def reconcile(options: Options, *, as_json: bool) -> Exit:
    """Make the waiting run check and repair this node now. Exits 3 if no run waits."""
    from installer.report import status as report

    return report.reconcile(options, as_json=as_json)


@_verb
def nri(options: Options) -> Exit:
    """Run the NRI plugin: CDI devices for pods that may request them."""
    from installer.nri.state import serve

    return serve(options, logging.current_format())


@_verb
@_json
def verify(options: Options, *, as_json: bool) -> Exit:
    """Run and remove a test container on each of our runtimes. Exits 1 if one fails."""
    from installer.report import verify as report

    return report.verify(options, as_json=as_json)


@_verb
@click.argument("name", default="node-toolkit-installer")
def untaint(_: Options, name: str) -> Exit:
    """Remove the startup taint of nodes whose toolkit pod is ready. Runs in a pod; NAME is their label."""
    from installer.host.kubernetes import Api
    from installer.report import untaint as report

    report.untaint(Api.of_this_pod(), name)


def main(argv: Sequence[str]) -> int:
    """Run a verb; return the exit code."""
    logging.configure(_log_format("".join(argv[:1]), {}))
    # Any other verb runs beside the verb that the pod is for, which leaves the outcome to Kubernetes.
    leaves = bool(argv) and argv[0] in OF_A_POD
    return logging.conclude(partial(_call, argv), leaves=leaves)


def _call(argv: Sequence[str]) -> int:
    color = None if logging.wants_colors() else False
    try:
        code = program.main([*argv], prog_name="toolkit-installer", standalone_mode=False, color=color)
        return int(code or Exit.OK)
    except click.exceptions.Abort as error:  # an interrupt of demo, which leaves signals to its children
        raise StoppedError from error
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
    except click.NoSuchOption as error:
        _explain_option(error).show()
    except click.exceptions.NoSuchCommand as error:
        _explain_verb(error, argv).show()
    except click.ClickException as error:
        error.show()
    return Exit.USAGE


def _explain_option(error: click.NoSuchOption) -> click.UsageError:
    """Return an error for an unknown option; a flag of ours may be in the wrong place."""
    name = error.option_name
    if name == "--dry-run":
        return click.UsageError("Use toolkit-installer plan: it shows what install would change.", error.ctx)
    if name not in {flag.name for flag in flags.FLAGS}:
        sentence = _explain_nvidias_option(name)
        return click.UsageError(sentence, error.ctx) if sentence else error
    if error.ctx is None:
        return error
    if error.ctx.command is program:
        return click.UsageError(f"Write {name} after the verb: toolkit-installer VERB {name} ...", error.ctx)
    return click.UsageError(f"{error.ctx.info_name} takes no {name}.", error.ctx)


def _explain_nvidias_option(name: str) -> str:
    """Return a sentence for a flag of NVIDIA's programs, with our flag if there is one; "" for another."""
    from installer.cli import nvidia_flags

    if name in OF_NVIDIA_CTK:
        return f"{name} is a flag of NVIDIA's nvidia-ctk: here use --mode cdi."
    theirs = name.removeprefix("--")
    row = next((row for row in nvidia_flags.rows() if theirs in row.names), None)
    if row is None or not name.startswith("--"):
        return ""
    ours = FOR_NVIDIAS.get(row.name, "")
    same = f"--{row.own or row.name}"
    if not ours and same in {flag.name for flag in flags.FLAGS}:
        ours = f"use {same}"
    here = f"here {ours}; " if ours else ""
    return f"{name} is a flag of NVIDIA's installer: {here}nvidia-ctk-installer takes NVIDIA's command line."


def _explain_verb(error: click.exceptions.NoSuchCommand, words: Sequence[str]) -> click.UsageError:
    """Return an error for an unknown verb; other programs have other verbs, or verbs where we have flags.

    Args:
        error: click's error.
        words: the command line.
    """
    word = error.command_name
    if word == "help":
        verb = next((f"{verb} " for verb in words if verb in program.commands), "")
        return click.UsageError(f"Write toolkit-installer {verb}--help.", error.ctx)
    if word == "version":
        return click.UsageError("Write toolkit-installer --version.", error.ctx)
    if word in SYNONYMS:
        return click.UsageError(f"No such command '{word}'. Did you mean '{SYNONYMS[word]}'?", error.ctx)
    return error
