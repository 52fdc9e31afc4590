"""Our own command line: every verb, and what click makes of the one table of flags."""

import os
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import update_wrapper
from pathlib import Path, PurePosixPath
from typing import Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from installer.cli import flags
from installer.cli import log as logging
from installer.errors import Exit
from installer.host import locks
from installer.host.events import log
from installer.host.files import Host, read_json_of_root
from installer.host.kernel import OWN, allow_files, mount_namespace
from installer.model.files import ROOT
from installer.model.options import OPTIONS_SUFFIX, Options, RunRequest

INSPECTING: Final = frozenset(
    {"install_dir", "host_root", "mount", "driver_root", "config", "socket", "timeout", "log_format"}
)
# Which flags a verb has; all others have all of them, so that one environment can serve them.
SOME: Final = {
    "status": frozenset({"install_dir", "host_root", "mount", "pid_file", "nri_socket"}),
    "doctor": INSPECTING | {"nri_socket"},
    "verify": INSPECTING,
    "reconcile": frozenset({"host_root", "mount", "pid_file", "log_format"}),
    "nri": (flags.GROUPS[flags.NRI] - {"nri"}) | {"host_root", "mount", "log_format"},
    "untaint": frozenset({"log_format"}),
}
# What a verb takes and does not heed: its help leaves it out.
UNHEEDED: Final = {
    "run": frozenset({"adopt"}),
    "install": flags.OF_RUN | {"in_use", "adopt"},
    "plan": frozenset({"on_exit", "in_use", "drift", "adopt", "pid_file"}),
    "uninstall": flags.OF_RUN
    | (flags.GROUPS[flags.ENGINE] - {"runtime"})
    | flags.GROUPS[flags.TOOLKIT]
    | {"retry"},
}
# What a flag does to an uninstall, where that is not what it does to an install.
AT_UNINSTALL: Final = {
    "runtime": "Engine that --adopt examines; our changes are undone on all engines.",
    "restart_mode": "Reload or restart engines; with none restart them yourself afterwards, Docker too.",
}
SECRETS: Final = "Show passwords and tokens of the configs, too."
VARIABLES: Final = (
    "A flag with a value, or with --[no-], can also be set by a variable: --runtime-name by"
    " TOOLKIT_INSTALLER_RUNTIME_NAME."
)
click.ParamType.envvar_list_splitter = ","  # of several words in an environment variable
# Which do not look at the node of a ``run`` beside them: in its pod host root and mounts are that one's.
ALONE: Final = frozenset({"run", "nri", "untaint"})
OF_A_POD: Final = frozenset({"run", "install", "uninstall", "nri", "untaint"})


class Verb(click.Command):
    """A verb whose help has its flags in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group that has a flag to show; what is no row of the table is output."""
        options = [each for each in self.params if isinstance(each, click.Option)]
        own = [each for each in options if each.name not in flags.DEFAULTS]
        for title, fields in flags.GROUPS.items():
            listed = own if title == flags.OUTPUT else []
            listed = [*listed, *(each for each in options if each.name in fields)]
            if records := [_short(record) for each in listed if (record := each.get_help_record(ctx))]:
                with formatter.section(title):
                    formatter.write_dl(records)
        formatter.write_paragraph()
        formatter.write_text(VARIABLES)


def _short(record: tuple[str, str]) -> tuple[str, str]:
    """Return a line of help with ``--[no-]x`` for both names of a switch: together they can be too long."""
    names, text = record
    return re.sub(r"^--(\S+) / --no-\1$", r"--[no-]\1", names), text.replace("(on)", "on")


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's call
    if asked:
        from installer.cli.version import describe_version

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


class _Option(click.Option):
    """A flag whose variable is named by an error; the help of a verb tells of variables once."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return f"{super().get_error_hint(ctx)} (env var: '{self.envvar}')"


def _verb(act: Callable[..., Exit]) -> click.Command:
    """Make a function a verb: it gets what its flags of the table come to, and any other flag by name."""
    name = act.__name__

    def call(**values: Any) -> Exit:
        others = {field: values.pop(field) for field in [*values] if field not in flags.DEFAULTS}
        return act(_options(name, values), **others)

    called: Callable[..., Any] = update_wrapper(call, act)
    for flag in (each for each in reversed(flags.FLAGS) if each.field in SOME.get(name, flags.DEFAULTS)):
        usage, extra = flag.name, dict[str, Any]()
        if isinstance(flag.default, bool):
            usage = f"{usage}/--no-{usage.removeprefix('--')}"
        elif flag.choices:
            extra = {"type": click.Choice(flag.choices)}
        else:
            extra = {"type": float if isinstance(flag.default, float) else str, "metavar": flag.metavar}
            if flag.metavar.endswith("PATH"):
                extra["shell_complete"] = lambda *words: [CompletionItem(words[-1], type="file")]
        words = AT_UNINSTALL.get(flag.field, flag.help) if name == "uninstall" else flag.help
        extra |= {"multiple": isinstance(flag.default, tuple), "envvar": flag.variable, "help": words}
        extra |= {"default": flag.default, "cls": _Option}
        extra["show_default"] = "on" if flag.default is True else bool(flag.default)
        hidden = flag.field in UNHEEDED.get(name, ())
        called = click.option(usage, flag.field, hidden=hidden, **extra)(called)
    return program.command(cls=Verb)(called)


def _options(verb: str, values: dict[str, Any]) -> Options:
    """Return what the flags of a verb come to; raise where they make no sense."""
    # What has no --log-format answers a person, or a kubelet that shows the sentence to one.
    logging.configure(values.get("log_format", "text"))
    whole = verb not in SOME
    known = {*(flag.variable for flag in flags.FLAGS), flags.SHOW_SECRETS}
    ours = sorted(name for name in os.environ if name.startswith(flags.PREFIX))
    for variable in (each for each in ours if whole and each not in known):
        meant = next(iter(get_close_matches(variable, known, n=1)), "")
        log.warning("unknown variable ignored", variable=variable, meant=meant)
    source = click.get_current_context().get_parameter_source
    given = frozenset(name for name in values if source(name) is not ParameterSource.DEFAULT)
    if verb == "uninstall":
        # How an install would be done is not heeded, so what is wrong with it refuses no uninstall.
        for field in ("mode", "driver_root", "toolkit_source"):
            values[field] = flags.DEFAULTS[field]
    values = flags.DEFAULTS | values
    if verb not in ALONE and given.isdisjoint({"host_root", "mount"}):
        beside = _find_run_beside(Path(values["pid_file"]))
        if beside is not None:
            values["host_root"] = str(beside.host_root)
            values["mount"] = tuple(f"{path}={here}" for path, here in beside.mounts)
    options = flags.options_from(values, given)
    if whole:
        allow_files()
    return options


def _find_run_beside(pid_file: Path) -> Options | None:
    """Return the options of the ``run`` that waits in this container, and sees files as this process does."""
    pid = locks.holder_of(pid_file)
    own = mount_namespace(OWN)
    if not (pid and own and mount_namespace(locks.PROC / str(pid)) == own):
        return None
    file = PurePosixPath(f"{pid_file}{OPTIONS_SUFFIX}")
    request = read_json_of_root(Host.under(ROOT), file, RunRequest)
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
def plan(options: Options, *, as_json: bool, show_secrets: bool) -> Exit:
    """Print what install would change, and change nothing. Exits 10 if something would change."""
    from installer.cli import output

    return output.show_plan(options, show_secrets=show_secrets, as_json=as_json)


@_verb
@click.option("--ready", is_flag=True, help="Exit with 0 if run is ready, else 1 and a reason.")
@click.option("--alive", is_flag=True, help="Exit with 0 if run holds its pidfile, else with 1.")
@click.option("--deep", is_flag=True, help="Compare the digests of the installed programs.")
@_json
def status(options: Options, *, ready: bool, alive: bool, as_json: bool, deep: bool) -> Exit:
    """Show what is installed, drifted or pending."""
    from installer.report import status as report

    if ready and alive:
        raise click.UsageError("Give --ready or --alive, not both.")
    shows = {"ready": ready, "as_json": as_json, "deep": deep}
    return report.alive(options) if alive else report.show_status(options, **shows)


@program.command()
def demo() -> Exit:
    """Show install and uninstall in a temporary directory. Needs no root rights and no engine."""
    from installer.cli import demo as cycle

    return cycle.demo()


@_verb
@click.option("--all", "show_all", is_flag=True, help="Show also the checks that do not apply.")
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
    """Run one verb; return its exit code."""
    logging.configure("auto")
    # What only looks is called beside the one that a pod is for.
    return logging.conclude(lambda: _call(argv), leaves=not OF_A_POD.isdisjoint(argv[:1]))


def _call(argv: Sequence[str]) -> int:
    try:
        return int(program.main([*argv], prog_name="toolkit-installer", standalone_mode=False) or Exit.OK)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
    except click.ClickException as error:
        error.show()
    return Exit.USAGE
