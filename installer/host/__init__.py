"""Hands: every effect on the node, and none of the reasons."""
