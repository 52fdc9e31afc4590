"""The core: observe the node, decide, ask the gate, write down, do, undo.

Imports engines, payload, cdi and nri. Begin with plan.py, engine_plan.py (one engine) and transaction.py.
"""
