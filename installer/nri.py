"""``nri``: checks what it is asked for, takes the lock, and becomes the plugin, in the same process."""

import sys

from installer.decide.errors import Exit, InstallerError, UsageError
from installer.decide.inode import Kind
from installer.decide.options import Options
from installer.host.files import Host
from installer.host.locks import lock_pidfile, write_pid
from installer.host.nri_image import become_plugin


def serve(options: Options, log_format: str) -> Exit:
    """Become the plugin.

    Raises:
        InstallerError: another instance serves this engine, or NRI is not there.
    """
    nri = options.nri
    if not nri.allowed:
        raise UsageError(
            "serve pods over NRI (none is allowed to ask for anything)",
            remedy="give --nri-allow NAMESPACE=VENDOR/CLASS, such as gpu-operator=management.nvidia.com/gpu",
        )
    host = Host.under(options.host_root, options.mounts)
    directory = nri.socket.parent
    if host.kind(directory) is not Kind.DIRECTORY:
        raise InstallerError(
            f"reach NRI at {nri.socket} (there is no directory {directory})",
            remedy="switch NRI on in the engine, and mount that directory, not the socket, where this runs",
            code="nri-unusable",
        )
    lock = lock_pidfile(host, nri.lock)
    try:
        write_pid(lock, nri.lock)
        places = [str(host.local_path(path)) for path in (nri.socket, nri.state, nri.lock)]
        allowed = [str(each) for each in nri.allowed]
        become_plugin([*places, log_format, nri.identity.name, nri.identity.index, *allowed])
    finally:
        lock.release()
    raise InstallerError(
        f"start {sys.executable} once more", remedy="install the program anew", code="internal-error"
    )
