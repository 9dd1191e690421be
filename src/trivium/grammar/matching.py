"""`Matching`: what stands somewhere in what an answer may be; matchers of grammars and of budgets are such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Matching(Protocol):
    """Knows which tokens may come next."""

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but an end token."""
        ...

    def allows(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens, one after the other, may come next."""
        ...

    def advance(self, token_id: int) -> None:
        """Read a token.

        Raises:
            InternalError: It may not come next.
        """
        ...

    def fill(self, mask: NDArray[np.uint32]) -> None:
        """Set the bit of every token that may come next, bit t % 32 of word t // 32, and clear all others."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next, as far as they are known."""
        ...

    def roll_back(self, num_tokens: int) -> None:
        """Take back the last tokens read.

        Raises:
            InternalError: Fewer were read.
        """
        ...

    def fork(self) -> Matching:
        """Return a matcher at the same place that goes on independently."""
        ...
