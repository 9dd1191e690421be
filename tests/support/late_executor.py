"""Scripted executors for an engine loop: one that computes when it is called, and one whose draws come late.

`LateExecutor` stands for a device that runs by itself. It runs a step as early as it may, or as late as it must, and
fails the test when the loop breaks the contract: a second step before the first was collected, a step or a row that
changes under its hands, a page that is moved while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import fields, replace

import numpy as np

from support.scripted_executor import ScriptedExecutor
from support.tiny_tokenizers import byte_level
from trivium.base.clock import FakeClock
from trivium.cache.spec import KVSpec
from trivium.config.options import ScheduleOptions
from trivium.engine.admit import ModelLimits
from trivium.engine.loop import EngineLoop
from trivium.sampling.batch import Draws, Sampled, SampleRow
from trivium.schedule.scheduler import Scheduler
from trivium.schedule.step import Step

_TOKENIZER = byte_level()
NUM_LETTERS = 16
MAX_MODEL_LEN = 96
END_ID = ord("p")


class PromptExecutor(ScriptedExecutor):
    """Draws the letters a to p; `tell` hears of everything that it is asked."""

    weight_bytes = 0

    def __init__(self, spec: KVSpec, num_pages: Sequence[int]) -> None:
        super().__init__(spec, num_pages, NUM_LETTERS)
        self.tell: Callable[[str], None] = lambda event: None

    def forward(self, step: Step) -> None:
        self.tell("forward")
        super().forward(step)

    def sample(self, rows: Sequence[SampleRow], masks: object = None) -> Draws:
        self.tell("sample")
        return self._drawn(rows)

    def close(self) -> None:
        self.tell("close")

    def _drawn(self, rows: Sequence[SampleRow]) -> Sampled:
        letters = [ord("a") + letter for letter in self.drawn()]
        tokens = [letter if row.target is None else row.target for letter, row in zip(letters, rows, strict=True)]
        for idx, row in enumerate(rows):
            assert row.target is not None or len(row.tokens) == row.position, "a known token is drawn, or one skipped"
            while row.target is None and tokens[idx] in row.held_back_ids:
                tokens[idx] -= 1
        return Sampled(token_ids=np.array(tokens, np.int32), logprobs=[None] * len(rows))


class LateExecutor(PromptExecutor):
    """Promises draws."""

    def __init__(self, spec: KVSpec, num_pages: Sequence[int], *, is_lazy: bool = True) -> None:
        """Run steps when their draws are asked for, or at once when not lazy."""
        super().__init__(spec, num_pages)
        self._is_lazy = is_lazy
        self._step: Step | None = None
        self._before: Step | None = None
        self.fails: BaseException | None = None
        """What waiting for the next draws raises, once."""

    def forward(self, step: Step) -> None:
        self.tell("forward")
        assert self._step is None, "a step was launched before the draws of the one before were collected"
        self._step, self._before = step, deepcopy(step)
        if not self._is_lazy:
            ScriptedExecutor.forward(self, step)

    def sample(self, rows: Sequence[SampleRow], masks: object = None) -> Draws:
        self.tell("sample")
        return _Promise(self, rows)

    def export_page(self, group_idx: int, page: int) -> bytes:
        assert self._step is None, "a page was copied out while a step ran"
        return super().export_page(group_idx, page)

    def import_page(self, group_idx: int, page: int, content: bytes) -> None:
        assert self._step is None, "a page was written while a step ran"
        super().import_page(group_idx, page, content)

    def collect(self, rows: Sequence[SampleRow]) -> Sampled:
        """Run the step, if that is still to be done, and draw."""
        self.tell("wait")
        if self.fails is not None:
            error, self.fails = self.fails, None
            if isinstance(error, Exception):
                self._step = None
            raise error
        step, self._step = self._step, None
        assert step is not None
        assert self._before is not None
        for name in (field.name for field in fields(Step)):
            np.testing.assert_equal(getattr(step, name), getattr(self._before, name), f"step.{name} changed in flight")
        if self._is_lazy:
            ScriptedExecutor.forward(self, step)
        return self._drawn(rows)


class _Promise:
    def __init__(self, executor: LateExecutor, rows: Sequence[SampleRow]) -> None:
        self._executor = executor
        self._rows = rows
        self._before = [replace(row, tokens=list(row.tokens)) for row in rows]
        self._drawn: Sampled | None = None

    def result(self) -> Sampled:
        if self._drawn is None:
            assert list(self._rows) == self._before, "a row changed in flight"
            self._drawn = self._executor.collect(self._rows)
        return self._drawn


def loop_over(
    executor: PromptExecutor, options: ScheduleOptions, *, prefix_cache: bool = True, max_logit_rows: int | None = None
) -> EngineLoop:
    """Make a loop with a clock that stands still; every answer may end with the letter p."""
    scheduler = Scheduler(
        options,
        executor.kv_spec,
        executor.num_pages,
        MAX_MODEL_LEN,
        prefix_cache=prefix_cache,
        clock=FakeClock(),
        max_logit_rows=max_logit_rows,
    )
    limits = ModelLimits(
        vocab_size=_TOKENIZER.vocab_size,
        max_model_len=MAX_MODEL_LEN,
        end_ids=(END_ID,),
        namespace=("scripted",),
        rope_variant=lambda reach: (),
        bad_word_ids=lambda text: (),
        page_len=executor.kv_spec.page_len,
        takes_priority=options.order == "priority",
    )
    return EngineLoop(
        executor=executor,
        scheduler=scheduler,
        tokenizer=_TOKENIZER,
        limits=limits,
        info={},
        clock=FakeClock(),
    )
