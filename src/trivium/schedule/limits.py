"""What can never fit is refused at arrival, with the numbers; and where a request must end.

A request of `prompt_len` tokens needs KV for its prompt before it can draw. Its last token's KV is never needed, so
a pool that holds C tokens lets a request grow to C + 1. A request that would go further is accepted: it runs until
the pool holds no more of it and ends with `length`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trivium.base.errors import PromptTooLongError, RequestTooLargeError
from trivium.cache.spec import KVSpec
from trivium.cache.window import capacity_len
from trivium.schedule.request import Request


class Limits:
    """Hard ends that follow from the model and from the KV pools."""

    def __init__(
        self,
        spec: KVSpec,
        num_pages: Sequence[int],
        max_model_len: int,
        lost_len: Callable[[Request], int] = lambda _: 0,
    ) -> None:
        """Derive the limits; `lost_len` says how many tokens of the pools a request cannot have, being pinned."""
        self._lost_len = lost_len
        self.max_model_len = max_model_len
        self.pool_len = capacity_len(spec, num_pages)
        """Tokens that one request alone can hold; `None` when windows make it endless."""

    def end_len(self, request: Request) -> int:
        """Return the number of tokens with which the request ends at the latest."""
        end = min(request.limit_len, self.max_model_len)
        room = self._room(request)
        return end if room is None else max(request.prompt_len, min(end, room + 1))

    def outgrows(self, request: Request) -> bool:
        """Return whether an accepted request may come to need more than the pools have left for it."""
        room = self._room(request)
        return room is not None and request.end_len > room + 1

    def _room(self, request: Request) -> int | None:
        return None if self.pool_len is None else self.pool_len - self._lost_len(request)

    def refuse_misfit(self, request: Request) -> None:
        """Refuse a request that can never run.

        Raises:
            PromptTooLongError: The prompt, and one token if any is wanted, exceed `max_model_len`.
            RequestTooLargeError: The prompt alone exceeds the KV pool.
        """
        prompt, wanted = request.prompt_len, request.params.max_tokens
        if prompt + (wanted != 0) > self.max_model_len or request.limit_len > self.max_model_len:
            more = "1 or more" if wanted is None else str(wanted)
            raise PromptTooLongError(
                f"the prompt has {prompt} tokens and {more} may be generated; together they must not exceed this "
                f"model's {self.max_model_len} tokens. Shorten the prompt, or ask for fewer tokens",
                param="prompt",
            )
        room = self._room(request)
        if room is not None and prompt > room:
            pinned = "" if room == self.pool_len else f" beside {self._lost_len(request)} that are pinned"
            raise RequestTooLargeError(
                f"the prompt has {prompt} tokens and the KV memory holds {room}{pinned}. Shorten the prompt, or "
                "start the server with more KV memory (kv_cache_memory)",
                param="prompt",
            )
