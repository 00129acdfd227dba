"""Rows and a Schedule in, sampled ids out: the one runner for every model.

Owns reserved memory, the memory table, the step header, plan binding and replay.
Imports everything below engine; never engine, server or cli.
"""
