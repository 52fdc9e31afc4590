"""CRI-O: crio.conf.d, and what is in force.

All of it is pure. Begin with config.py.
"""
