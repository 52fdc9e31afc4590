"""Garbage is not collected while a verb loads its modules: there is none, and looking takes long."""

import gc


def keep() -> None:
    """Collect none from here on."""
    gc.disable()


def collect() -> None:
    """Collect what becomes garbage from here on; what is there stays, at the exit too."""
    gc.freeze()
    gc.enable()
