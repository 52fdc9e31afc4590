"""The NRI plugin: its protocol with an engine, and the choice of CDI devices for containers.

Imports engines and what engines may import, neither payload nor cdi. Begin with session.py.
"""
