"""What engines say they serve, in few words."""

from collections.abc import Mapping

from installer.decide.effect import Effect, Handler


def served(binaries: Mapping[str, str], default: str, *, systemd_cgroup: bool = False) -> Effect:
    """Return the effect of an engine that serves ``binaries``, all with the same cgroup driver."""
    table = {"options": {"SystemdCgroup": systemd_cgroup}}
    return Effect({name: Handler(binary, table) for name, binary in binaries.items()}, default)
