"""What a request answers, and how its deltas are gathered. Field names are those that vLLM's users know."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trivium.grammar.gathered import gather, new_call_id

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams
    from trivium.engine.messages import Delta
    from trivium.grammar.parts import OutputPart
    from trivium.sampling.batch import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool, which the caller makes and answers with a message of the role `tool` and this id."""

    id: str
    name: str
    arguments: str
    """JSON; under an answer cut short by its length perhaps not whole."""


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    parts: list[OutputPart] | None = None
    """Its reasoning, content and calls, with `chat_output`; neighbours of one kind are joined."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    """Known when the answer has ended."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry per token, when asked for."""
    cumulative_logprob: float | None = None
    """Sum of the tokens' raw logprobs; known with `logprobs` or `best_of`."""
    finish_reason: str | None = None
    """`stop`, `length`, `tool_calls` (it stopped behind calls), or `error` (see `RequestOutput.error`)."""
    stop_reason: int | str | None = None
    """Token id or text that ended the answer; `None` for an end token of the model, or for length."""

    @property
    def reasoning(self) -> str | None:
        """What the model reasoned, where that is told apart and there is any."""
        return gather(self.parts or ()).reasoning or None

    @property
    def content(self) -> str:
        """The text without reasoning and calls; `text` is all that the model wrote."""
        return self.text if self.parts is None else gather(self.parts).content

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, with which a conversation goes on."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A prompt with its answers; with `best_of`, those of the highest mean logprob per token, best first."""

    request_id: str
    prompt: str | None
    """The prompt's text, or the conversation as its template wrote it; `None` for token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One entry per prompt position from `prompt_logprob_start`, when asked for; that of position 0 is `None`."""
    outputs: list[CompletionOutput] = field(default_factory=list)
    num_cached_tokens: int = 0
    """Prompt tokens whose KV was there already."""
    error: str | None = None
    """Why the request failed inside the engine; its answers hold what was generated before."""

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return all(answer.finish_reason is not None for answer in self.outputs)


class Answers:
    """Gathers the deltas of one request into a `RequestOutput`."""

    def __init__(
        self,
        request_id: str,
        prompt: object,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        num_earlier_calls: int = 0,
    ) -> None:
        """Begin with nothing; `prompt` is reported when it is a text."""
        self._params = params
        self._num_earlier_calls = num_earlier_calls
        wants_logprobs = params.logprobs is not None
        self.output = RequestOutput(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=prompt_ids,
            outputs=[
                CompletionOutput(index=k, logprobs=[] if wants_logprobs else None) for k in range(params.num_draws)
            ],
        )

    def add(self, news: Delta) -> None:
        """Append what a delta brings."""
        answer = self.output.outputs[news.choice]
        answer.text += news.text
        answer.token_ids.extend(news.token_ids)
        if news.parts is not None:
            answer.parts = answer.parts or []
            for part in news.parts:
                part.append_to(answer.parts)
        if news.logprobs is not None and answer.logprobs is not None:
            answer.logprobs.extend(news.logprobs)
        if news.prompt_logprobs is not None:
            self.output.prompt_logprobs = news.prompt_logprobs
        if news.choice == 0:
            self.output.num_cached_tokens = news.cached_len
        if news.finish_reason is not None:
            answer.finish_reason, answer.stop_reason = news.finish_reason, news.stop_reason
            self._name_calls(answer)
            self._sum_logprobs(answer, news)
        if news.error is not None:
            self.output.error = news.error

    def result(self) -> RequestOutput:
        """Return the request with its n best answers, numbered anew."""
        if self._params.num_draws > self._params.n:
            ranked = sorted(self.output.outputs, key=lambda answer: -_mean_logprob(answer))
            self.output.outputs = [replace(answer, index=k) for k, answer in enumerate(ranked[: self._params.n])]
        return self.output

    def _name_calls(self, answer: CompletionOutput) -> None:
        output = self._params.chat_output
        if answer.parts is None or output is None:
            return
        answer.tool_calls = [
            ToolCall(
                id=new_call_id(output.tool_dialect, call.name, self._num_earlier_calls + idx),
                name=call.name,
                arguments=call.arguments,
            )
            for idx, call in enumerate(gather(answer.parts).calls)
        ]
        if answer.tool_calls and answer.finish_reason == "stop":
            answer.finish_reason = "tool_calls"

    def _sum_logprobs(self, answer: CompletionOutput, news: Delta) -> None:
        if self._params.num_draws > self._params.n:
            answer.cumulative_logprob = news.cumulative_logprob
        elif answer.logprobs is not None:
            answer.cumulative_logprob = sum(entry.logprob for entry in answer.logprobs)


def _mean_logprob(answer: CompletionOutput) -> float:
    return (answer.cumulative_logprob or 0.0) / max(len(answer.token_ids), 1)
