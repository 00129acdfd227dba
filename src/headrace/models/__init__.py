"""One file per model family: config → graph. No other package branches on a family's name.

`registry.build_graph(config)` finds the family. Imports core, config and graph; never weights, kernels or NumPy.
"""
