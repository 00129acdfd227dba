"""Model files: readers (GGUF, safetensors), weight formats, logical names, finding and fetching models.

Nothing in a model's folder is ever run: no pickles, no Python, no templates rendered here. Packing into the native
formats is headrace.kernels' work; `packed` holds only the NumPy truth of those formats.
Imports core and config; never a tensor library.
"""
