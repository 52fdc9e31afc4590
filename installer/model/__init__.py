"""The words of the house as data: options, paths, files, effective configs, facts, steps, the record.

Imports errors and config_text. Begin with facts.py, what is observed, then steps.py, what is done about it.
"""
