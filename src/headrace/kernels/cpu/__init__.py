"""Binding to the native module: plan calls as records, buffers as addresses."""
