"""CRI-O: its drop-ins, the settings of its next start, what it refuses when it starts.

All of it is pure. Begin with config.py.
"""
