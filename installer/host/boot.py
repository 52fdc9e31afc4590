"""Which boot this is, and which process: what tells a fresh claim from one left by a reboot."""

from pathlib import Path


def boot_id() -> str:
    """Return the id of this boot (random(4)); it changes with each one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def runs(pid: int) -> bool:
    """Tell whether a process has ``pid``, in our own pid namespace."""
    return Path(f"/proc/{pid}").exists()
