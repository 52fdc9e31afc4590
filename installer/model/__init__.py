"""The words of the house as data: options, paths, effective configs, engines, the record, facts, steps.

Imports errors and config_text. Begin with facts.py, what is held and observed, then steps.py.
"""
