"""Options as frozen objects: every value knows its unit, range and source, and can explain itself.

Owns option declarations, where values come from (default, argument, flag, environment, file, model, machine),
vLLM's flag names, and what this machine grants (threads, memory). Reads no model file but its configuration,
imports core alone, and neither NumPy nor a tensor library.
"""
