"""Our own command line as click has it: help, completion, what is wrong; and every verb."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Final

import click
from click.core import ParameterSource

from installer import cli
from installer import log as logging
from installer.decide.errors import Exit
from installer.decide.options import Options
from installer.flags import FLAGS, SHOW_SECRETS, Flag, options_from
from installer.usage import NRI, UNHEEDED, Verb


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="node-toolkit-installer", message="%(prog)s %(version)s")
def program() -> None:
    """Install the NVIDIA container toolkit, configure the node's engines to use it, and undo all of it."""


class _Words(click.ParamType[str]):
    """Text; in an environment variable several are separated by commas."""

    name = "text"
    envvar_list_splitter = ","


class _Choices(click.Choice[str]):
    """One of a few words; in an environment variable several are separated by commas."""

    envvar_list_splitter = ","


def _option(flag: Flag, *, hidden: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    extra: dict[str, Any] = {"multiple": isinstance(flag.default, tuple)}
    name = flag.name
    if isinstance(flag.default, bool):
        name, extra = f"{name}/--no-{name.removeprefix('--')}", {}
    elif flag.choices:
        extra["type"] = _Choices(flag.choices)
    else:
        extra |= {"type": float if isinstance(flag.default, float) else _Words(), "metavar": flag.metavar}
    return click.option(
        name,
        flag.field,
        default=flag.default,
        envvar=flag.variable,
        help=flag.help,
        show_default=bool(flag.default),
        show_envvar=True,
        hidden=hidden,
        **extra,
    )


def _with_flags(verb: Callable[..., Any]) -> Callable[..., Any]:
    unheeded = UNHEEDED[verb.__name__]
    for flag in reversed(FLAGS):
        verb = _option(flag, hidden=flag.field in unheeded)(verb)
    return verb


def _given(values: dict[str, Any]) -> frozenset[str]:
    """Return the fields of those flags that somebody gave."""
    context = click.get_current_context()
    return frozenset(
        name for name in values if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    )


@program.command(cls=Verb)
@_with_flags
def run(**values: Any) -> Exit:
    """Install, configure, prove, publish readiness, wait; TERM, INT or QUIT undoes everything."""
    return cli.run(values, _given(values))


@program.command(cls=Verb)
@_with_flags
def install(**values: Any) -> Exit:
    """Install, configure and prove, and leave it in place."""
    return cli.install(values, _given(values))


@program.command(cls=Verb)
@_with_flags
def uninstall(**values: Any) -> Exit:
    """Undo everything, whoever installed it."""
    return cli.uninstall(values, _given(values))


@program.command(cls=Verb)
@click.option("--json", is_flag=True, help="Print JSON.")
@click.option(
    "--show-secrets",
    is_flag=True,
    envvar=SHOW_SECRETS,
    show_envvar=True,
    help="Show passwords and tokens of the configs, too.",
)
@_with_flags
def plan(*, json: bool, show_secrets: bool, **values: Any) -> Exit:
    """Print what install would change, and change nothing. Exits 10 where it would change something."""
    from installer.show import show_plan

    return show_plan(cli.options_of(values, _given(values)), show_secrets=show_secrets, as_json=json)


@program.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def status(words: tuple[str, ...]) -> Exit:
    """Tell what is installed, drifted or pending (see status --help)."""
    from installer.status import main as tell

    return Exit(tell(["status", *words]))


@program.command()
def demo() -> Exit:
    """Show the whole cycle in a throw-away root: no root rights, no engine."""
    from installer.demo import demo as show

    return show()


# Flags of the verbs that only look: where things are, and how events are written.
LOOKING: Final = frozenset(
    {"install_dir", "host_root", "mount", "driver_root", "config", "socket", "timeout", "log_format"}
)


# Flags of the verb that asks the waiting run.
ASKING: Final = frozenset({"host_root", "mount", "pid_file", "log_format"})


def _some_options(values: dict[str, Any]) -> Options:
    """Return what the flags of a verb that has only some of them come to."""
    logging.configure(logging.LogFormat(values["log_format"]))
    defaults = {flag.field: flag.default for flag in FLAGS}
    return options_from(defaults | values, _given(values))


def _with_some_flags(verb: Callable[..., Any], fields: frozenset[str]) -> Callable[..., Any]:
    for flag in reversed([flag for flag in FLAGS if flag.field in fields]):
        verb = _option(flag)(verb)
    return verb


def _looking(verb: Callable[..., Exit], fields: frozenset[str] = LOOKING) -> Callable[..., Any]:
    """Give a verb that changes nothing itself its flags; it gets options and whether to print JSON."""

    def call(*, json: bool, **values: Any) -> Exit:
        return verb(_some_options(values), as_json=json)

    called = _with_some_flags(update_wrapper(call, verb), fields)
    return click.option("--json", is_flag=True, help="Print JSON.")(called)


def _asking(verb: Callable[..., Exit]) -> Callable[..., Any]:
    return _looking(verb, ASKING)


def _examining(verb: Callable[..., Exit]) -> Callable[..., Any]:
    return _looking(verb, LOOKING | {"nri_socket"})


@program.command(cls=Verb)
@_examining
def doctor(options: Options, *, as_json: bool) -> Exit:
    """Tell what is wrong with this node, installed or not, and change nothing. Exits 1 if something is."""
    from installer.doctor import doctor as examine

    return examine(options, as_json=as_json)


@program.command(cls=Verb)
@_asking
def reconcile(options: Options, *, as_json: bool) -> Exit:
    """Have the run that waits on this node look now, repair it, and tell. Exits 3 if nobody waits."""
    from installer.reconcile import reconcile as ask

    return ask(options, as_json=as_json)


def _serving(verb: Callable[..., Any]) -> Callable[..., Any]:
    return _with_some_flags(verb, frozenset({*NRI, "host_root", "mount", "log_format"} - {"nri"}))


@program.command(cls=Verb)
@_serving
def nri(**values: Any) -> Exit:
    """Serve an engine over NRI until told to stop: CDI devices for the pods that may ask for them."""
    from installer.nri import serve

    return serve(_some_options(values), values["log_format"])


@program.command(cls=Verb)
@_looking
def verify(options: Options, *, as_json: bool) -> Exit:
    """Run a container on each of our runtimes through each engine, and remove it. Exits 1 if one fails."""
    from installer.verify import verify as prove

    return prove(options, as_json=as_json)


@program.command(cls=Verb)
@click.argument("name", default="node-toolkit-installer")
@_option(next(flag for flag in FLAGS if flag.field == "log_format"))
def untaint(name: str, log_format: str) -> Exit:
    """In a pod: free each node of its startup taint once the toolkit's pod there, labelled NAME, is ready."""
    from installer.host.kubernetes import Api
    from installer.untaint import untaint as watch

    logging.configure(logging.LogFormat(log_format))
    watch(Api.of_this_pod(), name)


def called(argv: list[str]) -> int:
    """Run one verb; return its exit code, also where its words are wrong."""
    try:
        return int(program.main(argv, prog_name="toolkit-installer", standalone_mode=False) or Exit.OK)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
