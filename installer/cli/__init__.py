"""The command lines, ours and NVIDIA's, the log and what a terminal shows.

Imports everything. Begin with flags.py, the table of all flags.
"""
