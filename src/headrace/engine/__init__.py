"""The step loop and everything that feeds it: core, in-process and remote clients, LLM and AsyncLLM.

Owns a request from "cannot be wrong any more" to its last token. Imports anything but server, cli and baseline.
"""
