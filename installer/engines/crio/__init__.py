"""CRI-O: the drop-in with our runtimes, the settings of the next start, and the settings refused at a start.

All modules are pure. Begin with config.py.
"""
