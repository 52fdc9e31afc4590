"""Why an engine's CRI does not answer."""

from installer.decide.errors import InstallerError


class NotAnsweringError(InstallerError):
    """Nobody answers on the socket, or not in time, or not yet; asking again later may help."""

    usual = "engine-not-answering"


class CriDisabledError(InstallerError):
    """The engine runs without CRI on purpose: it does not serve a kubelet."""

    usual = "cri-disabled"


class CriFailedError(InstallerError):
    """The engine runs, but its CRI plugin did not load; ``problem`` has its words."""

    usual = "cri-failed"
