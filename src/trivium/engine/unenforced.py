"""What an answer of a chat may not ask for yet, because nothing makes sure of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.base.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams


def refuse_unenforced(params: SamplingParams) -> None:
    """Refuse what would have to be enforced.

    Raises:
        UnsupportedFeatureError: Reasoning is limited.
    """
    if params.chat_output is not None and params.chat_output.max_reasoning_tokens is not None:
        raise UnsupportedFeatureError("max_reasoning_tokens cannot be enforced yet", param="max_reasoning_tokens")
