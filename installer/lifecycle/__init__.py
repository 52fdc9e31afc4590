"""What `run`, `install` and `uninstall` do, and what is checked while `run` waits.

Imports metrics, and what metrics may import. Begin with install.py, then check.py.
"""
