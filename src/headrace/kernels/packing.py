"""Packing: from the mapped model file into the one resident copy of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.core.errors import ModelFileError, UnsupportedModelError
from headrace.graph.ir import Graph, VectorSlot
from headrace.graph.plan import PackedWeight, Plan
from headrace.kernels.formats import SOURCE_NUMBERS, quantised_format
from headrace.weights.checkpoint import Checkpoint, TensorRef
from headrace.weights.packed import PACKED_FORMATS, PackedFormat, packed_nbytes


def packed_formats(graph: Graph, checkpoint: Checkpoint, quantization: str = "none") -> dict[str, str]:
    """Logical matrix → packed format, from the types in the file and the `quantization` option.

    Raises UnsupportedModelError naming the tensor.
    """
    return {name: _packed_format(tensor, quantization).name.lower() for name, tensor in _matrices(graph, checkpoint)}


def quantised_sources(graph: Graph, checkpoint: Checkpoint, quantization: str) -> dict[str, str]:
    """Logical matrix → type in the file, of those that packing rounds."""
    return {
        name: tensor.element_type.label
        for name, tensor in _matrices(graph, checkpoint)
        if _packed_format(tensor, quantization) is not PACKED_FORMATS[tensor.element_type]
    }


def _matrices(graph: Graph, checkpoint: Checkpoint) -> Iterator[tuple[str, TensorRef]]:
    for node in graph.nodes:
        for part in node.weight.parts if node.weight else ():
            yield part.logical, checkpoint.tensor(part.logical)


def _packed_format(tensor: TensorRef, quantization: str) -> PackedFormat:
    if tensor.element_type not in PACKED_FORMATS:
        raise UnsupportedModelError(
            f"tensor {tensor.name!r} is stored as {tensor.element_type.label}; "
            f"headrace packs {', '.join(t.label for t in PACKED_FORMATS)}"
        )
    return quantised_format(tensor.element_type, tensor.shape[-1], quantization)


def pack_weights(
    plan: Plan,
    checkpoint: Checkpoint,
    target: NDArray[np.uint8],
    *,
    num_threads: int,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Fill `target` (uint8 [plan.weights_bytes], zeroed) and drop each source page behind us.

    progress: called with the packed bytes done so far. Raises ModelFileError when a tensor's shape is not the plan's
    or a value cannot be represented.
    """
    for weight in plan.weights:
        if isinstance(weight.slot, VectorSlot):
            _pack_vector(weight, checkpoint, target)
        else:
            _pack_matrix(weight, checkpoint, target, num_threads)
        if progress is not None:
            progress(weight.offset_bytes + weight.size_bytes)


def _pack_matrix(weight: PackedWeight, checkpoint: Checkpoint, target: NDArray[np.uint8], num_threads: int) -> None:
    slot = weight.slot
    if isinstance(slot, VectorSlot):
        raise TypeError("a vector slot is not a matrix")
    begin = weight.offset_bytes
    if begin + packed_nbytes(PackedFormat[weight.format.upper()], slot.num_outputs, slot.num_inputs) > target.nbytes:
        raise ValueError(f"{slot.name}: the weights buffer is too small")
    for part in slot.parts:
        tensor = checkpoint.tensor(part.logical)
        _check_shape(tensor.name, tuple(tensor.shape), (part.num_outputs, slot.num_inputs))
        source = SOURCE_NUMBERS[tensor.element_type]
        raw = np.ascontiguousarray(tensor.raw)
        packed_format = PackedFormat[weight.format.upper()]
        done = _native.pack(
            source,
            raw.ctypes.data,
            tensor.row_order,
            part.num_outputs,
            slot.num_inputs,
            target.ctypes.data + begin,
            part.first_block,
            part.block_step,
            num_threads,
            packed_format.value,
        )
        if not done:
            raise ModelFileError(f"tensor {tensor.name!r} holds a value that {weight.format} cannot represent")
        checkpoint.drop_pages(part.logical)


def _pack_vector(weight: PackedWeight, checkpoint: Checkpoint, target: NDArray[np.uint8]) -> None:
    out = target[weight.offset_bytes : weight.offset_bytes + weight.size_bytes].view(np.float32)
    at = 0
    for part in weight.slot.parts:
        tensor = checkpoint.tensor(part.logical)
        _check_shape(tensor.name, tuple(tensor.shape), (part.num_outputs,))
        out[at : at + part.num_outputs] = tensor.dequantize()
        at += part.num_outputs


def _check_shape(name: str, found: tuple[int, ...], needed: tuple[int, ...]) -> None:
    if found != needed:
        raise ModelFileError(f"tensor {name!r} has shape {list(found)}, the configuration needs {list(needed)}")
