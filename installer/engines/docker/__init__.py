"""Docker: daemon.json, what dockerd makes of a reload, its API.

config.py is pure. Begin there.
"""
