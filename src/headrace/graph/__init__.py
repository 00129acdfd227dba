"""A model as a small graph, the passes that rewrite it, and the plan it becomes.

Owns the builder, the ops with their shape rules, the passes fuse and place, and Plan with explain and diff.
Computes nothing and knows no kernel: lowering lives in headrace.kernels. Imports no tensor library.
"""
