"""The metrics: their table, one snapshot, who writes or serves it.

Imports change, and what change may import. Begin with snapshot.py, which has the table.
"""
