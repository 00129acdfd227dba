"""Where keys and values live: layer-group specs, block pools, the prefix index, block owners.

Owns every decision about KV blocks: how many bytes they take, who holds them, what can be reused.
Works on block ids and token ids only; the memory itself belongs to the runner.
Imports core, config and observe; never NumPy or a tensor library.
"""

from headrace.cache.integrity import IntegrityError
from headrace.cache.kv_cache import Fork, KVCache
from headrace.cache.owner import BlockOwner, TableGrowth
from headrace.cache.pool import NULL_BLOCK, BlockPool, BlockState
from headrace.cache.prefix import ContentSpan, PrefixChain, PrefixKeys
from headrace.cache.spec import LayerGroupSpec

__all__ = [
    "NULL_BLOCK",
    "BlockOwner",
    "BlockPool",
    "BlockState",
    "ContentSpan",
    "Fork",
    "IntegrityError",
    "KVCache",
    "LayerGroupSpec",
    "PrefixChain",
    "PrefixKeys",
    "TableGrowth",
]
