"""How systemd starts a service, as it has read the unit: what it runs, and what has to be there before."""

from collections.abc import Mapping
from typing import Any, Final

from installer.decide.data import dataclass

REFUSING: Final = ("RefuseManualStop", "RefuseManualStart")
MASKED: Final = "masked"


@dataclass(frozen=True, slots=True)
class Command:
    """One that is run before the service; ``optional`` tells that it may fail."""

    setting: str
    words: tuple[str, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """What has to hold; of those with ``either``, which are written with a ``|``, one is enough."""

    setting: str
    either: bool
    negated: bool
    value: str

    def __str__(self) -> str:
        return f"{self.setting}={'|' * self.either}{'!' * self.negated}{self.value}"


@dataclass(frozen=True, slots=True)
class UnitStart:
    """How a unit starts its service: its program first, variables as they are written.

    ``environment`` has NAME=value; ``environment_files`` are the paths of files with more of it, ``needed``
    are those of them that have to be there. ``elsewhere`` tells that the service has a root of its own, in
    which its programs are looked for. ``stale`` tells that the unit's files were changed since systemd has
    read them. ``refuses`` are the settings for which systemd lets nobody restart it; ``kill_mode`` says what
    a stop ends besides the service. ``masked`` tells that systemd starts it for nobody.
    """

    words: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    environment_files: tuple[str, ...] = ()
    stale: bool = False
    needed: tuple[str, ...] = ()
    before: tuple[Command, ...] = ()
    conditions: tuple[Condition, ...] = ()
    elsewhere: bool = False
    refuses: tuple[str, ...] = ()
    kill_mode: str = ""
    masked: bool = False

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "UnitStart":
        """Return what the properties of a service say (org.freedesktop.systemd1(5))."""
        files = said["EnvironmentFiles"]
        return cls(
            words=tuple(said["ExecStart"][-1][1]) if said["ExecStart"] else (),
            environment=tuple(said["Environment"]),
            environment_files=tuple(path for path, _ in files),
            stale=bool(said["NeedDaemonReload"]),
            needed=tuple(path for path, optional in files if not optional),
            before=tuple(
                Command(setting, tuple(line[1]), bool(line[2]))
                for setting in ("ExecCondition", "ExecStartPre")
                for line in said.get(setting, ())  # systemd before 243 knows no ExecCondition
            ),
            conditions=tuple(
                Condition(*condition[:4])
                for name in ("Conditions", "Asserts")
                for condition in said.get(name, ())
            ),
            elsewhere=bool(said["RootDirectory"] or said.get("RootImage")),
            refuses=tuple(name for name in REFUSING if said.get(name)),
            kill_mode=str(said.get("KillMode", "")),
        )
