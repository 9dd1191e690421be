"""How a `gen` draws, in SGLang's words: what it leaves open, its run decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InvalidParameterError
from trivium.config.sampling import SamplingParams
from trivium.grammar.stop_patterns import StopPatterns

if TYPE_CHECKING:
    from trivium.config.structured import StructuredOutputs

MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters of a `gen`, or of a run; `None` leaves them open."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    stop_regex: str | Sequence[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    """First prompt position whose logprob is reported; -1 reports those of the answer only."""
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None

    def __post_init__(self) -> None:
        """Read `stop_regex`, so that a bad one is refused at the author's line.

        Raises:
            InvalidParameterError: One is no regular expression.
            UnsupportedFeatureError: One uses what a stop cannot.
        """
        if not self.stop_regex:
            return
        patterns = _texts(self.stop_regex)
        if not all(isinstance(each, str) for each in patterns):
            raise InvalidParameterError(
                f"stop_regex is {self.stop_regex!r}; it must be a text or a list of texts", param="stop_regex"
            )
        StopPatterns(patterns)

    def over(self, defaults: Sampling) -> Sampling:
        """Return these parameters, and the defaults where they are open."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(defaults, **{name: value for name, value in given.items() if value is not None})

    def params(self, constraint: StructuredOutputs | None, more_stops: Sequence[str]) -> SamplingParams:
        """Write them as the engine takes them; it checks their limits."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _SAME_NAMES if getattr(self, name) is not None}
        stop = _texts(self.stop)
        return SamplingParams(
            **given,
            **self._logprobs(),
            stop=(*stop, *(each for each in more_stops if each not in stop)),
            stop_regex=_texts(self.stop_regex),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            structured_outputs=constraint,
        )

    def _logprobs(self) -> dict[str, Any]:
        if not self.return_logprob:
            return {}
        count, start = self.top_logprobs_num or 0, self.logprob_start_len
        if start is None or start < 0:
            return {"logprobs": count}
        return {"logprobs": count, "prompt_logprobs": count, "prompt_logprob_start": start}


def _texts(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


_SAME_NAMES = (
    "max_tokens", "min_tokens", "n", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "ignore_eos", "seed",
)  # fmt: skip
