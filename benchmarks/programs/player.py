"""Stands between programs and a backend: gives every engine equal work, and records what was asked.

Engines stop at different tokens, since they round differently. So answers without a constraint are as long as they may
be: end tokens and stop texts do not end them. Prompts begin with a few tokens of the run's own, so that no earlier run
has warmed a cache.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from benchmarks.workloads.optimum import KnownBeginnings

if TYPE_CHECKING:
    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams
    from trivium.engine.messages import Delta
    from trivium.lang.backends.backend import Backend
    from trivium.lang.transcript import Codec


@dataclass(slots=True)
class Call:
    """One request of a program."""

    prompt: tuple[int, ...]
    reusable_len: int
    """Tokens of the prompt that need not run if they are cached: all but the last, or all before the position whose
    logits score the first token."""
    answer: list[int] = field(default_factory=list)
    cached_len: int = 0
    has_ended: bool = False


class Player:
    """A backend that passes on to another one."""

    def __init__(self, backend: Backend, salt: Sequence[int] = (), *, has_fixed_lengths: bool = True) -> None:
        """Wrap a backend.

        Args:
            backend: What answers.
            salt: Tokens before every prompt.
            has_fixed_lengths: Whether answers without a constraint are as long as `max_tokens` allows.
        """
        self._backend = backend
        self._salt = list(salt)
        self._has_fixed_lengths = has_fixed_lengths
        self.events: list[tuple[str, Call]] = []
        """`asked` and `ended`, in the order in which they happened."""
        self.codec: Codec = backend.codec

    @property
    def calls(self) -> list[Call]:
        """All that was asked."""
        return [call for what, call in self.events if what == "asked"]

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:  # noqa: FBT001
        """Write messages as the backend does."""
        return self._backend.render(messages, add_generation_prompt)

    def flush_cache(self) -> None:
        """Pass on."""
        self._backend.flush_cache()

    @property
    def info(self) -> Mapping[str, Any]:
        """Pass on."""
        return self._backend.info

    def end_program(self, program_id: str) -> None:
        """Pass on."""
        self._backend.end_program(program_id)

    async def submit(
        self, prompt_ids: list[int], params: SamplingParams, program: ProgramShare | None = None
    ) -> AsyncGenerator[Delta]:
        """Pass on a request, in its form for all engines."""
        params = self._adapt(params)
        call = Call((*self._salt, *prompt_ids), _reusable_len(len(self._salt) + len(prompt_ids), params))
        self.events.append(("asked", call))
        async with aclosing(self._backend.submit(list(call.prompt), params, program)) as deltas:
            async for news in deltas:
                call.answer += news.token_ids
                call.cached_len = max(call.cached_len, news.cached_len)
                yield news
        call.has_ended = True
        self.events.append(("ended", call))

    def _adapt(self, params: SamplingParams) -> SamplingParams:
        if params.prompt_logprobs is not None:
            return replace(params, prompt_logprob_start=params.prompt_logprob_start + len(self._salt))
        if self._has_fixed_lengths and params.structured_outputs is None:
            return replace(params, stop=(), min_tokens=params.max_tokens or 0)
        return params


def _reusable_len(prompt_len: int, params: SamplingParams) -> int:
    return prompt_len - 1 if params.prompt_logprobs is None else max(params.prompt_logprob_start - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What calls came to, in tokens."""

    num_calls: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that the engine found in its cache."""
    reusable_tokens: int
    """Those that one could have found which keeps everything: known from an earlier prompt, or from an answer to it."""
    output_tokens: int

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that was found."""
        return self.cached_tokens / self.prompt_tokens

    @property
    def share_of_optimum(self) -> float:
        """The same beside the best possible."""
        return self.cached_tokens / self.reusable_tokens if self.reusable_tokens else 1.0


def count(events: Sequence[tuple[str, Call]]) -> Counts:
    """Count what was found and what could have been, by a tree of every sequence that knows nothing of the engine.

    An answer's last token is drawn and never run, so nobody can find it.

    Raises:
        ValueError: A call has not ended.
    """
    known = KnownBeginnings()
    reusable = 0
    for what, call in events:
        if not call.has_ended:
            raise ValueError(f"a call with {len(call.prompt)} prompt tokens has not ended")
        if what == "asked":
            reusable += min(known.add(call.prompt), call.reusable_len)
        elif call.answer:
            known.add((*call.prompt, *call.answer[:-1]))
    calls = [call for what, call in events if what == "asked"]
    return Counts(
        num_calls=len(calls),
        prompt_tokens=sum(len(call.prompt) for call in calls),
        cached_tokens=sum(call.cached_len for call in calls),
        reusable_tokens=reusable,
        output_tokens=sum(len(call.answer) for call in calls),
    )


def play(runs: Sequence[tuple[Any, tuple[Any, ...]]], player: Player, num_programs: int) -> tuple[list[Any], float]:
    """Run programs through a player, so many at a time; return their states, and the seconds until all are done.

    Raises:
        ProgramError: One failed.
    """
    import trivium.lang as sgl  # noqa: PLC0415  (start-up time)

    sgl.set_default_backend(player)  # programs that programs run
    program, arguments = _one_program(runs)
    began_s = time.perf_counter()
    states: Any = program.run_batch(arguments, backend=player, num_threads=num_programs, temperature=0.0)
    return list(states), time.perf_counter() - began_s


def _one_program(runs: Sequence[tuple[Any, tuple[Any, ...]]]) -> tuple[Any, list[tuple[Any, ...]]]:
    """Return a program that runs each of these, and arguments for it: a batch is of one program."""
    import trivium.lang as sgl  # noqa: PLC0415  (start-up time)

    @sgl.function
    def any_of_them(s: Any, idx: int) -> Any:
        program, arguments = runs[idx]
        return program.func(s, *arguments)

    return any_of_them, [(idx,) for idx in range(len(runs))]
