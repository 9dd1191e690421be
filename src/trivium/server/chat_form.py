"""`ChatForm`: from deltas to OpenAI's chat completion objects, whole and in events.

Where an answer is split (`Job.chat_output`), its parts are shown instead of its text: `reasoning_content`, `content`,
and `tool_calls`, of which each has its index, and its id, type and name once. Logprobs and token ids are those of every
token, whatever it was part of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from trivium.base.ids import FinishReason
from trivium.engine.messages import Delta
from trivium.grammar.gathered import gather, new_call_id
from trivium.grammar.parts import OutputPart
from trivium.sampling.batch import TokenLogprobs
from trivium.server.generate import Collected, best_answers
from trivium.server.job import Job
from trivium.server.presenter import Presenter, encode
from trivium.server.shapes import (
    CalledFunction,
    ChatAnswer,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ToolCall,
    Usage,
)
from trivium.server.token_texts import TokenTexts


class ChatForm(Presenter):
    """Shows a job's deltas as chat completion objects."""

    event_object = "chat.completion.chunk"

    def __init__(self, job: Job, texts: TokenTexts, *, created: int, fingerprint: str) -> None:
        super().__init__(job, texts, created=created, fingerprint=fingerprint)
        self._has_extras = job.num_logprobs is not None or job.returns_token_ids
        self._text_keys = {"content": b"content"}
        """What the texts that are shown are called, by the kinds of their parts."""
        if job.includes_reasoning:
            self._text_keys["reasoning"] = b"reasoning_content"
        self._num_calls: dict[int, int] = {}
        """Tool calls that a stream has shown, by choice."""

    def chunk(self, prompt_idx: int, delta: Delta) -> bytes:
        """Show a delta as events; nothing when it has nothing to show.

        The first news of a choice are preceded by its role, the last ones followed by its finish reason.
        """
        index = prompt_idx * self._job.num_choices + delta.choice
        if not (delta.text or delta.parts or delta.token_ids or delta.finish_reason):
            return b""
        opening = b"" if index in self._begun else self._opening(index, prompt_idx)
        middle = self._full_chunk(index, delta) if self._has_extras else self._short_chunk(index, delta)
        if delta.finish_reason is None:
            return opening + middle
        return opening + middle + self._closing(index, delta)

    def whole(self, drawn: Sequence[Sequence[Collected]], usage: Usage) -> bytes:
        """Show all answers as one object.

        Args:
            drawn: Per prompt (one), every drawn answer.
            usage: What they cost.
        """
        job, answers = self._job, drawn[0]
        best = best_answers(answers, job.num_choices)
        whole = ChatCompletion(
            id=job.job_id,
            created=self._created,
            model=job.model,
            system_fingerprint=self._fingerprint,
            choices=[self._choice(index, answer) for index, answer in enumerate(best)],
            usage=usage,
        )
        if job.num_prompt_logprobs is not None:
            known = next((a.prompt_logprobs for a in answers if a.prompt_logprobs), [])
            whole.prompt_logprobs = self._texts.prompt_entries(known, job.num_prompt_logprobs)
        if job.returns_token_ids:
            whole.prompt_token_ids = job.prompts[0].ids
        return encode(whole)

    def _choice(self, index: int, answer: Collected) -> ChatChoice:
        message = ChatAnswer(content=answer.text) if answer.parts is None else self._message(answer.parts)
        num_calls = len(message.tool_calls) if message.tool_calls is not UNSET else 0
        choice = ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs(answer.logprobs),
            finish_reason=_finish_reason(answer.finish_reason, num_calls),
            stop_reason=answer.stop_reason,
        )
        if self._job.returns_token_ids:
            choice.token_ids = answer.token_ids
        return choice

    def _message(self, parts: Sequence[OutputPart]) -> ChatAnswer:
        said = gather(parts)
        message = ChatAnswer(content=said.content)
        if said.reasoning and self._job.includes_reasoning:
            message.reasoning_content = said.reasoning
        if said.calls:
            message.content = said.content or None
            message.tool_calls = [
                ToolCall(id=self._new_id(call.name, idx), function=CalledFunction(call.name, call.arguments))
                for idx, call in enumerate(said.calls)
            ]
        return message

    def _opening(self, index: int, prompt_idx: int) -> bytes:
        self._begun.add(index)
        role = {"role": "assistant", "content": ""}
        choice: dict[str, Any] = {"index": index, "delta": role, "logprobs": None, "finish_reason": None}
        if not self._job.returns_token_ids:
            return self._event(choice)
        return self._event(choice, b',"prompt_token_ids":' + encode(self._job.prompts[prompt_idx].ids))

    def _short_chunk(self, index: int, delta: Delta) -> bytes:
        """Write what most deltas are: a piece of one text."""
        key, text = b"content", delta.text
        if delta.parts is not None:
            if len(delta.parts) != 1 or delta.parts[0].kind not in self._text_keys:
                return self._full_chunk(index, delta)
            key, text = self._text_keys[delta.parts[0].kind], delta.parts[0].text
        if not text:
            return b""
        start = self._head + b'{"index":%d,"delta":{"%b":' % (index, key)
        return start + encode(text) + b'},"logprobs":null,"finish_reason":null}]}\n\n'

    def _full_chunk(self, index: int, delta: Delta) -> bytes:
        news = {"content": delta.text} if delta.parts is None else self._news(index, delta.parts)
        has_extras = self._has_extras and bool(delta.token_ids)
        if not (has_extras or any(news.values())):
            return b""
        choice: dict[str, Any] = {
            "index": index,
            "delta": news,
            "logprobs": self._logprobs(delta.logprobs or ()),
            "finish_reason": None,
        }
        if self._job.returns_token_ids:
            choice["token_ids"] = delta.token_ids
        return self._event(choice)

    def _news(self, index: int, parts: Sequence[OutputPart]) -> dict[str, Any]:
        """Write a delta's parts as OpenAI's `delta`; texts of one kind are joined."""
        news: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        for part in parts:
            if part.kind == "content":
                news["content"] = news.get("content", "") + part.text
            elif part.kind == "reasoning":
                if self._job.includes_reasoning:
                    news["reasoning_content"] = news.get("reasoning_content", "") + part.text
            elif part.kind == "tool_name":
                self._num_calls[index] = part.call + 1
                own = {"name": part.text, "arguments": ""}
                call_id = self._new_id(part.text, part.call)
                calls[part.call] = {"index": part.call, "id": call_id, "type": "function", "function": own}
            else:
                call = calls.setdefault(part.call, {"index": part.call, "function": {"arguments": ""}})
                call["function"]["arguments"] += part.text
        return {**news, "tool_calls": list(calls.values())} if calls else news

    def _new_id(self, name: str, index: int) -> str:
        output = self._job.chat_output
        dialect = None if output is None else output.tool_dialect
        return new_call_id(dialect, name, self._job.num_earlier_calls + index)

    def _closing(self, index: int, delta: Delta) -> bytes:
        finish = _finish_reason(delta.finish_reason, self._num_calls.get(index, 0))
        choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish,
                  "stop_reason": delta.stop_reason}  # fmt: skip
        return self._event(choice)

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        num_top = self._job.num_logprobs
        if num_top is None:
            return None
        return ChatLogprobs([self._texts.chat_entry(entry, num_top) for entry in entries])


def _finish_reason(reason: str | None, num_calls: int) -> str | None:
    """An answer that ended by itself and calls tools waits for them; one that was cut short does not."""
    return FinishReason.TOOL_CALLS.value if num_calls and reason == FinishReason.STOP.value else reason
