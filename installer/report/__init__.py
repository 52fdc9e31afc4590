"""What people and probes see of a node: status, verify, reconcile, doctor.

Imports lifecycle, and what lifecycle may import. Begin with status.py.
"""
