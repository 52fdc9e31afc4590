"""What is shipped to the node, and what of it is installed there.

Imports engines and what engines may import, neither cdi nor nri. Begin with plan.py, its part of a plan.
"""
