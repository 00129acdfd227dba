"""One module per command: NAME, SUMMARY, USAGE and EXAMPLES for its help, `declare` its arguments, `run` it.

Owns what each command does; parsing and error lines are the parent's. Imports engine, server or runner only while
a command runs, never at import.
"""
