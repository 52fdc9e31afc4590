"""A release on many nodes: turns for restarts of engines, and what a stopped pod leaves on its node.

A node takes a turn, which is a Lease, before it restarts an engine. Imports errors, config_text and host.
Begin with turn_rules.py: ``decide_turn`` decides from Leases that were read. leases.py translates Leases from
and to JSON, client.py reads and writes them, and run_again.py tells whether a DaemonSet's pod returns to a
node.
"""
