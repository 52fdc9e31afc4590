"""Attributes of files, as chattr sets them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from sys import byteorder

import pytest

FS_IOC_SETFLAGS = 0x40086602


def _set_flags(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        ioctl(fd, FS_IOC_SETFLAGS, flags.to_bytes(8, byteorder))
    finally:
        os.close(fd)


@contextmanager
def attribute(path: Path, flags: int) -> Iterator[None]:
    try:
        _set_flags(path, flags)
    except OSError:
        pytest.skip("the tests' directory is on a file system without attributes")
    try:
        yield
    finally:
        _set_flags(path, 0)
