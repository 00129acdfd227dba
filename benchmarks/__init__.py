"""Benchmarks: headrace's own numbers, and the same workload run by llama.cpp side by side (`python -m benchmarks`).

Drives servers over loopback HTTP as a client would; never imports what it measures, but for finding the model file.
"""
