"""CDI specifications, ours and those of others, and who hands GPUs to containers.

Imports engines, and what engines may import; neither payload nor nri. Begin with plan.py: first mode_of, then
its parts of a plan.
"""
