"""Tokenizers from files: GGUF metadata, Hugging Face folders, and how BPE families split text.

Reached through `Tokenizer.from_gguf` and `Tokenizer.from_folder`, which import it when a tokenizer is built.
Never imports weights: the metadata of a GGUF comes in as a mapping.
"""
