"""What benchmarks of the engine's Python share: a loop over an executor without a model, and a text to decode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from support.tiny_tokenizers import byte_level
from trivium.assembly import load_tokenizer, open_model
from trivium.assembly.native import NativeParts
from trivium.base.clock import SystemClock
from trivium.base.errors import TriviumError
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.options import ScheduleOptions
from trivium.config.resolve import options_from
from trivium.engine.admit import ModelLimits
from trivium.engine.loop import EngineLoop
from trivium.kernels import native
from trivium.sampling.batch import Sampled, SampleRow
from trivium.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.schedule.step import Step
    from trivium.tokens.tokenizer import Tokenizer

PAGE_LEN = 16
MAX_BATCHED_TOKENS = 512
TEXT = Path(__file__).parents[1] / "ARCHITECTURE.md"


class TextExecutor:
    """Draws the tokens of a text, whatever the step: the first row one token, the second the one after it, and so on.

    `seconds` is the CPU that its calls took in the caller's thread; `work` is what a subclass does in each step.
    """

    def __init__(self, text_ids: Sequence[int], num_pages: int) -> None:
        self.kv_spec = KVSpec((KVGroup("full", (0,), 1024),), PAGE_LEN)
        self.num_pages = (num_pages,)
        self._ids = np.resize(np.array(text_ids, np.int32), len(text_ids) + MAX_BATCHED_TOKENS)
        self._period = len(text_ids)
        self._at = 0
        self.seconds = 0.0

    def work(self, num_tokens: int) -> None:
        """Do what a step of so many tokens is to cost; nothing here."""

    def forward(self, step: Step) -> None:
        """Take a step."""
        began = time.thread_time()
        self.work(step.num_tokens)
        self.seconds += time.thread_time() - began

    def sample(self, rows: Sequence[SampleRow], masks: Any = None) -> Sampled:
        """Draw the next tokens of the text."""
        del masks
        began = time.thread_time()
        self._at = (self._at + 1) % self._period
        count = len(rows)
        sampled = Sampled(token_ids=self._ids[self._at : self._at + count], logprobs=[None] * count)
        self.seconds += time.thread_time() - began
        return sampled

    def close(self) -> None:
        """Nothing to give back."""


class NativeCalls:
    """The native executor's two calls of a step with all of their Python, and nothing behind them.

    Steps are checked and their arrays handed over, but no instruction runs; records of the sampler are packed, but the
    tokens are given. The native sampler of this process answers with them from now on.
    """

    def __init__(self, model: str, num_requests: int, max_model_len: int) -> None:
        """Load a model for so many requests.

        Raises:
            TriviumError: It cannot be had here, or cannot be run natively.
        """
        options = options_from({"model": model, "offline": True, "max_num_seqs": num_requests})
        parts = NativeParts(options, open_model(options))
        self.kv_spec = parts.kv_spec
        self.num_pages = num_requests * (max_model_len // self.kv_spec.page_len + 2)
        self._executor = parts.make((self.num_pages,) * len(self.kv_spec.groups), lambda *_: None)
        self._token_ids = np.zeros(0, np.int32)
        vars(native.load())["sample"] = self._answer

    def forward(self, step: Step) -> None:
        """Call the program, without any of its instructions."""
        self._executor._run(step, None, (0, 0))  # noqa: SLF001  (a step with nothing in it)

    def sample(self, rows: Sequence[SampleRow], token_ids: NDArray[np.int32]) -> Sampled:
        """Call the sampler, whose answer is given."""
        self._token_ids = token_ids
        return self._executor.sample(rows)

    def _answer(self, logits: Any, records: Any, lists: Any, masks: Any, token_ids: Any, errors: Any, *_: Any) -> int:
        del logits, records, lists, masks
        token_ids[:] = self._token_ids
        errors[:] = 0
        return 0


def find_tokenizer(name: str) -> tuple[Tokenizer, int]:
    """Return the tokenizer of a model that is on this machine, else a tiny one, and its vocabulary."""
    try:
        options = options_from({"model": name, "offline": True})
        model = open_model(options)
        return load_tokenizer(options, model), model.config.vocab_size
    except TriviumError as error:
        print(f"{error}\n-> the tiny byte tokenizer instead")
        tokenizer = byte_level()
        return tokenizer, tokenizer.vocab_size


def text_ids(tokenizer: Tokenizer) -> list[int]:
    """Return an English text in tokens."""
    return tokenizer.encode(TEXT.read_text(), add_special_tokens=False)


def make_loop(
    executor: TextExecutor, tokenizer: Tokenizer, vocab_size: int, *, num_requests: int, max_model_len: int
) -> EngineLoop:
    """Make a loop for `num_requests` requests at a time."""
    scheduler = Scheduler(
        ScheduleOptions(max_num_seqs=num_requests, max_num_batched_tokens=MAX_BATCHED_TOKENS),
        executor.kv_spec,
        executor.num_pages,
        max_model_len,
        prefix_cache=True,
        clock=SystemClock(),
    )
    limits = ModelLimits(
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        end_ids=tokenizer.eos_ids,
        namespace=("benchmark",),
        rope_variant=lambda reach: (),
        bad_word_ids=lambda text: (),
    )
    return EngineLoop(
        executor=executor,
        scheduler=scheduler,
        tokenizer=tokenizer,
        limits=limits,
        info={"max_model_len": max_model_len, "vocab_size": vocab_size},
        clock=SystemClock(),
    )
