"""What is known of an answer besides its text, in SGLang's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.api.outputs import CompletionOutput, RequestOutput
    from trivium.engine.messages import Delta
    from trivium.lang.choices import TokenLogprob
    from trivium.lang.transcript import Codec
    from trivium.sampling.batch import TokenLogprobs


def answer_meta(output: RequestOutput, answer: CompletionOutput, codec: Codec, *, with_text: bool) -> dict[str, Any]:
    """Describe an answer.

    Args:
        output: Its request.
        answer: The answer.
        codec: Writes tokens as texts.
        with_text: Whether logprobs come with the texts of their tokens.
    """
    meta: dict[str, Any] = {
        "finish_reason": _finish_reason(answer),
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": len(answer.token_ids),
        "cached_tokens": output.num_cached_tokens,
    }
    texts = codec if with_text else None
    if answer.logprobs is not None:
        meta |= {
            "output_token_logprobs": [_entry(each, texts) for each in answer.logprobs],
            "output_top_logprobs": [_top(each, texts) for each in answer.logprobs],
        }
    if output.prompt_logprobs is not None:
        start = len(output.prompt_token_ids) - len(output.prompt_logprobs)
        meta["input_token_logprobs"] = scored(output.prompt_token_ids[start:], output.prompt_logprobs, texts)
        meta["input_top_logprobs"] = [None if each is None else _top(each, texts) for each in output.prompt_logprobs]
    return meta


def delta_meta(news: Delta, so_far: CompletionOutput) -> dict[str, Any]:
    """Describe a piece of an answer that is under way."""
    meta: dict[str, Any] = {"completion_tokens": len(so_far.token_ids)}
    if news.logprobs is not None:
        meta["output_token_logprobs"] = [_entry(each, None) for each in news.logprobs]
    return meta


def scored(ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], codec: Codec | None) -> list[TokenLogprob]:
    """Pair tokens with their logprobs: logprob, id, and text where a codec is given."""
    pairs = zip(ids, logprobs, strict=True)
    return [(None if each is None else each.logprob, id_, _text(id_, codec)) for id_, each in pairs]


def _finish_reason(answer: CompletionOutput) -> dict[str, Any]:
    if answer.finish_reason == "length":
        return {"type": "length", "length": len(answer.token_ids)}
    return {"type": answer.finish_reason, "matched": answer.stop_reason}


def _entry(each: TokenLogprobs, codec: Codec | None) -> TokenLogprob:
    return each.logprob, each.token_id, _text(each.token_id, codec)


def _top(each: TokenLogprobs, codec: Codec | None) -> list[TokenLogprob]:
    pairs = zip(each.top_logprobs, each.top_ids, strict=True)
    return [(logprob, id_, _text(id_, codec)) for logprob, id_ in pairs]


def _text(token_id: int, codec: Codec | None) -> str | None:
    return None if codec is None else (codec.token_bytes(token_id) or b"").decode("utf-8", "replace")
