"""The KV store: keys and values of all layers in pages, for NumPy and torch.

Per KV group two arrays [layers of the group, G, pages, page_len, D], so that the keys of one head in consecutive pages
lie next to each other and a gather by page table gives each head's keys in order of position:

::

    slot           page 0                 page 1
    position       | p .. p + page_len)  | any other request's tokens ...
    address        slot = page * page_len + position % page_len

It knows pages and slots; who owns them is the scheduler's affair. Every byte is finite from the start, so reading a
page that holds nothing of use is harmless under a mask.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.base.errors import ensure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.cache.spec import KVSpec
    from trivium.runtime.arrays import Library


class KVStore:
    """Paged keys and values.

    Invariants:
        Every element is finite.
    """

    def __init__(
        self, spec: KVSpec, num_pages: tuple[int, ...], *, num_kv_heads: int, head_width: int, library: Library
    ) -> None:
        """Allocate zeroed pages.

        Raises:
            InternalError: `num_pages` and the groups of `spec` differ in number.
        """
        ensure(len(num_pages) == len(spec.groups), f"{len(num_pages)} page counts for {len(spec.groups)} KV groups")
        self.spec = spec
        self.num_pages = num_pages
        self._library = library
        self._head_shape = (num_kv_heads, head_width)
        self._place = {
            layer: (group_idx, idx)
            for group_idx, group in enumerate(spec.groups)
            for idx, layer in enumerate(group.layers)
        }
        shapes = [
            (len(group.layers), num_kv_heads, pages, spec.page_len, head_width)
            for group, pages in zip(spec.groups, num_pages, strict=True)
        ]
        self._keys = [library.sparse_zeros(shape) for shape in shapes]
        self._values = [library.sparse_zeros(shape) for shape in shapes]
        self._gathered: tuple[Any, Any] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages."""
        num_kv_heads, head_width = self._head_shape
        per_slot = 2 * num_kv_heads * head_width * np.dtype(np.float32).itemsize
        groups = zip(self.spec.groups, self.num_pages, strict=True)
        return sum(len(group.layers) * pages * self.spec.page_len * per_slot for group, pages in groups)

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page of each group."""
        num_kv_heads, head_width = self._head_shape
        per_layer = 2 * num_kv_heads * self.spec.page_len * head_width * np.dtype(np.float32).itemsize
        return tuple(len(group.layers) * per_layer for group in self.spec.groups)

    def group_of(self, layer: int) -> int:
        """Return the index of the KV group that `layer` belongs to.

        Raises:
            InternalError: No group has this layer.
        """
        ensure(layer in self._place, f"no KV group has layer {layer}")
        return self._place[layer][0]

    def write(self, layer: int, slots: Any, k: Any, v: Any) -> None:
        """Store keys and values [T, G, D] at slots [T] of the layer's group (page * page_len + offset)."""
        group_idx, idx = self._place[layer]
        num_kv_heads, head_width = self._head_shape
        for pages, fresh in ((self._keys, k), (self._values, v)):
            flat = self._library.xp.reshape(pages[group_idx][idx], (num_kv_heads, -1, head_width))
            flat[:, slots] = self._library.xp.permute_dims(fresh, (1, 0, 2))

    def gather(self, layer: int, page_ids: Any) -> tuple[Any, Any]:
        """Return the keys and values of some pages, in the order given.

        Args:
            layer: Layer number.
            page_ids: [requests * pages] page ids of the layer's group, request after request; a slice where they follow
                each other, which costs no copy.

        Returns:
            Keys and values, each [G, requests * pages * page_len, D], to be read only, until the next gather or write.
        """
        group_idx, idx = self._place[layer]
        num_kv_heads, head_width = self._head_shape
        if isinstance(page_ids, slice):
            run = (self._keys[group_idx][idx][:, page_ids], self._values[group_idx][idx][:, page_ids])
            num_slots = (page_ids.stop - page_ids.start) * self.spec.page_len
            keys, values = (self._library.xp.reshape(pages, (num_kv_heads, num_slots, head_width)) for pages in run)
            return keys, values
        key_space, value_space = self._workspace(len(page_ids))
        keys = self._library.take_pages(self._keys[group_idx][idx], page_ids, out=key_space)
        values = self._library.take_pages(self._values[group_idx][idx], page_ids, out=value_space)
        shape = (num_kv_heads, -1, head_width)
        return self._library.xp.reshape(keys, shape), self._library.xp.reshape(values, shape)

    def _workspace(self, num_pages: int) -> tuple[Any, Any]:
        """Return room for `num_pages` pages of keys and of values, in memory that grows and is used again."""
        num_kv_heads, head_width = self._head_shape
        shape = (num_kv_heads, num_pages, self.spec.page_len, head_width)
        size = math.prod(shape)
        if self._gathered is None or len(self._gathered[0]) < size:
            self._gathered = (self._library.zeros((size,)), self._library.zeros((size,)))
        keys, values = self._gathered
        return self._library.xp.reshape(keys[:size], shape), self._library.xp.reshape(values[:size], shape)

    def copy_page(self, group_idx: int, source: int, target: int) -> None:
        """Copy one page, all layers."""
        self._check_page(group_idx, source)
        self._check_page(group_idx, target)
        for pages in (self._keys[group_idx], self._values[group_idx]):
            pages[:, :, target] = pages[:, :, source]

    def export_page(self, group_idx: int, page: int) -> bytes:
        """Return the bytes of one page: keys, then values, each float32 little-endian [layers, G, page_len, D]."""
        self._check_page(group_idx, page)
        keys, values = self._keys[group_idx], self._values[group_idx]
        parts = (self._library.to_host(pages[:, :, page]).astype("<f4", copy=False) for pages in (keys, values))
        return b"".join(part.tobytes() for part in parts)

    def import_page(self, group_idx: int, page: int, content: bytes) -> None:
        """Write what `export_page` gave.

        Raises:
            InternalError: The length is not a page's, or a value is not finite.
        """
        self._check_page(group_idx, page)
        numbers = np.frombuffer(content, "<f4").astype(np.float32) if len(content) % 4 == 0 else np.empty(0, np.float32)
        keys, values = self._keys[group_idx], self._values[group_idx]
        layers, num_kv_heads, _, page_len, head_width = keys.shape
        shape = (2, layers, num_kv_heads, page_len, head_width)
        ensure(len(content) == 4 * int(np.prod(shape)), f"a page of group {group_idx} has not {len(content)} bytes")
        ensure(np.isfinite(numbers).all(), f"the content of page {page} of group {group_idx} is not finite")
        halves: NDArray[np.float32] = numbers.reshape(shape)
        keys[:, :, page] = self._library.asarray(halves[0])
        values[:, :, page] = self._library.asarray(halves[1])

    def _check_page(self, group_idx: int, page: int) -> None:
        is_group = 0 <= group_idx < len(self.num_pages)
        ensure(is_group and 0 <= page < self.num_pages[group_idx], f"KV group {group_idx} has no page {page}")
