"""Prompts to complete: from flags, a text on stdin, or JSON lines, of which each is checked before any runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from trivium.base.errors import ConfigError, InvalidParameterError, RequestError
from trivium.config.sampling import SamplingParams
from trivium.config.structured import StructuredOutputs

_FIELDS = frozenset(field.name for field in fields(SamplingParams))

_CONSTRAINT_FIELDS = frozenset(field.name for field in fields(StructuredOutputs))
_MAX_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One prompt, and what is special about it."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    params: dict[str, Any]
    origin: str = ""
    """Which line it came from, for messages; empty when there is one prompt only or it came from a flag."""

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Name the line in a refusal of this prompt or its parameters."""
        try:
            yield
        except RequestError as error:
            if not self.origin:
                raise
            raise InvalidParameterError(f"{self.origin}: {error}", param=error.param) from error


def read_orders(prompts: Sequence[str], common: Mapping[str, Any], *, is_json: bool, is_chat: bool) -> list[Order]:
    """Read every prompt.

    Args:
        prompts: Texts of `--prompt`; standard input is read when there are none.
        common: Parameters of every prompt, which a JSON line may override.
        is_json: Whether standard input holds JSON lines.
        is_chat: Whether each text is a message to the chat template.

    Raises:
        ConfigError: There is no prompt, or flags exclude each other.
        InvalidParameterError: A JSON line is malformed, or says something of a wrong type or outside its limits.
    """
    if is_json:
        if prompts:
            raise ConfigError("--jsonl reads prompts from standard input; leave out --prompt")
        lines = enumerate(_read_stdin().split("\n"), start=1)
        orders = [
            _order_of_line(f"line {number} of standard input", line, common) for number, line in lines if line.strip()
        ]
    elif prompts:
        orders = [Order(prompt=text, params=dict(common)) for text in prompts]
    elif sys.stdin.isatty():
        raise ConfigError("there is no prompt; give --prompt, or text on standard input")
    else:
        orders = [Order(prompt=_read_stdin().removesuffix("\n"), params=dict(common))]
    if not orders:
        raise ConfigError("standard input holds no prompt")
    return [_as_message(order) for order in orders] if is_chat else orders


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidParameterError(f"standard input is not {error.encoding} text: {error.reason}") from error


def _as_message(order: Order) -> Order:
    if not isinstance(order.prompt, str):
        return order
    return replace(order, prompt=None, messages=[{"role": "user", "content": order.prompt}])


def _order_of_line(origin: str, line: str, common: Mapping[str, Any]) -> Order:
    try:
        entry = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidParameterError(f"{origin} holds half of a surrogate pair, which is no text") from error
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(f"{origin} is not JSON: {error}") from error
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
        raise InvalidParameterError(f"{origin} must be an object with either prompt or messages")
    for name, (limit, is_right) in _SHAPES.items():
        if name in entry and not is_right(entry[name]):
            raise InvalidParameterError(f"{origin}: {name} is {_shown(entry[name])}; it must be {limit}", param=name)
    prompt, messages = entry.pop("prompt", None), entry.pop("messages", None)
    if unknown := sorted(entry.keys() - _FIELDS):
        raise InvalidParameterError(f"{origin}: there is no parameter {unknown[0]!r}", param=unknown[0])
    if "logit_bias" in entry:
        entry["logit_bias"] = {int(token): bias for token, bias in entry["logit_bias"].items()}
    if "structured_outputs" in entry:
        entry["structured_outputs"] = _constraint_of(entry["structured_outputs"])
    order = Order(prompt=prompt, messages=messages, params={**common, **entry}, origin=origin)
    with order.blamed():
        params = SamplingParams(**order.params)
        params.validate()
    return replace(order, params={name: getattr(params, name) for name in order.params})


def _constraint_of(given: dict[str, Any]) -> StructuredOutputs:
    choice = given.get("choice")
    return StructuredOutputs(**{**given, **({"choice": tuple(choice)} if isinstance(choice, list) else {})})


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(_is_id(token) for token in value))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in value)
    )


def _is_bias(value: Any) -> bool:
    return isinstance(value, dict) and all(
        token.isascii() and token.isdigit() and len(token) <= _MAX_DIGITS for token in value
    )


_SHAPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "prompt": ("a text or a list of token ids", _is_prompt),
    "messages": ("a list of messages, each an object with a role", _is_conversation),
    "structured_outputs": (
        f"an object with {', '.join(sorted(_CONSTRAINT_FIELDS))}",
        lambda value: isinstance(value, dict) and value.keys() <= _CONSTRAINT_FIELDS,
    ),
    "logit_bias": ("an object of token ids and biases", _is_bias),
}
"""What JSON must look like where the line's fields are not parameters as they stand: in words, and as a check."""


def _shown(value: Any, limit: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[:limit] + "..."
