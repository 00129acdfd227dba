"""Region: an address range reserved once, committed by page on first use, given back without moving."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Region:
    """Anonymous zeroed memory of `size_bytes` (rounded up to a page), 4 KiB aligned.

    huge_pages asks for transparent huge pages. The address stays valid, and the same, until `close`.
    """

    def __init__(self, name: str, size_bytes: int, *, huge_pages: bool = False) -> None:
        page = mmap.PAGESIZE
        self.name = name
        self.size_bytes = max(page, -(-size_bytes // page) * page)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._map: mmap.mmap | None = mmap.mmap(-1, self.size_bytes, flags=flags)
        if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._array: NDArray[np.uint8] | None = np.frombuffer(self._map, np.uint8)
        self.address: int = self._array.ctypes.data

    def array(self, dtype: Any = np.uint8) -> NDArray[Any]:
        """The whole region as a 1-D array. Raises ValueError after `close`."""
        if self._array is None:
            raise ValueError(f"region {self.name!r} is closed")
        return cast(NDArray[Any], self._array.view(dtype))

    def give_back(self) -> None:
        """Return the pages to the system; the range stays reserved and reads as zeros."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def prefault(self) -> None:
        """Touch every page now instead of on first use."""
        self.array()[:: mmap.PAGESIZE] = 0

    def close(self) -> None:
        """Unmap. The caller must hold no views; a view that is still alive keeps the memory and is an error."""
        self._array = None
        if self._map is not None:
            self._map.close()
            self._map = None


PROCESS = "process"


def resident_bytes(regions: list[Region]) -> dict[str, int]:
    """Region → bytes in memory now (mincore), and everything else of this process as "process".

    Neighbouring regions can be one mapping to the kernel, so /proc/self/smaps cannot tell them apart.
    """
    out = {region.name: _resident_pages(region) * mmap.PAGESIZE for region in regions}
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * mmap.PAGESIZE
    return out | {PROCESS: max(0, resident - sum(out.values()))}


def _resident_pages(region: Region) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    pages = np.zeros(region.size_bytes // mmap.PAGESIZE, np.uint8)
    if libc.mincore(region.address, region.size_bytes, pages.ctypes.data) != 0:
        raise OSError(ctypes.get_errno(), f"mincore of region {region.name!r} failed")
    return int(np.count_nonzero(pages & 1))
