"""What the help of a verb shows: the flags that it heeds, in groups."""

from typing import Final

import click

WHAT: Final = (
    *("runtime", "mode", "toolkit_source", "driver_root", "runtime_name", "set_as_default", "crio_hook"),
    "accept_nvidia_visible_devices_envvar_when_unprivileged",
    "accept_nvidia_visible_devices_as_volume_mounts",
)
PLACES: Final = ("install_dir", "host_root", "mount", "config", "drop_in_config", "socket", "pid_file")
HOW: Final = ("restart_mode", "timeout", "on_exit", "in_use", "drift", "retry", "adopt")
TOLD: Final = ("metrics_textfile", "nfd_features", "metrics_listen")
NRI: Final = ("nri", "nri_socket", "nri_allow", "nri_name", "nri_index")
OUTPUT: Final = ("json", "show_secrets", "log_format", "help")
GROUPS: Final = {
    "What to install": WHAT,
    "Where things are": PLACES,
    "How it is done": HOW,
    "What monitoring is told": TOLD,
    "The NRI plugin": NRI,
    "Output": OUTPUT,
}
# What a verb takes and does not heed, so that one environment can serve all verbs.
UNHEEDED: Final = {
    "run": frozenset({"adopt"}),
    "install": frozenset({*NRI, "on_exit", "in_use", "drift", "adopt", "metrics_listen"}),
    "plan": frozenset({"on_exit", "in_use", "drift", "adopt", "pid_file"}),
    "uninstall": frozenset({*WHAT, *NRI, "on_exit", "drift", "retry", "metrics_listen"}) - {"runtime"},
}


class Verb(click.Command):
    """A verb whose help has its flags in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group that has a flag to show."""
        parameters = {parameter.name: parameter for parameter in self.get_params(ctx)}
        for title, fields in GROUPS.items():
            found = (parameters[field].get_help_record(ctx) for field in fields if field in parameters)
            if records := [record for record in found if record]:
                with formatter.section(title):
                    formatter.write_dl(records)
