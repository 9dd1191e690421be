"""A scripted engine, tokenizer and chat template, so that the whole HTTP surface is tested without a model.

The engine answers with the tokens of a script, one delta per token, like the real one: an empty delta on arrival,
prompt logprobs in the first news of choice 0, a finish reason in the last. It can hold its answers at a token until
released, refuse, fail an answer, and die. Nothing sleeps: what waits, waits for an event.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from trivium.base.errors import EngineDeadError, TemplateError, TriviumError
from trivium.config.model import LayerConfig, ModelConfig, RopeConfig
from trivium.config.program_share import ProgramShare
from trivium.config.sampling import SamplingParams
from trivium.engine.messages import AnswerReport, CacheNews, Delta
from trivium.engine.operations import refusal_of
from trivium.engine.served_adapters import ServedAdapters
from trivium.grammar.part_reader import PartReader
from trivium.grammar.parts import OutputPart
from trivium.sampling.batch import TokenLogprobs
from trivium.server.served import ServedModel

BOS_ID, EOS_ID, IM_START_ID, IM_END_ID = 256, 257, 258, 259
_SPECIAL = {BOS_ID: "<s>", EOS_ID: "</s>", IM_START_ID: "<|im_start|>", IM_END_ID: "<|im_end|>"}
MODEL_VOCAB = 300
"""Larger than the tokenizer's 260, as padded vocabularies of real models are."""

Script = Callable[[Sequence[int], int, SamplingParams], Sequence[int]]
"""(prompt ids, choice, params) to the tokens of the answer, end token included if there is one."""


class ByteTokenizer:
    """One token per byte of UTF-8, and four special ones."""

    def __init__(self, *, adds_bos: bool = False) -> None:
        self._adds_bos = adds_bos

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = [BOS_ID] if self._adds_bos and add_special_tokens else []
        while text:
            special = next((id_ for id_, name in _SPECIAL.items() if text.startswith(name)), None)
            if special is None:
                ids.extend(text[0].encode())
                text = text[1:]
            else:
                ids.append(special)
                text = text.removeprefix(_SPECIAL[special])
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        kept = [id_ for id_ in ids if not (skip_special_tokens and self.is_special(id_))]
        return b"".join(self.token_bytes(id_) for id_ in kept).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < BOS_ID else _SPECIAL.get(token_id, "").encode()

    def is_special(self, token_id: int) -> bool:
        return token_id in _SPECIAL

    def describe(self) -> dict[str, Any]:
        return {"adds_bos": self._adds_bos}


class JoiningTemplate:
    """Joins role and content with `+`, as real templates do: a content that is no text raises inside."""

    def __init__(self, *, refuses: str | None = None, uses: Sequence[str] = (), opening: str = "") -> None:
        self.refuses = refuses
        self.known = frozenset(uses)
        self.opening = opening
        """What it writes behind the beginning of an answer."""
        self.seen: list[Mapping[str, Any]] = []
        self.variables: Mapping[str, Any] = {}
        self.takes_text_arguments = False

    def uses(self, variable: str) -> bool:
        return variable in self.known

    def describe(self) -> dict[str, Any]:
        return {"opening": self.opening}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        if self.refuses is not None:
            raise TemplateError(self.refuses)
        self.seen = list(messages)
        self.variables = {"tools": tools, **variables}
        text = "".join("<|im_start|>" + m["role"] + "\n" + m["content"] + "<|im_end|>\n" for m in messages)
        begun = "<|im_start|>assistant\n" + self.opening if add_generation_prompt else ""
        return text + str(variables.get("suffix", "")) + begun


def say(text: str) -> Script:
    """Make a script that says `text` and ends with the end token."""
    return lambda prompt_ids, choice, params: [*text.encode(), EOS_ID]


def alphabet(prompt_ids: Sequence[int], choice: int, params: SamplingParams) -> Sequence[int]:
    """Say the alphabet for ever, beginning at the choice's letter."""
    return [ord("a") + (choice + idx) % 26 for idx in range(4096)]


@dataclass(slots=True)
class FakeStatus:
    """What the engine says of itself; tests set it."""

    is_ready: bool = True
    is_restarting: bool = False
    heartbeat_age_s: float = 0.0
    epoch: int = 1
    info: dict[str, object] = field(default_factory=dict)
    stats: dict[str, object] = field(default_factory=dict)
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class Submitted:
    """A request as the engine got it."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    cache_salt: str
    priority: int
    tenant: str
    program: ProgramShare | None
    deadline_s: float | None
    adapter: str | None


class FakeEngine:
    """Fits `server.ports.EnginePort`; see the module docstring.

    Invariants:
        `open_ids` holds exactly the requests whose stream is neither finished nor closed.
    """

    def __init__(self, script: Script = alphabet, *, cached_len: int = 0) -> None:
        self.script = script
        self.cached_len = cached_len
        self.condition = FakeStatus()
        self.submitted: list[Submitted] = []
        self.ended_programs: list[tuple[str, str]] = []
        self.aborted: list[str] = []
        self.open_ids: set[str] = set()
        self.calls: list[str] = []
        self.refusal: TriviumError | None = None
        self.refuses_prompt: int | None = None
        """Index of the submission that `refusal` applies to; `None` for all."""
        self.fail_after: int | None = None
        """Tokens after which every answer fails with an error delta."""
        self.failure = ("the step failed", "internal_error")
        """Message and code of that delta."""
        self.slow_submissions: set[int] = set()
        """Indices of submissions that are accepted many turns of the event loop later than the others."""
        self.hold_after: int | None = None
        """Tokens after which every answer waits for `release`."""
        self.reports: list[AnswerReport] = []
        """What it says of its open answers."""
        self.tell_end: Callable[[AnswerReport], None] = lambda report: None
        self.tell_cache: Callable[[CacheNews], None] = lambda news: None
        self.tell_start: Callable[[], None] = lambda: None
        self.replies: list[dict[str, Any]] = []
        """What the next calls are answered with; then `{"flushed": True}`."""
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.adapters = ServedAdapters(self._ask_of_adapters)
        self.adapter_refusal: TriviumError | None = None
        """What the next loads end with."""
        self.release = asyncio.Event()
        self.held = asyncio.Event()
        """Set when the first answer waits."""
        self.idle = asyncio.Event()
        """Set whenever no request is open."""
        self._dead = asyncio.Event()

    def status(self) -> FakeStatus:
        return self.condition

    def die(self) -> None:
        """End every open request with `EngineDeadError`, now."""
        self.condition.is_ready = False
        self._dead.set()

    async def abort(self, request_id: str) -> None:
        if request_id in self.open_ids:
            self.aborted.append(request_id)

    async def call(self, name: str, arguments: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        self.calls.append(name)
        self.asked.append((name, arguments))
        if name == "answers":
            wanted = arguments["request_ids"]
            shown = [one for one in self.reports if wanted is None or one.request_id in wanted]
            return {"answers": msgspec.to_builtins(shown)}
        return self.replies.pop(0) if self.replies else {"flushed": True}

    def end_program(self, program_id: str, tenant: str = "") -> None:
        self.ended_programs.append((tenant, program_id))

    async def _ask_of_adapters(self, name: str, what: Mapping[str, object], timeout_s: float) -> dict[str, object]:
        await asyncio.sleep(0)
        self.asked.append((name, what))
        if name == "unload_adapter":
            return {"unloaded": True}
        if self.adapter_refusal is not None:
            return refusal_of(self.adapter_refusal)
        told = {"rank": 8, "num_bytes": 1000, "base_model": "base", "fingerprint": "f", "load_seconds": timeout_s}
        return {"adapter": {**what, **told}}

    def watch_ends(self, on_ended: Callable[[AnswerReport], None]) -> None:
        self.tell_end = on_ended

    def watch_starts(self, on_start: Callable[[], None]) -> None:
        self.tell_start = on_start

    def watch_cache(self, on_news: Callable[[CacheNews], None]) -> None:
        self.tell_cache = on_news

    async def submit(  # noqa: PLR0913  (what a request is made of, by name)
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        cache_salt: str = "",
        priority: int = 0,
        tenant: str = "",
        program: ProgramShare | None = None,
        deadline_s: float | None = None,
        adapter: str | None = None,
        on_news: Callable[[Delta], bool] | None = None,
    ) -> AsyncGenerator[Delta, None]:
        number = len(self.submitted)
        self.submitted.append(
            Submitted(
                request_id=request_id,
                prompt_ids=list(prompt_ids),
                params=params,
                cache_salt=cache_salt,
                priority=priority,
                tenant=tenant,
                program=program,
                deadline_s=deadline_s,
                adapter=adapter,
            )
        )
        if self.refusal is not None and self.refuses_prompt in {None, number}:
            raise self.refusal
        self.open_ids.add(request_id)
        self.idle.clear()
        is_complete = False
        for _ in range(100 if number in self.slow_submissions else 0):
            await asyncio.sleep(0)
        try:
            yield Delta(request_id=request_id, choice=0, first_token=0, token_ids=[], text="")
            async for delta in self._answers(request_id, prompt_ids, params):
                if on_news is None or delta.finish_reason is not None or not on_news(delta):
                    yield delta
            is_complete = True
        finally:
            if not is_complete:
                self.aborted.append(request_id)
            self.open_ids.discard(request_id)
            if not self.open_ids:
                self.idle.set()

    async def _answers(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        answers = [_Answer(self, request_id, prompt_ids, params, choice) for choice in range(params.num_draws)]
        num_steps = 0
        while any(not answer.is_finished for answer in answers):
            await self._pause(num_steps)
            for answer in answers:
                if not answer.is_finished:
                    yield answer.next()
            num_steps += 1

    async def _pause(self, num_steps: int) -> None:
        await asyncio.sleep(0)
        if self._dead.is_set():
            raise EngineDeadError("the engine process died; please send the request again")
        if self.hold_after is not None and num_steps >= self.hold_after and not self.release.is_set():
            self.held.set()
            ends = [asyncio.create_task(self.release.wait()), asyncio.create_task(self._dead.wait())]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
            if self._dead.is_set():
                raise EngineDeadError("the engine process died; please send the request again")


class _Answer:
    """One choice on its way."""

    def __init__(
        self, engine: FakeEngine, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, choice: int
    ) -> None:
        self._engine = engine
        self._request_id = request_id
        self._prompt_ids = prompt_ids
        self._params = params
        self._choice = choice
        self._tokens = list(engine.script(prompt_ids, choice, params))
        self._num_said = 0
        self._tokenizer = ByteTokenizer()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._reader = None if params.chat_output is None else PartReader(params.chat_output)
        self._state = None if self._reader is None else self._reader.start
        self.is_finished = False

    def next(self) -> Delta:
        if self._engine.fail_after is not None and self._num_said >= self._engine.fail_after:
            self.is_finished = True
            return self._delta([], "", finish="error", failure=self._engine.failure)
        if self._params.max_tokens == 0:
            self.is_finished = True
            return self._delta([], "", finish="length")
        token = self._tokens[self._num_said]
        is_end = token == EOS_ID and not self._params.ignore_eos
        finish = "stop" if is_end else None
        is_last = self._num_said + 1 in {len(self._tokens), self._params.max_tokens}
        if finish is None and is_last:
            finish = "length"
        is_silent = token >= BOS_ID and self._params.skip_special_tokens
        spelled = b"" if is_end or is_silent else self._tokenizer.token_bytes(token)
        text = self._decoder.decode(spelled, finish is not None)
        news = self._delta([token], text, finish=finish)
        self._num_said += 1
        self.is_finished = finish is not None
        return news

    def _delta(
        self,
        token_ids: list[int],
        text: str,
        *,
        finish: str | None,
        failure: tuple[str, str] | None = None,
    ) -> Delta:
        params = self._params
        is_first = self._num_said == 0 and self._choice == 0
        return Delta(
            request_id=self._request_id,
            choice=self._choice,
            first_token=self._num_said,
            token_ids=token_ids,
            text=text,
            parts=self._parts(text, is_last=finish is not None),
            logprobs=None if params.logprobs is None else [score(id_, params.logprobs) for id_ in token_ids],
            prompt_logprobs=self._prompt_logprobs() if is_first and params.prompt_logprobs is not None else None,
            cached_len=self._cached_len(),
            finish_reason=finish,
            cumulative_logprob=-float(self._choice == 0) - 0.5 * (self._num_said + 1),
            error=failure[0] if failure else None,
            error_code=failure[1] if failure else None,
        )

    def _parts(self, text: str, *, is_last: bool) -> list[OutputPart] | None:
        if self._reader is None or self._state is None:
            return None
        self._state, parts = self._reader.read(self._state, text)
        return [*parts, *self._reader.finish(self._state)] if is_last else parts

    def _cached_len(self) -> int:
        """Later choices find the whole prompt of the first one in the cache, as they do in the real engine."""
        most = len(self._prompt_ids) - 1
        return most if self._choice else min(self._engine.cached_len, most)

    def _prompt_logprobs(self) -> list[TokenLogprobs | None]:
        count = self._params.prompt_logprobs or 0
        start = self._params.prompt_logprob_start
        return [None if idx == 0 else score(id_, count) for idx, id_ in enumerate(self._prompt_ids)][start:]


def score(token_id: int, num_top: int) -> TokenLogprobs:
    """Score a token by a fixed rule, so that tests can predict what they will read."""
    top_ids = tuple((token_id + idx) % 256 for idx in range(num_top))
    return TokenLogprobs(token_id, -0.25, 1, top_ids, tuple(-0.25 - idx for idx in range(num_top)))


def tiny_config(*, max_positions: int = 512) -> ModelConfig:
    """Make the configuration of a model that does not exist."""
    rope = RopeConfig(rotary_dim=4, original_max_positions=max_positions)
    return ModelConfig(
        architecture="LlamaForCausalLM",
        num_layers=1,
        model_width=8,
        ffn_width=16,
        num_heads=2,
        num_kv_heads=1,
        head_width=4,
        vocab_size=MODEL_VOCAB,
        max_positions=max_positions,
        norm_eps=1e-5,
        layers=(LayerConfig(rope=rope),),
        attention_scale=0.5,
    )


def tiny_served(**changes: Any) -> ServedModel:
    """Make a served model called `tiny`, also known as `tiny-alias`, with a context of 512 tokens."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "aliases": ("tiny-alias",),
        "config": tiny_config(),
        "max_model_len": 512,
        "fingerprint": "f00d",
    }
    return ServedModel(**{**fields, **changes})
