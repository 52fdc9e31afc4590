"""Docker: our runtimes in daemon.json, the effect of a reload, and Docker's API.

config.py is pure. Begin there.
"""
