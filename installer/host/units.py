"""What systemd tells of a unit: over a bus, or by the host's systemctl."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from msgspec import Struct

from installer.errors import InstallerError
from installer.host import systemd
from installer.host.files import Host
from installer.host.programs import Ran
from installer.host.systemd import Bus, NoBusError, run_program
from installer.model.files import SYSTEM_BUSES

ASK_S: Final = 20.0  # whoever is on the system bus can keep systemd busy for that long
STOPPING: Final = "deactivating"
AGAIN: Final = "auto-restart"
MASKED: Final = "masked"
REFUSING: Final = ("RefuseManualStop", "RefuseManualStart")
SHOWN: Final = (
    *("LoadState", "ActiveState", "SubState", "MainPID", "CanReload", "Job", "InvocationID", "Result"),
    *("ReloadResult", "Listen", "KillMode", *REFUSING),
)
ROOT: Final = PurePosixPath("/")
T = TypeVar("T")


class Condition(Struct, frozen=True):
    """What has to hold by itself; of those that are written with a ``|`` another may do."""

    setting: str
    negated: bool
    value: str

    def __str__(self) -> str:
        return f"{self.setting}={'!' * self.negated}{self.value}"


class UnitStart(Struct, frozen=True):
    """How a unit starts its service, as systemd has read it: its program first, variables as written.

    ``needed`` are the environment files that have to be there, ``before`` the commands that have to succeed
    first, by their setting. ``elsewhere`` tells that the service has a
    root of its own, in which its programs are looked for. ``refuses`` are the settings for which systemd
    lets nobody restart it; ``kill_mode`` says what a stop ends besides the service.
    """

    words: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    environment_files: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    before: tuple[tuple[str, tuple[str, ...]], ...] = ()
    conditions: tuple[Condition, ...] = ()
    elsewhere: bool = False
    refuses: tuple[str, ...] = ()
    kill_mode: str = ""
    masked: bool = False

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "UnitStart":
        """Return what the properties of a service say (org.freedesktop.systemd1(5))."""
        if answer["LoadState"] == MASKED:
            return cls(masked=True)
        files = answer.get("EnvironmentFiles", ())
        return cls(
            words=tuple(answer["ExecStart"][-1][1]) if answer.get("ExecStart") else (),
            environment=tuple(answer.get("Environment", ())),
            environment_files=tuple(path for path, _ in files),
            needed=tuple(path for path, optional in files if not optional),
            before=tuple(
                (setting, tuple(words))
                for setting in ("ExecCondition", "ExecStartPre")  # systemd before 243 knows but the second
                for _, words, may_fail, *_ in answer.get(setting, ())
                if not may_fail
            ),
            conditions=tuple(
                Condition(setting, negated, value)
                for name in ("Conditions", "Asserts")
                for setting, either, negated, value, *_ in answer.get(name, ())
                if not either
            ),
            elsewhere=bool(answer.get("RootDirectory") or answer.get("RootImage")),
            refuses=tuple(name for name in REFUSING if answer.get(name)),
            kill_mode=str(answer.get("KillMode", "")),
        )


class Unit(Struct, frozen=True):
    """A unit as systemd tells of it, in its words.

    ``main_pid`` is in systemd's pid namespace, 0 if none runs; ``job`` is 0 if nothing is being done to it;
    ``invocation`` is another one after each start; ``result`` is how the last run of a service ended,
    "success" while it runs well; ``listens`` are the places that a socket unit listens on.
    """

    load: str = ""
    active: str = ""
    sub: str = ""
    main_pid: int = 0
    can_reload: bool = False
    job: int = 0
    invocation: str = ""
    result: str = ""
    reload_result: str = ""
    listens: tuple[str, ...] = ()
    start: UnitStart = UnitStart()

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Unit":
        """Return what the properties of a unit say."""
        return cls(
            load=str(answer["LoadState"]),
            active=str(answer["ActiveState"]),
            sub=str(answer["SubState"]),
            main_pid=int(answer.get("MainPID", 0)),
            can_reload=bool(answer["CanReload"]),
            job=int(answer["Job"][0]),
            invocation=bytes(list(answer["InvocationID"])).hex(),
            result=str(answer.get("Result", "")),
            reload_result=str(answer.get("ReloadResult", "")),
            listens=tuple(str(place) for _, place in answer.get("Listen", ())),
            start=UnitStart.of(answer),
        )

    @classmethod
    def shown(cls, text: str) -> "Unit":
        """Return what ``systemctl show`` prints in one word each: of how it starts that is not much."""
        lines = [
            (name, value)
            for name, equals, value in (line.partition("=") for line in text.split("\n"))
            if equals
        ]
        words = dict.fromkeys(SHOWN, "") | dict(lines)
        flags = {name: words[name] == "yes" for name in ("CanReload", *REFUSING)}
        # A line for each place: "/run/docker.sock (Stream)".
        listens = [("", value.rpartition(" (")[0]) for name, value in lines if name == "Listen"]
        invocation, job = bytes.fromhex(words["InvocationID"]), (words["Job"] or 0,)
        numbers = {"MainPID": words["MainPID"] or 0, "Job": job, "InvocationID": invocation}
        return cls.of(words | flags | numbers | {"Listen": listens})

    @property
    def run(self) -> tuple[object, ...]:
        """What is another thing once something was done to a unit, whatever is queued for it."""
        return self.active, self.sub, self.main_pid, self.invocation

    @property
    def is_at_rest(self) -> bool:
        """Whether it is stopped and stays so; one that systemd starts again in a moment is not."""
        return self.active in {"", "inactive", "failed"} and not self.job

    @property
    def is_down(self) -> bool:
        """Whether it still stops, or has stopped and waits for systemd to start it."""
        return self.active == STOPPING or bool(self.job and self.active in {"inactive", "failed"})


def buses(host: Host) -> tuple[Path, ...]:
    """Return where systemd may be reached, under the host's root, the preferred first."""
    return tuple(host.local_path(path) for path in SYSTEM_BUSES)


def read(host: Host, unit: str, *, timeout_s: float = ASK_S) -> Unit:
    """Return what systemd tells of a unit; one that does not exist is "not-found".

    Raises:
        InstallerError: systemd cannot be reached, or does not answer.
    """
    show = ("systemctl", "show", f"--property={','.join(SHOWN)}", unit)
    return ask(
        host,
        f"look at {unit}",
        lambda bus: Unit.of(bus.properties(unit)),
        lambda run: Unit.shown(run(show).stdout),
        timeout_s=timeout_s,
    )


def ask(
    host: Host,
    purpose: str,
    over_bus: Callable[[Bus], T],
    by_program: Callable[[Callable[[Sequence[str]], Ran]], T],
    *,
    timeout_s: float,
) -> T:
    """Ask systemd over a bus; where none leads to it, by a program in the host's root."""
    try:
        return systemd.ask(buses(host), over_bus, purpose=purpose, timeout_s=timeout_s)
    except NoBusError as error:
        run = partial(run_program, host.local_path(ROOT), purpose=purpose, timeout_s=timeout_s)
        try:
            return by_program(run)
        except NoBusError:
            raise error from None


def is_socket_held(host: Host, unit: str, socket: PurePosixPath) -> bool:
    """Tell whether systemd listens in the place of a service that is stopped: whoever connects starts it."""
    if not unit or look(host, unit).active not in {"inactive", "failed", STOPPING}:
        return False
    found = look(host, f"{unit.removesuffix('.service')}.socket")
    paths = {host.local_path(PurePosixPath(place)) for place in found.listens if place[:1] == "/"}
    return found.active == "active" and (not paths or host.local_path(socket) in paths)


def runs(host: Host, unit: str) -> bool:
    """Tell whether a unit runs, be it on its way up; one that nobody can ask for does not."""
    return look(host, unit).active in {"active", "activating", "reloading"}


def describe_end(host: Host, unit: str) -> str:
    """Return how a unit is if its service has come to an end, "" where it runs or nobody knows."""
    now = look(host, unit)
    ended = now.active in {"failed", "inactive"} or now.sub == AGAIN
    return f"{unit} is {now.active}/{now.sub}" if ended else ""


def look(host: Host, unit: str) -> Unit:
    """Return what systemd tells of a unit; nothing where it does not answer."""
    try:
        return read(host, unit)
    except InstallerError:
        return Unit()
