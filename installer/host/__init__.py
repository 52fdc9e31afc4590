"""Every effect on the node, and none of the reasons; no engine's name.

It imports errors, config_text and model. Begin with files.Host: where this process finds the host's paths.
"""
