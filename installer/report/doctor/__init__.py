"""What is wrong with a node, installed or not: read, then judged by a table of pure functions.

It may import every room but ``cli``. Begin with checks.toml, the texts of all checks, and verb.py, which
makes the table of them.
"""
