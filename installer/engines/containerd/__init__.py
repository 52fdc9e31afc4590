"""containerd: config.toml and its drop-ins, by schema version, and what is in force.

All of it is pure. Begin with config.py; the schemas are PLUGINS in effective.py.
"""
