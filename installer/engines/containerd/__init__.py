"""containerd: our runtimes in config.toml and its drop-ins, by schema version, and the settings in force.

All modules are pure. Begin with config.py; the schemas are PLUGINS in effective.py.
"""
