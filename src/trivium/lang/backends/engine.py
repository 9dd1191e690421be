"""`Engine`: a model in this process, with the names, parameters and answers of SGLang's engine of the same name."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from trivium.api import LLM
from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError
from trivium.config.sampling import SGLANG_NAMES, SamplingParams
from trivium.config.structured import StructuredOutputs
from trivium.lang.backends.sglang_options import own_options
from trivium.lang.meta import answer_meta
from trivium.lang.sampling import MAX_NEW_TOKENS
from trivium.lang.transcript import TokenCodec

if TYPE_CHECKING:
    from trivium.api.outputs import CompletionOutput, RequestOutput

Prompts = str | Sequence[str]
Ids = Sequence[int] | Sequence[Sequence[int]]
Params = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Answer = dict[str, Any]
"""`text`, `output_ids` and `meta_info`, as `/generate` answers."""

_CONSTRAINTS: Mapping[str, str] = {
    "regex": "regex", "json_schema": "json", "ebnf": "grammar", "structural_tag": "structural_tag",
}  # fmt: skip
_THEIR_NAMES = {ours: theirs for theirs, ours in SGLANG_NAMES.items()}
_NOT_SAMPLING = frozenset({
    "best_of", "logprobs", "prompt_logprobs", "prompt_logprob_start", "structured_outputs", "chat_output",
})  # fmt: skip
_KNOWN = {_THEIR_NAMES.get(each.name, each.name) for each in fields(SamplingParams)} - _NOT_SAMPLING
_LISTS = frozenset({"stop", "stop_regex", "stop_token_ids", "bad_words"})


class Scoring(NamedTuple):
    """Which logprobs are wanted."""

    num_top: int
    """Alternatives for each token."""
    start: int
    """First prompt position that has an entry; -1: none has."""


class Engine:
    """Answers prompts with a model in this process; also what programs can run on.

    >>> engine = Engine(model_path="smollm2")                                    # doctest: +SKIP
    >>> engine.generate("The capital of France is", {"max_new_tokens": 4})["text"]    # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        """Load the model.

        Args:
            options: Those of `trivium.LLM`, by their names or by SGLang's (`model_path`, `context_length`, …).

        Raises:
            ConfigError: An option is unknown or has a bad value.
            ModelError: The model cannot be found, fetched or understood.
        """
        self.llm = LLM(**own_options(options))
        self._codec = TokenCodec(self.llm.get_tokenizer())

    @property
    def endpoint(self) -> LLM:
        """What programs run on."""
        return self.llm

    def generate(  # noqa: PLR0913, PLR0917  (SGLang's signature)
        self,
        prompt: Prompts | None = None,
        sampling_params: Params = None,
        input_ids: Ids | None = None,
        image_data: Any = None,
        return_logprob: bool = False,  # noqa: FBT001, FBT002
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        lora_path: Any = None,
        custom_logit_processor: Any = None,
        stream: bool = False,  # noqa: FBT001, FBT002
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """Answer prompts: one as an object, several, or several answers (`n`), as a list.

        Args:
            prompt: A text, or texts.
            sampling_params: SGLang's, for all prompts or one per prompt; 128 tokens at temperature 1 by default.
            input_ids: Token ids, or a list of lists of them, instead of `prompt`.
            image_data: Must be `None`.
            return_logprob: Report logprobs.
            logprob_start_len: First prompt position among them, itself without one; by default the answer's only.
            top_logprobs_num: Alternatives to report for each token.
            lora_path: Must be `None`.
            custom_logit_processor: Must be `None`.
            stream: Yield the answer as it grows, each time with all text so far; for one prompt and one answer.

        Raises:
            RequestError: A prompt or parameter is refused.
        """
        for name, value in (
            ("image_data", image_data),
            ("lora_path", lora_path),
            ("custom_logit_processor", custom_logit_processor),
        ):
            if value is not None:
                raise UnsupportedFeatureError(f"{name} is not supported by this engine", param=name)
        if (prompt is None) == (input_ids is None):
            raise InvalidParameterError("give either prompt or input_ids", param="prompt")
        given: Any = prompt if input_ids is None else input_ids
        is_list = not isinstance(given, str) and not (given and isinstance(given[0], int))
        prompts: list[Any] = list(given) if is_list else [given]
        start = -1 if logprob_start_len is None else logprob_start_len
        scoring = Scoring(top_logprobs_num or 0, start) if return_logprob else None
        params = _params_per_prompt(sampling_params, len(prompts))
        ids = [self._ids(each) for each in prompts]
        asked = [_scored(own, len(each), scoring) for own, each in zip(params, ids, strict=True)]
        if stream:
            if is_list or asked[0].n > 1:
                raise UnsupportedFeatureError("only one answer to one prompt can be streamed", param="stream")
            return self._stream(ids[0], asked[0], scoring)
        outputs = self.llm.generate(ids, asked, use_tqdm=False)
        answers = [self._answer(output, each, scoring) for output in outputs for each in output.outputs]
        return answers if is_list or asked[0].n > 1 else answers[0]

    async def async_generate(self, *args: Any, **kwargs: Any) -> Answer | list[Answer] | AsyncIterator[Answer]:
        """`generate` for an event loop.

        Raises:
            RequestError: A prompt or parameter is refused.
        """
        made = await asyncio.to_thread(self.generate, *args, **kwargs)
        return _in_threads(made) if isinstance(made, Iterator) else made

    def flush_cache(self) -> None:
        """Forget cached prefixes that no running request uses."""
        self.llm.shared_loop.call("flush")

    def get_server_info(self) -> dict[str, Any]:
        """Return what was loaded, how, and what the engine counts."""
        return {**self.llm.info, "internal_states": [self.llm.shared_loop.call("stats")]}

    def shutdown(self) -> None:
        """Give back memory and threads."""
        self.llm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return self.llm.get_tokenizer().encode(prompt, add_special_tokens=True)
        return list(prompt)

    def _stream(self, ids: list[int], params: SamplingParams, scoring: Scoring | None) -> Iterator[Answer]:
        from trivium.api.outputs import Answers  # noqa: PLC0415  (start-up time)

        gathered = Answers("", None, ids, params)
        for news in self.llm.stream(ids, params):
            gathered.add(news)
            if news.token_ids or news.finish_reason:
                yield self._answer(gathered.output, gathered.output.outputs[0], scoring)

    def _answer(self, output: RequestOutput, answer: CompletionOutput, scoring: Scoring | None) -> Answer:
        meta = answer_meta(output, answer, self._codec, with_text=False)
        if answer.finish_reason is None:
            meta["finish_reason"] = None
        if scoring is not None:
            start = scoring.start
            begins = [(None, output.prompt_token_ids[start], None)] if start >= 0 else []
            meta["input_token_logprobs"] = [*begins, *meta.get("input_token_logprobs", ())]
            meta["input_top_logprobs"] = [*(None for _ in begins), *meta.get("input_top_logprobs", ())]
            meta["output_token_logprobs_length"] = len(meta["output_token_logprobs"])
            for name in () if scoring.num_top else ("input_top_logprobs", "output_top_logprobs"):
                meta.pop(name, None)
        return {
            "text": answer.text,
            "output_ids": list(answer.token_ids),
            "meta_info": {"id": output.request_id, **meta},
        }


def _params_per_prompt(given: Params, num_prompts: int) -> list[SamplingParams]:
    listed = [given or {}] if given is None or isinstance(given, Mapping) else list(given)
    if len(listed) not in {1, num_prompts}:
        raise InvalidParameterError(
            f"sampling_params has {len(listed)} entries for {num_prompts} prompts; give one, or one per prompt",
            param="sampling_params",
        )
    made = [sampling_of(each) for each in listed]
    return made * num_prompts if len(made) == 1 else made


def sampling_of(given: Mapping[str, Any]) -> SamplingParams:
    """Read sampling parameters in SGLang's words; `None` leaves one open.

    Raises:
        InvalidParameterError: One is unknown, has a bad value, or contradicts another.
    """
    own: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    constraint: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in _CONSTRAINTS:
            constraint[_CONSTRAINTS[name]] = value
        elif name in _KNOWN:
            listed = (value,) if name in _LISTS and isinstance(value, str) else value
            own[SGLANG_NAMES.get(name, name)] = tuple(listed) if name in _LISTS else listed
        else:
            close = difflib.get_close_matches(name, [*_KNOWN, *_CONSTRAINTS], n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise InvalidParameterError(f"unknown sampling parameter '{name[:60]}'{hint}", param=name[:60])
    params = SamplingParams(**own, structured_outputs=StructuredOutputs(**constraint) if constraint else None)
    params.validate()
    return params


def _scored(params: SamplingParams, prompt_len: int, scoring: Scoring | None) -> SamplingParams:
    """Ask for logprobs: so many alternatives, from a prompt position on, which has none itself."""
    if scoring is None:
        return params
    num_top, start = scoring
    asked = replace(params, logprobs=num_top)
    if start >= prompt_len:
        raise InvalidParameterError(
            f"logprob_start_len is {start}; the prompt has {prompt_len} tokens, so it must be -1 to {prompt_len - 1}",
            param="logprob_start_len",
        )
    if start < 0 or start + 1 == prompt_len:
        return asked
    return replace(asked, prompt_logprobs=num_top, prompt_logprob_start=start + 1)


async def _in_threads(answers: Iterator[Answer]) -> AsyncIterator[Answer]:
    end = object()
    while (answer := await asyncio.to_thread(next, answers, end)) is not end:
        yield answer  # type: ignore[misc]
