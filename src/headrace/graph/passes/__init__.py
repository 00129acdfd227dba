"""Passes: pure functions from graph to graph (fuse) or from graph to memory layout (place)."""
