"""`OutputAutomaton`: the only reader of output tokens; it decides text, stop and end of one answer.

Rules, in the order in which they apply to the token at index i (from 0) of the answer:

1. While i < `min_tokens` nothing ends the answer: end tokens and whole stops are ordinary.
2. An end token ends the answer. Its own text is left out, save for a token of `stop_token_ids` when
   `include_stop_str_in_output` is set. Text held back is given out, a character cut off becomes U+FFFD.
3. Otherwise its text is appended, and the first letter at which some stop text or a match of some stop pattern is
   whole ends the answer; of several that end at that letter the longest counts. The answer ends before it (behind it
   when included). What follows inside the same token is dropped; the token counts. A stop may have begun in earlier
   tokens, also in the first `min_tokens`.
4. Letters at the end that may be the beginning of a stop are held back, as few as can be; for patterns no more than
   `MAX_PATTERN_LETTERS`: of a longer match the first letters have been given out.

The letter at which an answer ends therefore depends on the text alone, never on how the text is cut into tokens,
except for rule 1.

An answer under a constraint has a matcher. `take` tells it every token before its text is read, so that the mask of the
next token can be made at once; an answer that is complete ends there, whatever rule 1 says: nothing could follow.
`jump` takes those that must come next, which nobody needs to draw.
Knows nothing of sampling, logits or pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trivium.base.errors import InternalError, ensure
from trivium.base.ids import FinishReason, TokenId
from trivium.grammar.parts import OutputPart
from trivium.grammar.stops import StopConditions, StopState
from trivium.tokens.detokenizer import Detokenizer, DetokenizerState

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np
    from numpy.typing import NDArray

    from trivium.config.sampling import SamplingParams
    from trivium.grammar.matching import Matching
    from trivium.grammar.part_reader import PartReader, PartsState
    from trivium.grammar.reasoning_budget import ReasoningBudget
    from trivium.tokens.tokenizer import Tokenizer

MAX_ROLL_BACK = 256
"""Most tokens that can be taken back."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """What one token brought."""

    text: str
    """Text that became certain; may be empty."""
    finish: FinishReason | None = None
    """Set when this token ended the answer."""
    stop_reason: int | str | None = None
    """The stop token, stop text or stop pattern that did; `None` for the model's own end tokens."""
    parts: list[OutputPart] | None = None
    """What the text means, where that is asked for."""

    def followed_by(self, end: Progress) -> Progress:
        """Return both as one, where another token or the end came behind a token."""
        parts = None if self.parts is None else [*self.parts, *(end.parts or ())]
        return Progress(self.text + end.text, end.finish, end.stop_reason, parts)


class Reading(NamedTuple):
    """What a reader of the answer's text so far has in mind; immutable, and seldom another from token to token."""

    detokenizer: DetokenizerState
    stop_state: StopState
    held: str
    """Text that is certain but may begin a stop."""
    finish: FinishReason | None
    parts: PartsState | None = None
    """Where the reader of parts stands, if there is one."""


class AutomatonState(NamedTuple):
    """A moment in the life of an answer; immutable and small."""

    num_tokens: int
    reading: Reading


class OutputAutomaton:
    """Reads the tokens of one answer, one at a time.

    Invariants:
        The texts of all `Progress` and of `finish`, joined, are the answer.
        No text that was given out begins a stop text that later becomes whole, or ends inside a character.
        After `roll_back(k)` the automaton is as if the last k tokens had never come.
    """

    __slots__ = (
        "_budget",
        "_detokenizer",
        "_end_ids",
        "_held_back_ids",
        "_matcher",
        "_min_tokens",
        "_num_matched",
        "_num_tokens",
        "_params",
        "_part_reader",
        "_past",
        "_reading",
        "_stop_ids",
        "_stops",
        "_tokenizer",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        end_ids: Collection[int] = (),
        *,
        stops: StopConditions | None = None,
        continues: bool = True,
        matcher: Matching | None = None,
        part_reader: PartReader | None = None,
        budget: ReasoningBudget | None = None,
    ) -> None:
        """Start before the first output token.

        Args:
            tokenizer: Knows the bytes of ids.
            params: The request's stop fields, `min_tokens`, `ignore_eos` and `skip_special_tokens`.
            end_ids: The model's end tokens; not used when `ignore_eos` is set. `stop_token_ids` are known anyway.
            stops: The machine for `params.stop` and `params.stop_regex`, which the choices of a request share.
            continues: The answer continues a prompt, so a leading space belongs to it.
            matcher: At the beginning of the grammar that the answer is under, if it is under one.
            part_reader: Says what of the text is reasoning, content or a call, if that is asked for.
            budget: How long the answer may reason, if that is limited; kept within the grammar.

        Raises:
            InvalidParameterError: The stops are too long altogether, or one cannot be read.
        """
        self._tokenizer = tokenizer
        self._params = params
        self._stop_ids = frozenset(params.stop_token_ids)
        self._end_ids = self._stop_ids | (frozenset() if params.ignore_eos else frozenset(end_ids))
        self._held_back_ids = tuple(map(TokenId, sorted(self._end_ids))) if params.min_tokens else ()
        self._stops = StopConditions(params.stop, params.stop_regex) if stops is None else stops
        marks = map(tokenizer.token_id, () if part_reader is None else part_reader.marks)
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            continues=continues,
            shown_ids=[mark for mark in marks if mark is not None],
        )
        self._min_tokens = params.min_tokens
        self._budget = budget
        self._matcher: Matching | None = matcher if budget is None else budget.over(matcher)
        self._num_matched = 0
        """Tokens that the matcher has read: those that have been taken, but for an end token."""
        self._num_tokens = 0
        self._part_reader = part_reader
        parts = None if part_reader is None else part_reader.start
        self._reading = Reading(self._detokenizer.state, StopConditions.start, "", None, parts)
        self._past: deque[Reading] = deque(maxlen=MAX_ROLL_BACK)
        """What was in mind before each of the last tokens."""

    @property
    def num_tokens(self) -> int:
        """Tokens read so far."""
        return self._num_tokens

    @property
    def is_finished(self) -> bool:
        """Whether the answer has ended."""
        return self._reading.finish is not None

    @property
    def held_text(self) -> str:
        """Text that is certain but not given out yet, because it may begin a stop text."""
        return self._reading.held

    def held_back_at(self, index: int) -> tuple[TokenId, ...]:
        """Return the end tokens that the token at this index may not be, because of `min_tokens`; ascending."""
        return self._held_back_ids if index < self._min_tokens else ()

    def ends_at(self, token_id: int) -> bool:
        """Return whether this token, read next, ends the answer because it is an end token."""
        return token_id in self._end_ids and self._num_tokens >= self._min_tokens

    @property
    def is_constrained(self) -> bool:
        """Whether the answer is under a grammar."""
        return self._matcher is not None

    def constrain(self, matcher: Matching, token_ids: Iterable[int] = ()) -> None:
        """Put the answer under a grammar.

        Args:
            matcher: At the beginning of the grammar.
            token_ids: What was read of the answer so far.

        Raises:
            InternalError: The tokens are against the grammar.
        """
        self._matcher = matcher if self._budget is None else self._budget.over(matcher)
        for token_id in token_ids:
            self._matcher.advance(token_id)
        self._num_matched = self._num_tokens

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        """Set the bits of the tokens that may come next, and clear all others; for constrained answers.

        Raises:
            InternalError: The grammar has grown beyond its limits, or the answer is under none.
        """
        if self._matcher is None:
            raise InternalError("an answer without a grammar has no mask")
        self._matcher.fill(mask)

    def take(self, token_id: int) -> bool:
        """Take note of the next token before it is read; returns whether it ends the answer by itself.

        A stop text may end it nevertheless, when it is read.

        Raises:
            InternalError: The token is against the grammar.
        """
        if self._matcher is None:
            return self.ends_at(token_id)
        if token_id in self._end_ids and self._num_matched >= self._min_tokens:
            return True
        self._matcher.advance(token_id)
        self._num_matched += 1
        return self._matcher.is_complete

    def jump(self, most: int) -> tuple[list[TokenId], bool]:
        """Take the tokens that must come next, of at most `most`; returns them, and whether they end the answer.

        An end token is never among them: whether it may come depends on more than the grammar.

        Raises:
            InternalError: The grammar has grown beyond its limits.
        """
        jumped: list[TokenId] = []
        if self._matcher is None:
            return jumped, False
        while len(jumped) < most and (forced := self._matcher.forced()):
            num_sure = 1 if self._budget is not None else most - len(jumped)  # a budget may force others on the way
            for token_id in map(TokenId, forced[:num_sure]):
                if token_id in self._end_ids:
                    return jumped, False
                jumped.append(token_id)
                if self.take(token_id):
                    return jumped, True
        return jumped, False

    def untake(self, num_tokens: int) -> None:
        """Take back the last tokens taken, none of which was read.

        Raises:
            InternalError: Fewer were taken since the last one that was read.
        """
        ensure(num_tokens <= self._num_matched - self._num_tokens, f"{num_tokens} tokens to take back were read")
        self._match_back_to(self._num_matched - num_tokens)

    def advance(self, token_id: int) -> Progress:
        """Read one output token.

        Raises:
            InternalError: The answer has ended.
        """
        reading = self._reading
        if reading.finish is not None:
            raise InternalError(f"token {token_id} came after the answer had ended ({reading.finish})")
        can_end = self._num_tokens >= self._min_tokens
        self._past.append(reading)
        self._num_tokens += 1
        progress = self._read(token_id, can_end=can_end)
        return progress if self._part_reader is None else self._with_parts(progress, self._part_reader)

    def _read(self, token_id: int, *, can_end: bool) -> Progress:
        reading = self._reading
        if can_end and token_id in self._end_ids:
            return self._end_at_token(token_id)
        added = self._detokenizer.push(token_id)
        if reading.stop_state == StopConditions.start and self._stops.begins_nowhere_in(added):
            if self._detokenizer.state is not reading.detokenizer:
                self._settle(StopConditions.start, "", None)
            return Progress(added)
        return self._search(added, can_end=can_end)

    def replay(self, token_ids: Iterable[int]) -> str:
        """Take and read tokens of an earlier life of this answer and return the text that they had brought.

        Raises:
            InternalError: The answer ends before the last of them, or they are against its grammar.
        """
        texts = []
        for token_id in token_ids:
            self.take(token_id)
            texts.append(self.advance(token_id).text)
        return "".join(texts)

    def finish(self, reason: FinishReason) -> Progress:
        """End the answer for a reason that is not a token's (length, abort) and return what was held back.

        The U+FFFD of a character that was cut off by the end is not searched for stop texts. Does nothing, and
        returns nothing, when the answer has ended already.
        """
        if self._reading.finish is not None:
            return Progress("")
        progress = Progress(self._reading.held + self._detokenizer.finish(), reason)
        self._settle(StopConditions.start, "", reason)
        return progress if self._part_reader is None else self._with_parts(progress, self._part_reader)

    def snapshot(self) -> AutomatonState:
        """Return the present moment, for `restore`."""
        return AutomatonState(self._num_tokens, self._reading)

    def restore(self, state: AutomatonState) -> None:
        """Go to a moment that `snapshot` of this automaton, or of one it was forked from, returned.

        Effects:
            Earlier moments can't be reached by `roll_back` any more.
        """
        self._past.clear()
        self._return_to(state)
        self._match_back_to(state.num_tokens)

    def roll_back(self, num_tokens: int) -> None:
        """Take back the last tokens; a `finish` that came after them is taken back too.

        What their `Progress` said is void: the caller must not have passed it on.

        Raises:
            InternalError: Fewer tokens than `num_tokens` were read, or they are more than `MAX_ROLL_BACK`.
        """
        ensure(
            0 <= num_tokens <= len(self._past),
            f"cannot take back {num_tokens} tokens: only the last {len(self._past)} are remembered",
        )
        reading = self._reading
        for _ in range(num_tokens):
            reading = self._past.pop()
        self._return_to(AutomatonState(self._num_tokens - num_tokens, reading))
        self._match_back_to(self._num_tokens)

    def fork(self) -> OutputAutomaton:
        """Return an automaton at the same moment that goes on independently; it can't roll back beyond it."""
        matcher = None if self._matcher is None else self._matcher.fork()
        twin = OutputAutomaton(
            self._tokenizer,
            self._params,
            self._end_ids,
            stops=self._stops,
            part_reader=self._part_reader,
        )
        twin._budget, twin._matcher = self._budget, matcher
        twin._return_to(self.snapshot())
        twin._num_matched = self._num_matched
        return twin

    def _end_at_token(self, token_id: int) -> Progress:
        is_stop_id = token_id in self._stop_ids
        text = self._reading.held
        if is_stop_id and self._params.include_stop_str_in_output:
            text += self._detokenizer.push(token_id)
        text += self._detokenizer.finish()
        self._settle(StopConditions.start, "", FinishReason.STOP)
        return Progress(text, FinishReason.STOP, token_id if is_stop_id else None)

    def _search(self, added: str, *, can_end: bool) -> Progress:
        """Append `added` and give out what can't be part of a stop text.

        ::

            held        added
            |..........|.......|~~~~~~~~|      stop found: ~ is dropped
                   |...........|               the stop text; it begins in held or in added
            |......|                           given out (with the stop text when it is included)
        """
        _, stop_state, held, _, _ = self._reading
        text = held + added
        for end, letter in enumerate(added, start=len(held) + 1):
            stop_state = self._stops.step(stop_state, letter)
            stop = self._stops.whole(stop_state)
            if can_end and stop is not None:
                cut = end if self._params.include_stop_str_in_output else end - stop.length
                self._settle(StopConditions.start, "", FinishReason.STOP)
                return Progress(text[:cut], FinishReason.STOP, stop.stop)
        certain = len(text) - self._stops.held(stop_state)
        self._settle(stop_state, text[certain:], None)
        return Progress(text[:certain])

    def _settle(self, stop_state: StopState, held: str, finish: FinishReason | None) -> None:
        self._reading = Reading(self._detokenizer.state, stop_state, held, finish, self._reading.parts)

    def _with_parts(self, progress: Progress, reader: PartReader) -> Progress:
        """Say what the text means that has become certain."""
        before = self._reading.parts
        state, parts = reader.read(reader.start if before is None else before, progress.text)
        if progress.finish is not None:
            parts.extend(reader.finish(state))
        if state is not before:
            self._reading = self._reading._replace(parts=state)
        return msgspec.structs.replace(progress, parts=parts)

    def _match_back_to(self, num_tokens: int) -> None:
        if self._matcher is not None and self._num_matched > num_tokens:
            self._matcher.roll_back(self._num_matched - num_tokens)
            self._num_matched = num_tokens

    def _return_to(self, state: AutomatonState) -> None:
        self._num_tokens, self._reading = state
        self._detokenizer.restore(self._reading.detokenizer)
