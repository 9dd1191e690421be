"""What a request may ask of the sampler, with the limits of every field.

One frozen record serves the Python API, the HTTP servers and the engine's wire format. Field names are the
ones that vLLM and OpenAI users know. A record checks itself in `validate`, once, where a request enters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from trivium.base.errors import InvalidParameterError
from trivium.config.chat_output import ChatOutput
from trivium.config.record import ADVANCED
from trivium.config.retention import MAX_RANGES, RangeRetention, Retention
from trivium.config.structured import StructuredOutputs

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
GREEDY_BELOW = 1e-5
"""Temperatures below this draw the most likely token, as 0 does."""

LogprobsMode = Literal["raw", "processed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose the tokens of one request, and when to stop."""

    n: int = 1
    """Number of answers to return, 1 to 128."""
    best_of: int | None = field(default=None, metadata=ADVANCED)
    """Number of answers to draw, of which the `n` most likely are returned; `None` means `n`."""
    temperature: float = 1.0
    """Softmax temperature, 0 to 100; 0 takes the most likely token."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 (or -1) keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches p, 0 < p <= 1."""
    min_p: float = 0.0
    """Drop tokens less likely than p times the most likely one, 0 <= p <= 1."""
    typical_p: float = field(default=1.0, metadata=ADVANCED)
    """Keep the most typical tokens (Meister et al. 2022) whose probability reaches p, 0 < p <= 1."""
    repetition_penalty: float = 1.0
    """Divide (or multiply, when negative) the logits of tokens seen in prompt or output; > 0, at most 100."""
    presence_penalty: float = field(default=0.0, metadata=ADVANCED)
    """Subtract from the logits of tokens already generated, -2 to 2."""
    frequency_penalty: float = field(default=0.0, metadata=ADVANCED)
    """Subtract per occurrence from the logits of tokens already generated, -2 to 2."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, metadata=ADVANCED)
    """Token id to a bias of -100 to 100, added to its logit."""
    bad_words: tuple[str, ...] = field(default=(), metadata=ADVANCED)
    """Texts that may not be generated; the last token of each spelling is banned when the rest was generated."""
    seed: int | None = None
    """Seed of the random numbers, 0 to 2**64 - 1; the engine draws one when it is `None`."""
    max_tokens: int | None = None
    """Most tokens to generate; `None` means up to the context's end. 0 only scores the prompt."""
    min_tokens: int = field(default=0, metadata=ADVANCED)
    """Fewest tokens to generate before any end token or stop string may end the answer."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer."""
    stop_regex: tuple[str, ...] = field(default=(), metadata=ADVANCED)
    """Regular expressions whose match ends the answer where it is first whole."""
    stop_token_ids: tuple[int, ...] = field(default=(), metadata=ADVANCED)
    """Tokens that end the answer, besides the model's own end tokens."""
    include_stop_str_in_output: bool = field(default=False, metadata=ADVANCED)
    """Whether the stop (text, match, or token's text) stays in the answer."""
    ignore_eos: bool = field(default=False, metadata=ADVANCED)
    """Whether the model's end tokens are ordinary tokens."""
    skip_special_tokens: bool = field(default=True, metadata=ADVANCED)
    """Whether special tokens are left out of the text."""
    spaces_between_special_tokens: bool = field(default=True, metadata=ADVANCED)
    """Accepted for vLLM's clients; only `True` is honoured."""
    logprobs: int | None = None
    """Report the drawn token's logprob and this many alternatives, 0 to 20."""
    prompt_logprobs: int | None = field(default=None, metadata=ADVANCED)
    """Report each prompt token's logprob and this many alternatives, 0 to 20."""
    prompt_logprob_start: int = field(default=0, metadata=ADVANCED)
    """First prompt position of which a logprob is wanted; needs `prompt_logprobs`."""
    cache_retention: tuple[RangeRetention, ...] = ()
    """Priorities with which KV of prompt tokens stays in the prefix cache, 64 ranges at most; a page has the highest of
    its tokens. Needs `--eviction priority`."""
    cache_retention_decode: Retention | None = None
    """Likewise for generated tokens."""
    structured_outputs: StructuredOutputs | None = None
    """What the text of the answer may be: JSON of a schema or any JSON object, what a regular expression matches, one
    of several texts, or a sentence of a grammar."""
    chat_output: ChatOutput | None = None
    """How the text is split into reasoning, content and tool calls, and which calls there must be."""
    logprobs_mode: LogprobsMode | None = field(default=None, metadata=ADVANCED)
    """`raw` reports the model's own distribution, `processed` the one drawn from; `None` takes the server's. Needs
    `logprobs` or `prompt_logprobs`."""

    @property
    def num_draws(self) -> int:
        """Number of choices that run: `best_of`, or `n`."""
        return self.n if self.best_of is None else self.best_of

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_BELOW

    def validate(self, *, vocab_size: int | None = None) -> None:
        """Check every field against its limits.

        Args:
            vocab_size: Number of token ids of the model; ids are checked against it when given.

        Raises:
            InvalidParameterError: A field is of a wrong type or outside its limits; its `param` names the field.
        """
        for name, (low, high) in _NUMBER_LIMITS.items():
            _check_number(name, getattr(self, name), low, high)
        for name, (low, high) in _COUNT_LIMITS.items():
            _check_count(name, getattr(self, name), low, high)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _bad(name, getattr(self, name), "true or false")
        for name in _POSITIVE:
            if getattr(self, name) == 0:
                raise _bad(name, 0, "greater than 0")
        if self.logprobs_mode not in (None, "raw", "processed"):  # a tuple, since it may be unhashable
            raise _bad("logprobs_mode", self.logprobs_mode, "'raw' or 'processed'")
        self._validate_retention()
        self._validate_output()
        self._validate_combinations()
        self._validate_texts()
        self._validate_ids(vocab_size)

    def _validate_retention(self) -> None:
        ranges: Any = self.cache_retention
        decode: Any = self.cache_retention_decode
        if not isinstance(ranges, (tuple, list)) or not all(isinstance(each, RangeRetention) for each in ranges):
            raise _bad("cache_retention", ranges, "a list of RangeRetention")
        if len(ranges) > MAX_RANGES:
            raise _bad("cache_retention", f"{len(ranges)} ranges", f"at most {MAX_RANGES} ranges")
        for idx, each in enumerate(ranges):
            each.validate(f"cache_retention[{idx}]")
        if decode is not None:
            if not isinstance(decode, Retention):
                raise _bad("cache_retention_decode", decode, "a Retention")
            decode.validate("cache_retention_decode")

    def _validate_output(self) -> None:
        for name, kind in (("structured_outputs", StructuredOutputs), ("chat_output", ChatOutput)):
            wanted: Any = getattr(self, name)
            if wanted is None:
                continue
            if not isinstance(wanted, kind):
                raise _bad(name, wanted, f"a {kind.__name__}")
            wanted.validate()
        is_tagged = self.structured_outputs is not None and self.structured_outputs.kind == "structural_tag"
        if is_tagged and self.chat_output is not None and self.chat_output.limits_calls:
            message = (
                "structural_tag says what the whole answer is, so tools cannot be required, limited or strict beside it"
            )
            raise InvalidParameterError(message, param="structural_tag")

    def _validate_combinations(self) -> None:
        if not self.spaces_between_special_tokens:
            raise _bad("spaces_between_special_tokens", False, "true (false is not supported)")  # noqa: FBT003
        if self.best_of is not None and self.best_of < self.n:
            raise _bad("best_of", self.best_of, f"at least n = {self.n}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _bad("min_tokens", self.min_tokens, f"at most max_tokens = {self.max_tokens}")
        if self.prompt_logprob_start and self.prompt_logprobs is None:
            raise _bad("prompt_logprob_start", self.prompt_logprob_start, "0, since it needs prompt_logprobs")
        if self.logprobs_mode is not None and self.logprobs is None and self.prompt_logprobs is None:
            raise _bad("logprobs_mode", self.logprobs_mode, "left out, since it needs logprobs or prompt_logprobs")

    def _validate_texts(self) -> None:
        for name in ("stop", "stop_regex", "bad_words"):
            texts = getattr(self, name)
            if not isinstance(texts, (tuple, list)) or not all(isinstance(t, str) for t in texts):
                raise _bad(name, texts, "a list of texts")
            if any(not text for text in texts):
                raise _bad(name, "", "texts that are not empty")
            if len(texts) > MAX_STOP_STRINGS:
                raise _bad(name, f"{len(texts)} texts", f"at most {MAX_STOP_STRINGS} texts")

    def _validate_ids(self, vocab_size: int | None) -> None:
        limit = (1 << 31) - 1 if vocab_size is None else vocab_size - 1
        if not isinstance(self.stop_token_ids, (tuple, list)):
            raise _bad("stop_token_ids", self.stop_token_ids, "a list of token ids")
        if not isinstance(self.logit_bias, Mapping):
            raise _bad("logit_bias", self.logit_bias, "a mapping of token ids to biases")
        for token_id in self.stop_token_ids:
            _check_count("stop_token_ids", token_id, 0, limit)
        for token_id, bias in self.logit_bias.items():
            _check_count("logit_bias", token_id, 0, limit)
            _check_number("logit_bias", bias, -100.0, 100.0)


SGLANG_NAMES: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
}
"""What SGLang calls fields that have another name here."""

_NUMBER_LIMITS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_COUNT_LIMITS: Mapping[str, tuple[int, int]] = {
    "n": (1, MAX_CHOICES),
    "best_of": (1, MAX_CHOICES),
    "top_k": (-1, (1 << 31) - 1),
    "seed": (0, (1 << 64) - 1),
    "max_tokens": (0, (1 << 31) - 1),
    "min_tokens": (0, (1 << 31) - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "prompt_logprob_start": (0, (1 << 31) - 1),
}
_POSITIVE = ("top_p", "typical_p", "repetition_penalty")
_FLAGS = (
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
_OPTIONAL = {f.name for f in fields(SamplingParams) if f.default is None}


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # NaN is in no range
        raise _bad(name, value, f"a number from {low:g} to {high:g}")


def _check_count(name: str, value: Any, low: int, high: int) -> None:
    if value is None and name in _OPTIONAL:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _bad(name, value, f"a whole number from {low} to {high}")


def _bad(name: str, value: Any, limit: str) -> InvalidParameterError:
    return InvalidParameterError(f"{name} is {value!r}; it must be {limit}", param=name)
