"""A scripted executor that samples, so that a whole engine loop runs on hashes; and what it must answer.

A drawn token depends on all that its row can see, on the seed and the choice, on the position, and on the tokens before
it, so a mistake in pages, in the random key, or in what a continued answer knows of itself makes another answer. Drawn
tokens are the letters a to p, so that stop texts and stop tokens occur, or what a grammar allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from support.grammars import TOKENIZER, VOCAB_SIZE, allowed, allowed_by, grammar_of
from support.scripted_executor import LonelyKV, ScriptedExecutor, mix
from trivium.base.ids import FinishReason, TokenId
from trivium.cache.spec import KVSpec
from trivium.config.sampling import SamplingParams
from trivium.config.structured import StructuredOutputs
from trivium.grammar.automaton import OutputAutomaton
from trivium.grammar.compiler import CompilerStats
from trivium.grammar.matcher import Grammar
from trivium.sampling.batch import Draws, Sampled, SampleRow, TokenLogprobs
from trivium.schedule.step import Step

LETTERS = 16
Masks = NDArray[np.uint32]


class EngineKilledError(BaseException):
    """The engine is gone in the middle of something; nobody inside may handle it."""


class MortalExecutor(ScriptedExecutor):
    """A scripted executor for an engine loop, in which tests bring about every kind of trouble."""

    weight_bytes = 0

    def __init__(self, spec: KVSpec, num_pages: Sequence[int], *, is_late: bool = False) -> None:
        """Draw when asked, or, as a device that runs by itself, when the draws are collected."""
        super().__init__(spec, num_pages, VOCAB_SIZE)
        self._is_late = is_late
        self.num_failed = 0
        """How often something went wrong."""
        self.spoiled: list[Sequence[TokenId]] = []
        """Tokens of the requests of which a row had no token."""
        self.dies_in: str | None = None
        """The method in which the engine is killed when it is called next."""
        self.fails_in: str | None = None
        """The method that raises when it is called next."""
        self.bad_row: int | None = None
        """Which row of the next sample has no token, counted round."""

    def forward(self, step: Step) -> None:
        self._suffer("forward")
        super().forward(step)
        self._mask_row = step.mask_row.tolist()

    def export_page(self, group_idx: int, page: int) -> bytes:
        self._suffer("export_page")
        return super().export_page(group_idx, page)

    def import_page(self, group_idx: int, page: int, content: bytes) -> None:
        self._suffer("import_page")
        super().import_page(group_idx, page, content)

    def sample(self, rows: Sequence[SampleRow], masks: Masks | None = None) -> Draws:
        pairs = list(zip(self.seen, rows, strict=True))
        choices = [None if masks is None or row < 0 else allowed_by(masks[row]) for row in self._mask_row]
        return LateDraws(lambda: self._drawn(pairs, choices)) if self._is_late else self._drawn(pairs, choices)

    def _drawn(self, pairs: Sequence[tuple[int, SampleRow]], choices: Sequence[set[int] | None]) -> Sampled:
        self._suffer("sample")
        errors = {}
        if self.bad_row is not None and pairs:
            at, self.bad_row = self.bad_row % len(pairs), None
            errors = {at: "no token is likely"}
            self.spoiled.append(pairs[at][1].tokens)
        tokens = [
            -1 if idx in errors else draw(seen, row, choice)
            for idx, ((seen, row), choice) in enumerate(zip(pairs, choices, strict=True))
        ]
        return Sampled(
            token_ids=np.array(tokens, np.int32),
            logprobs=[score(seen, row, token) for (seen, row), token in zip(pairs, tokens, strict=True)],
            errors=errors,
        )

    def close(self) -> None:
        """There is nothing to give back."""

    def _suffer(self, where: str) -> None:
        if self.dies_in == where:
            raise EngineKilledError(where)
        if self.fails_in == where:
            self.fails_in = None
            self.num_failed += 1
            raise RuntimeError(f"{where} went wrong")


class LateDraws:
    """Draws that are made when they are collected."""

    def __init__(self, make: Callable[[], Sampled]) -> None:
        self._make = make

    def result(self) -> Sampled:
        """Draw."""
        return self._make()


class ReadyCompiler:
    """A compiler whose grammars are there when they are asked for."""

    stats = CompilerStats(
        compiled_total=0,
        cached_total=0,
        failed_total=0,
        compile_seconds_total=0.0,
        num_evicted_total=0,
        num_kept=0,
        kept_bytes=0,
    )

    def submit(self, wanted: StructuredOutputs, asker: str = "") -> Future[Grammar]:
        """Return a grammar."""
        del asker
        promise: Future[Grammar] = Future()
        promise.set_result(grammar_of(wanted))
        return promise

    def leave(self, asker: str) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """There is nothing to give back."""


def draw(seen: int, row: SampleRow, choice: set[int] | None = None) -> int:
    """Draw the token of a row, perhaps of few that are allowed, or return the one that it scores."""
    if row.target is not None:
        return row.target
    assert len(row.tokens) == row.position, "a row draws a token that is known, or skips one"
    key = 0 if row.params.is_greedy else mix(((row.params.seed or 0) << 8) + row.choice + 1)
    text = sum((2 * at + 1) * token for at, token in enumerate(row.tokens))
    letter = mix(seen ^ key ^ mix(text) ^ row.position)
    if choice is not None:
        possible = sorted(choice.difference(row.held_back_ids) or choice)
        return possible[letter % len(possible)]
    while ord("a") + letter % LETTERS in row.held_back_ids:
        letter += 1
    return ord("a") + letter % LETTERS


def score(seen: int, row: SampleRow, token: int) -> TokenLogprobs | None:
    """Return the logprob of a row's token, where one is wanted."""
    if row.num_logprobs is None or token < 0:
        return None
    return TokenLogprobs(TokenId(token), -(mix(seen ^ token) % 1000) / 100, 1, (), ())


@dataclass(slots=True)
class Told:
    """An answer, or what a client was told of one."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str | None = None
    stop_reason: int | str | None = None


def answer_alone(spec: KVSpec, prompt: Sequence[int], params: SamplingParams, choice: int, end_len: int) -> Told:
    """Return an answer as nobody else is there: without engine, scheduler, pages or batches.

    Args:
        spec: Of the executor.
        prompt: Token ids.
        params: With its seed; `max_tokens` does not count, but `end_len` does.
        choice: Which of the answers.
        end_len: Tokens, the prompt's included, with which it ends at the latest.
    """
    kv, told = LonelyKV(spec), Told()
    wanted = params.structured_outputs
    matcher = None if wanted is None else grammar_of(wanted).start()
    automaton = OutputAutomaton(TOKENIZER, params, params.stop_token_ids, matcher=matcher)
    tokens = [TokenId(token) for token in prompt]
    row = SampleRow(params=params, choice=choice, position=len(prompt), tokens=tokens, prompt_len=len(prompt))
    row.num_logprobs = params.logprobs
    while told.finish is None:
        if len(tokens) >= end_len:
            told.finish = FinishReason.LENGTH.value
            break
        for token in tokens[-1:] if told.tokens else tokens:
            seen = kv.run(token)
        row.position, row.held_back_ids = len(tokens), automaton.held_back_at(len(told.tokens))
        token = draw(seen, row, None if matcher is None else allowed(matcher))
        is_end, progress = automaton.take(token), automaton.advance(token)
        tokens.append(TokenId(token))
        told.tokens.append(token)
        told.text += progress.text
        told.logprobs += filter(None, [score(seen, row, token)])
        told.finish = progress.finish.value if progress.finish else None
        told.stop_reason = progress.stop_reason
        if told.finish is None and (is_end or len(tokens) >= end_len):
            reason = FinishReason.STOP if is_end else FinishReason.LENGTH
            told.finish = reason.value
            told.text += automaton.finish(reason).text
    return told


def scores_alone(spec: KVSpec, prompt: Sequence[int], params: SamplingParams) -> list[TokenLogprobs | None]:
    """Return the prompt logprobs that a request wants, as nobody else is there."""
    kv = LonelyKV(spec)
    row = SampleRow(
        params=replace(params), choice=0, position=0, tokens=(), prompt_len=0, num_logprobs=params.prompt_logprobs
    )
    found = [
        None,
        *(score(kv.run(token), row, following) for token, following in pairwise(prompt)),
    ]
    return found[params.prompt_logprob_start :]
