"""A release on many nodes: turns for restarts of engines, and what a stopped pod leaves on its node.

A node takes a turn, which is a Lease, before it restarts an engine. Imports errors and config_text.
Begin with turns.py: ``decide_turn`` decides from Leases that were read. run_again.py tells whether a pod of a
DaemonSet returns to a node.
"""
