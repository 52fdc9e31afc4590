"""The NRI plugin: what it says to an engine, and which containers get which CDI devices.

Imports engines and what engines may import, neither payload nor cdi. Begin with session.py.
"""
