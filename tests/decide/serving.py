"""What engines say they serve, in few words."""

from collections.abc import Mapping

from installer.model.engine_spec import EffectiveConfig, Runtime


def served(binaries: Mapping[str, str], default: str, *, systemd_cgroup: bool = False) -> EffectiveConfig:
    """Return the effect of an engine that serves ``binaries``, all with the same cgroup driver."""
    table = {"options": {"SystemdCgroup": systemd_cgroup}}
    return EffectiveConfig({name: Runtime(binary, table) for name, binary in binaries.items()}, default)
