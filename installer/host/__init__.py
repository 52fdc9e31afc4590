"""Every effect on the node, and none of the reasons; no engine's name.

It imports errors, data and model. Begin with files.Host: where this process finds the paths of the host.
"""
