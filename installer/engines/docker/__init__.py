"""Docker: daemon.json, what dockerd makes of a reload, its API.

config.py and reload_model.py are pure. Begin with config.py.
"""
