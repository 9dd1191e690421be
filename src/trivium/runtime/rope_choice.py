"""Which frequencies each request of a step turns its heads by: rows of a table that grows with what has been asked.

Most kinds of rope have one row for everybody. Dynamic and longrope choose by the request's reach (see `ir.rope`), so a
step brings the number of the row for each of its requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trivium.ir.rope import rope_frequencies, rope_variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.config.model import RopeConfig

_MANY = 1024
"""Rows kept at most; a table that is full starts over."""


class RopeChoice:
    """The rows of one rope."""

    def __init__(self, rope: RopeConfig) -> None:
        self._rope = rope
        self._row_of: dict[int, int] = {}
        self._has_one = rope.kind not in {"dynamic", "longrope"}
        first, self.factor = rope_frequencies(rope, 0)
        self._rows = first[None].copy()
        if self._has_one or rope_variant(rope, 0) == 0:
            self._row_of[0] = 0

    def rows(
        self, reaches: NDArray[np.int32], zeros: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Choose for a step.

        Args:
            reaches: [B] longest length of each request.
            zeros: [B] zeros, returned where there is nothing to choose.

        Returns:
            Row of each request [B], and the rows [rows, rotary_dim / 2]; both valid until the next call.
        """
        if self._has_one:
            return zeros, self._rows
        variants = [rope_variant(self._rope, reach) for reach in reaches.tolist()]
        missing = [variant for variant in dict.fromkeys(variants) if variant not in self._row_of]
        if missing:
            self._learn(missing, variants)
        return np.array([self._row_of[variant] for variant in variants], np.int32), self._rows

    def _learn(self, missing: list[int], wanted: list[int]) -> None:
        if len(self._row_of) + len(missing) > _MANY:
            self._row_of, self._rows = {}, self._rows[:0]
            missing = list(dict.fromkeys(wanted))
        fresh = [rope_frequencies(self._rope, self._reach_of(variant))[0] for variant in missing]
        for variant in missing:
            self._row_of[variant] = len(self._row_of)
        self._rows = np.ascontiguousarray(np.concatenate([self._rows, np.stack(fresh)]))

    def _reach_of(self, variant: int) -> int:
        """Return a reach that has this variant: dynamic names variants by reach, longrope by 0 and 1."""
        if self._rope.kind == "longrope":
            return self._rope.original_max_positions + variant
        return variant
