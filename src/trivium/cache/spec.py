"""How a model's keys and values lie in pages: one group per kind of layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GroupKind = Literal["full", "window", "latent", "state"]


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a page table because they remember the same tokens."""

    kind: GroupKind
    layers: tuple[int, ...]
    bytes_per_token: int
    """Bytes of K and V of one token over all layers of the group."""
    window: int | None = None
    """Tokens a query can see, itself included; `None` unless `kind` is `window`."""


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The KV memory of a model.

    A token at position p lies at offset p mod page_len of page table entry p // page_len, in every group.
    """

    groups: tuple[KVGroup, ...]
    page_len: int
    """Tokens per page, at least 1."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over all groups."""
        return sum(group.bytes_per_token for group in self.groups)
