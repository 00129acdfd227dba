"""What each op in a plan really runs on this machine.

Owns the op table (number, reference face, native face, numerics), lowering from graph to Plan, and weight packing.
Imports core, config, graph and weights; never runner or engine.
"""
