"""A backend that answers by a script, for tests of programs: no model, the same answers every time.

Its tokens are characters, so that what a test expects can be counted on one's fingers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InvalidParameterError
from trivium.base.ids import TokenId
from trivium.config.chat_output import ChatOutput
from trivium.grammar.stops import StopConditions

if TYPE_CHECKING:
    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams
    from trivium.engine.messages import Delta
    from trivium.grammar.part_reader import PartReader, PartsState
    from trivium.lang.transcript import Codec
    from trivium.sampling.batch import TokenLogprobs

Answer = Callable[[str], str]
"""Prompt to answer; a `TriviumError` that it raises is the request's."""
Score = Callable[[str, str], float]
"""What precedes a character, and the character, to its logprob."""


class CharacterCodec:
    """One token per character."""

    prefix: tuple[int, ...] = ()

    def encode(self, text: str, *, continues: bool) -> list[int]:
        """Cut a text."""
        return [ord(letter) for letter in text]

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return what a token adds to the text."""
        return chr(token_id).encode("utf-8", "surrogatepass")


class ScriptedBackend:
    """Answers prompts from a list, in the order in which they come, or with a function.

    >>> ScriptedBackend(["Paris", "Rome"])                                       # doctest: +SKIP
    >>> ScriptedBackend(lambda prompt: "Paris" if "France" in prompt else "?")   # doctest: +SKIP
    """

    def __init__(
        self,
        answers: Answer | Sequence[str] = (),
        *,
        score: Score = lambda before, letter: -1.0,
        template: Callable[[Sequence[Mapping[str, str]], bool], str] | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """Prepare the script.

        Args:
            answers: What is answered; stop texts and `max_tokens` cut it.
            score: Logprob of a character behind a text, for `select` and reported logprobs.
            template: Writes messages, and the beginning of an answer; by default as `[role]content` lines.
            delay_s: Seconds before each character.
        """
        self.codec: Codec = CharacterCodec()
        self.prompts: list[str] = []
        """What was asked, in order."""
        self.params: list[SamplingParams] = []
        self.programs: list[ProgramShare | None] = []
        self.ended: list[str] = []
        """Ids of runs that have ended."""
        self.num_open = 0
        """Requests that have neither ended nor been aborted."""
        self._answers = answers if callable(answers) else _in_order(answers)
        self._score = score
        self._template = template or _lines
        self._delay_s = delay_s

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:  # noqa: FBT001
        """Write messages."""
        return self._template(messages, add_generation_prompt)

    async def submit(
        self, prompt_ids: list[int], params: SamplingParams, program: ProgramShare | None = None
    ) -> AsyncGenerator[Delta]:
        """Answer a prompt, a character at a time."""
        prompt = "".join(map(chr, prompt_ids))
        params.validate()
        self.prompts.append(prompt)
        self.params.append(params)
        self.programs.append(program)
        self.num_open += 1
        try:
            for choice in range(params.num_draws):
                async for news in self._answer(prompt, params, choice):
                    yield news
        finally:
            self.num_open -= 1

    def end_program(self, program_id: str) -> None:
        """Note it."""
        self.ended.append(program_id)

    def flush_cache(self) -> None:
        """There is no cache."""

    @property
    def info(self) -> Mapping[str, Any]:
        """Its name."""
        return {"model": "scripted"}

    async def _answer(self, prompt: str, params: SamplingParams, choice: int) -> AsyncGenerator[Delta]:
        from trivium.engine.messages import Delta  # noqa: PLC0415  (start-up time)

        text, reason, stop = self._cut(prompt, params)
        reader, place = (None, None) if params.chat_output is None else _reading(params)
        scores = None if params.prompt_logprobs is None else self._scored(prompt, params.prompt_logprob_start)
        for idx, letter in enumerate(text):
            await asyncio.sleep(self._delay_s)
            parts = None
            if reader is not None and place is not None:
                place, parts = reader.read(place, letter)
            row = [] if params.logprobs is None else [self._entry(prompt + text[:idx], letter)]
            yield Delta(
                request_id="scripted",
                choice=choice,
                first_token=idx,
                token_ids=[ord(letter)],
                text=letter,
                parts=parts,
                logprobs=row or None,
            )
        await asyncio.sleep(self._delay_s)
        yield Delta(
            request_id="scripted",
            choice=choice,
            first_token=len(text),
            token_ids=[],
            text="",
            parts=None if reader is None or place is None else reader.finish(place),
            prompt_logprobs=scores if choice == 0 else None,
            finish_reason=reason,
            stop_reason=stop,
        )

    def _cut(self, prompt: str, params: SamplingParams) -> tuple[str, str, str | None]:
        """Return answer, finish reason and stop text."""
        if params.max_tokens == 0:
            return "", "length", None
        text, reason, found = self._answers(prompt), "stop", None
        stops, state = StopConditions(params.stop, params.stop_regex), StopConditions.start
        for end, letter in enumerate(text, start=1):
            state = stops.step(state, letter)
            whole = stops.whole(state)
            if whole is not None:
                text, found = text[: end - whole.length], whole.stop
                break
        if params.max_tokens is not None and len(text) > params.max_tokens:
            text, reason, found = text[: params.max_tokens], "length", None
        return text, reason, found

    def _scored(self, prompt: str, start: int) -> list[TokenLogprobs | None]:
        return [self._entry(prompt[:idx], prompt[idx]) if idx else None for idx in range(start, len(prompt))]

    def _entry(self, before: str, letter: str) -> TokenLogprobs:
        from trivium.sampling.batch import TokenLogprobs  # noqa: PLC0415  (start-up time)

        return TokenLogprobs(TokenId(ord(letter)), self._score(before, letter), 1, (), ())


def _reading(params: SamplingParams) -> tuple[PartReader, PartsState]:
    from trivium.grammar.part_reader import PartReader  # noqa: PLC0415  (start-up time)

    reader = PartReader(params.chat_output or ChatOutput())
    return reader, reader.start


def _in_order(answers: Sequence[str]) -> Answer:
    left = iter(answers)

    def answer(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise InvalidParameterError(f"the script has no answer to {json.dumps(prompt[-60:])}") from None

    return answer


def _lines(messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:  # noqa: FBT001
    written = "".join(f"[{message['role']}]{message['content']}\n" for message in messages)
    return written + ("[assistant]" if add_generation_prompt else "")
