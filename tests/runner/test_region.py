"""Reserved memory: committed by page on use, given back without moving, told apart from its neighbours."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from headrace.runner.region import Region, resident_bytes

PAGES = 64


def test_pages_become_resident_when_they_are_touched_and_leave_when_given_back() -> None:
    region = Region("r", PAGES * mmap.PAGESIZE)
    assert resident_bytes([region])["r"] == 0
    region.array()[: 3 * mmap.PAGESIZE] = 7
    assert resident_bytes([region])["r"] == 3 * mmap.PAGESIZE
    address = region.address
    region.give_back()
    assert resident_bytes([region])["r"] == 0
    assert (region.address, int(region.array()[5])) == (address, 0)
    region.close()


def test_neighbouring_regions_are_counted_apart() -> None:
    regions = [Region(f"r{i}", PAGES * mmap.PAGESIZE) for i in range(4)]
    regions[2].array()[:] = 1
    seen = resident_bytes(regions)
    assert [seen[f"r{i}"] for i in range(4)] == [0, 0, PAGES * mmap.PAGESIZE, 0]
    for region in regions:
        region.close()


def test_prefault_touches_every_page() -> None:
    region = Region("r", PAGES * mmap.PAGESIZE)
    region.prefault()
    assert resident_bytes([region])["r"] == PAGES * mmap.PAGESIZE
    region.close()


def test_a_closed_region_says_so_and_closing_twice_is_fine() -> None:
    region = Region("r", 1)
    assert region.array(np.float32).size == mmap.PAGESIZE // 4
    region.close()
    region.close()
    with pytest.raises(ValueError, match="'r' is closed"):
        region.array()
