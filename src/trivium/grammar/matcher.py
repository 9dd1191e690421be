"""`Grammar` and `Matcher`: a compiled constraint, and where one answer stands in it.

::

    Grammar ─ start ─► Matcher ─ advance, fill, forced, roll_back, fork
       ▲  one lexer for all answers        │ outgrown by all of them together
       └────────────── remake ◄────────────┘ a lexer of its own for each

The library makes the lexer's states when a text first needs them, keeps them for all answers of a grammar, and bounds
their number. So answers that each stay far below the bound can reach it together, after which none of them goes on:
then whoever goes on has the grammar compiled anew for itself, and only who reaches the bound alone is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ConstraintFailedError, InternalError, ensure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BASE_BYTES = 128 << 10
_BYTES_PER_CHAR = 100
"""Of a grammar in the library's notation: 2 to 90 were measured."""
_BYTES_PER_SECOND = 50e6
"""By which the lexer grows while masks are slow to make: 0.4 to 46 MB were measured."""
_USUAL_MASK_S = 0.0005
"""A mask that takes longer, of the thread's own time, had to make states."""
_MOST_REMAKE_S = 0.1
"""What took longer to compile is not compiled anew while others wait."""
_CREDIT_S = 2.0
_CREDIT_PER_TOKEN_S = 0.01
"""Of the thread's own time: what an answer may take for its masks. They take 0.01 to 1 ms; those of a grammar that can
be read in very many ways take longer with each token, without a bound of the library's."""


# How the library's reasons begin, or what they say.
_LEXER = "lexer error: "
_AGAINST = "doesn't satisfy the grammar"


class Grammar:
    """A compiled constraint, of which answers are read side by side."""

    def __init__(
        self, inner: Any, mask_words: int, *, remake: Callable[[], Any], num_chars: int, compile_s: float
    ) -> None:
        """Keep what was compiled.

        Args:
            inner: The library's matcher, at the beginning.
            mask_words: Of a mask.
            remake: Compiles it anew, with a lexer that nobody has used.
            num_chars: Length in the library's notation.
            compile_s: What compiling took.
        """
        self._start = inner
        self._mask_words = mask_words
        self._remake = remake
        self._compile_s = compile_s
        self._num_chars = num_chars
        self._growing_s = 0.0
        self._first_run: Sequence[int] | None = None
        self.is_spent = False
        """Whether its answers have outgrown the lexer's bound together: to be compiled anew for the next."""

    @property
    def num_bytes(self) -> int:
        """About what it takes; the library does not say, so this is on the high side."""
        grown = self._growing_s * _BYTES_PER_SECOND
        return int(_BASE_BYTES + self._num_chars * _BYTES_PER_CHAR + grown)

    def start(self) -> Matcher:
        """Return a matcher at the beginning of an answer."""
        matcher = Matcher(self._start.deep_copy(), self, self._mask_words)
        if self._first_run is not None:
            matcher.begin_with(self._first_run)
        return matcher

    def settle(self) -> None:
        """Find out what every answer must begin with, so that none of them has to: a long text takes 30 ms."""
        self._first_run = self.start().forced()

    def note_mask(self, seconds: float) -> None:
        """Take note of what a mask took."""
        if seconds > _USUAL_MASK_S:
            self._growing_s += seconds - _USUAL_MASK_S

    def anew(self) -> Any | None:
        """Return the library's matcher at the beginning, with a lexer of its own; `None` where that takes too long."""
        self.is_spent = True
        return self._remake() if self._compile_s <= _MOST_REMAKE_S else None


class Matcher:
    """Where one answer stands in its grammar.

    Where bytes are forced, the tokens that write them are settled once, for all of them, before the first is read: a
    *run*. Inside it nothing but its next token is allowed, whether somebody draws it or takes the whole run at once.

    ::

        read so far   t t t t t t t t t          t: any token that was allowed
        runs              |------|  |----        a matcher that is taken back into a run is in that run again
    """

    __slots__ = ("_credit_s", "_grammar", "_inner", "_is_apart", "_runs", "_settled_at", "_tokens", "mask_words")

    def __init__(self, inner: Any, grammar: Grammar, mask_words: int) -> None:
        self._inner = inner
        self._grammar = grammar
        self._is_apart = False
        """Whether it has a lexer of its own."""
        self.mask_words = mask_words
        self._tokens: list[int] = []
        """Read so far."""
        self._runs: list[tuple[int, Sequence[int]]] = []
        """(tokens read before it, its tokens), in the order in which they were settled."""
        self._settled_at = -1
        """Tokens read when it was last settled whether a run begins."""
        self._credit_s = _CREDIT_S
        """What its masks may still take."""

    @property
    def is_accepting(self) -> bool:
        """Whether what was read is a whole sentence, so that the answer may end."""
        return bool(self._inner.is_accepting())

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but an end token."""
        return bool(self._inner.is_stopped() and not self._inner.is_error())

    def begin_with(self, run: Sequence[int]) -> None:
        """Take it as settled, before anything is read, what must come first; nothing, if `run` is empty."""
        self._settled_at = 0
        if run:
            self._runs.append((0, run))

    def allows(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens, one after the other, may come next; runs are not heeded."""
        return int(self._inner.validate_tokens(list(token_ids)))

    def advance(self, token_id: int) -> None:
        """Read a token.

        Raises:
            InternalError: The grammar does not allow it.
            ConstraintFailedError: The grammar has grown beyond its limits.
        """
        due = self._due()
        if (
            due is not None and due != token_id
        ):  # nobody draws it, but the grammar may allow it: then that run has ended
            self._runs.pop()
        if not self._inner.consume_token(token_id):
            self._go_on_apart()
            if not self._inner.consume_token(token_id):
                self._ensure_within_limits()
                raise InternalError(f"token {token_id} is against the grammar: {self._inner.get_error()}")
        self._tokens.append(token_id)

    def fill(self, mask: NDArray[np.uint32]) -> None:
        """Set the bit of every token that may come next, bit t % 32 of word t // 32, and clear all others.

        Raises:
            ConstraintFailedError: The grammar has grown beyond its limits, its masks take too long, or no text goes on
                from here.
        """
        ensure(
            mask.shape == (self.mask_words,) and mask.dtype == "uint32" and mask.flags.c_contiguous,
            f"a mask is {mask.dtype} {mask.shape}, not uint32 ({self.mask_words},)",
        )
        if (due := self._due()) is not None:
            mask[:] = 0
            mask[due >> 5] = 1 << (due & 31)
            return
        began_s = time.thread_time()  # not of the clock: others may run meanwhile
        self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._inner.is_error():
            self._go_on_apart()
            self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self._ensure_within_limits()
            ensure(not self._inner.is_error(), f"there is no mask: {self._inner.get_error()}")
        self._pay(time.thread_time() - began_s)

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next, as far as they are settled; to draw them would change nothing."""
        if self._due() is None:
            return ()
        start, run = self._runs[-1]
        return run[len(self._tokens) - start :]

    def _due(self) -> int | None:
        """Return the next forced token, having settled whether a run begins here."""
        num_read = len(self._tokens)
        if self._runs:
            start, run = self._runs[-1]
            if num_read < start + len(run):
                return run[num_read - start]
        if self._settled_at == num_read:
            return None
        self._settled_at = num_read
        forced: list[int] = self._inner.compute_ff_tokens()
        if not forced:
            return None
        self._runs.append((num_read, forced))
        return forced[0]

    def roll_back(self, num_tokens: int) -> None:
        """Take back the last tokens read.

        Raises:
            InternalError: Fewer were read.
        """
        if not num_tokens:
            return
        if not self._inner.rollback(num_tokens):
            raise InternalError(f"cannot take back {num_tokens} tokens: {self._inner.get_error()}")
        del self._tokens[len(self._tokens) - num_tokens :]
        self._settled_at = -1
        while self._runs and self._runs[-1][0] > len(self._tokens):
            self._runs.pop()

    def fork(self) -> Matcher:
        """Return a matcher at the same place that goes on independently."""
        twin = Matcher(self._inner.deep_copy(), self._grammar, self.mask_words)
        twin._tokens, twin._runs, twin._settled_at = self._tokens.copy(), self._runs.copy(), self._settled_at
        twin._is_apart, twin._credit_s = self._is_apart, self._credit_s
        return twin

    def _pay(self, seconds: float) -> None:
        self._grammar.note_mask(seconds)
        self._credit_s += _CREDIT_PER_TOKEN_S - seconds
        if self._credit_s > _CREDIT_S:
            self._credit_s = _CREDIT_S
        elif self._credit_s < 0:
            raise ConstraintFailedError(
                f"the constraint takes too long to hold the answer to: {seconds * 1e3:.0f} ms for a token after "
                f"{len(self._tokens)} tokens, of at most {_CREDIT_PER_TOKEN_S * 1e3:.0f} ms on average and "
                f"{_CREDIT_S:.0f} s above it; a grammar that can read a text in many ways costs most: give it one"
            )

    def _go_on_apart(self) -> None:
        """Go on with a lexer that no other answer uses, where the shared one has come to its bound."""
        if self._is_apart or not _is_limit(self._inner):
            return
        if (own := self._grammar.anew()) is not None:
            own.consume_tokens(self._tokens)
            self._inner, self._is_apart = own, True

    def _ensure_within_limits(self) -> None:
        """Tell why the library gave up, where it did, and not since a token is against the grammar."""
        if not self._inner.is_error():
            return
        reason = self._inner.get_error().strip().partition("\n")[0]
        if _AGAINST in reason:
            return
        if reason.startswith("NoExtension"):
            raise ConstraintFailedError("no text goes on from here, and none may end")
        raise ConstraintFailedError(
            f"the constraint grew beyond its limits after {len(self._tokens)} tokens of the answer "
            f"({reason.removeprefix(_LEXER)}); counted repetitions inside counted repetitions cost most: lower their "
            "counts"
        )


def _is_limit(inner: Any) -> bool:
    """Return whether the library gave up since its lexer came to a bound."""
    return bool(inner.is_error()) and inner.get_error().startswith(_LEXER)
