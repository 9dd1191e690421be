"""`trivium generate`: answer prompts from flags, from a text on stdin, or from JSON lines."""

from __future__ import annotations

import json as json_codec
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from trivium.base.errors import ConfigError, InvalidParameterError
from trivium.cli.flags import ConfigFile, ModelName, flags_of, given_params, settle, without
from trivium.cli.terminal import fail, fetching, write, write_json
from trivium.config.options import EngineOptions
from trivium.config.sampling import SamplingParams

if TYPE_CHECKING:
    from trivium.api import LLM, RequestOutput
    from trivium.config.resolve import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One prompt, and what is special about it."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    params: dict[str, Any]


@flags_of(SamplingParams, EngineOptions, without=("model",))
def generate(
    model: ModelName = None,
    /,
    *,
    prompt: Annotated[
        tuple[str, ...],
        Parameter(name=("--prompt", "-p"), help="Prompt; may be repeated.", negative="", show_default=False),
    ] = (),
    chat: Annotated[
        bool, Parameter(help="Put each prompt through the chat template.", negative="", show_default=False)
    ] = False,
    jsonl: Annotated[
        bool, Parameter(help="Read JSON lines: prompt or messages, and parameters.", negative="", show_default=False)
    ] = False,
    json: Annotated[bool, Parameter(help="Print one JSON object per prompt.", negative="", show_default=False)] = False,
    stream: Annotated[
        bool, Parameter(help="Print the answer while it grows.", negative="", show_default=False)
    ] = False,
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Complete prompts, from `--prompt` or from standard input.

    Raises:
        ConfigError: A flag has a bad value, or there is nothing to complete.
        RequestError: A prompt or parameter is refused.
    """
    common = given_params(flags)
    settings = settle((EngineOptions,), without(SamplingParams, flags), config=config, model=model)
    orders = _read_orders(prompt, common, is_json=jsonl, is_chat=chat)
    if stream and (json or len(orders) > 1 or orders[0].params.get("n", 1) != 1):
        raise ConfigError("--stream prints one answer to one prompt as text; leave it out for more")
    with open_llm(settings) as llm:
        prompts = [_prompt_of(llm, order) for order in orders]
        params = [params_of(llm, order.params) for order in orders]
        if stream:
            return _stream(llm, prompts[0], params[0])
        outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty() and len(prompts) > 1)
    return _print(outputs, is_json=json)


def open_llm(settings: Settings) -> LLM:
    """Fetch a model with a progress bar, then load it in this process."""
    from trivium.api import LLM  # noqa: PLC0415  (start-up time)
    from trivium.weights.resolve import resolve_model  # noqa: PLC0415

    with fetching() as progress:
        resolve_model(settings.build(EngineOptions).model, progress=progress)
    return LLM(**settings.values(EngineOptions))


def params_of(llm: LLM, given: dict[str, Any]) -> SamplingParams:
    """Lay what was given over what the model recommends."""
    params = replace(llm.default_sampling_params(), **given)
    params.validate(vocab_size=llm.frontend.config.vocab_size)
    return params


def chat_ids(llm: LLM, messages: Sequence[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation through the model's chat template.

    Raises:
        ConfigError: The model has no chat template.
        TemplateError: The template refuses the messages.
    """
    template = llm.frontend.chat_template
    if template is None:
        raise ConfigError(f"{llm.frontend.name} has no chat template; give one with --chat-template")
    return llm.frontend.tokenizer.encode(template.render(list(messages)), add_special_tokens=False)


def _read_orders(prompts: Sequence[str], common: dict[str, Any], *, is_json: bool, is_chat: bool) -> list[Order]:
    if is_json:
        if prompts:
            raise ConfigError("--jsonl reads prompts from standard input; leave out --prompt")
        lines = [(number, line) for number, line in enumerate(sys.stdin, start=1) if line.strip()]
        orders = [_order_of_line(number, line, common) for number, line in lines]
    elif prompts:
        orders = [Order(prompt=text, params=common) for text in prompts]
    elif sys.stdin.isatty():
        raise ConfigError("there is no prompt; give --prompt, or text on standard input")
    else:
        orders = [Order(prompt=sys.stdin.read().removesuffix("\n"), params=common)]
    if not orders:
        raise ConfigError("standard input holds no prompt")
    if is_chat:
        return [
            replace(order, prompt=None, messages=[{"role": "user", "content": order.prompt}])
            if isinstance(order.prompt, str)
            else order
            for order in orders
        ]
    return orders


def _order_of_line(number: int, line: str, common: dict[str, Any]) -> Order:
    try:
        entry = json_codec.loads(line)
    except ValueError as error:
        raise ConfigError(f"line {number} of standard input is not JSON: {error}") from error
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
        raise ConfigError(f"line {number} of standard input must be an object with either prompt or messages")
    prompt, messages = entry.pop("prompt", None), entry.pop("messages", None)
    if "logit_bias" in entry:
        entry["logit_bias"] = {int(token): bias for token, bias in entry["logit_bias"].items()}
    try:
        own = asdict(SamplingParams(**entry))
    except TypeError as error:
        raise InvalidParameterError(f"line {number} of standard input: {error}") from error
    return Order(prompt=prompt, messages=messages, params={**common, **{name: own[name] for name in entry}})


def _prompt_of(llm: LLM, order: Order) -> str | list[int]:
    if order.messages is not None:
        return chat_ids(llm, order.messages)
    return order.prompt if order.prompt is not None else ""


def _stream(llm: LLM, prompt: str | list[int], params: SamplingParams) -> int:
    error = None
    for news in llm.stream(prompt, params):
        write(news.text, end="")
        error = news.error or error
    write("")
    if error:
        fail(error)
    return 1 if error else 0


def _print(outputs: Sequence[RequestOutput], *, is_json: bool) -> int:
    answers = [(output, answer) for output in outputs for answer in output.outputs]
    if is_json:
        for output in outputs:
            write_json(_as_json(output), is_line=True)
    else:
        for number, (output, answer) in enumerate(answers):
            if len(answers) > 1:
                write(f"--- prompt {outputs.index(output)}, answer {answer.index} ({answer.finish_reason})")
            write(answer.text)
            if output.error and number == len(answers) - 1:
                fail(output.error)
    return 1 if any(output.error for output in outputs) else 0


def _as_json(output: RequestOutput) -> dict[str, Any]:
    entry = asdict(output)
    entry["usage"] = {
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": sum(len(answer.token_ids) for answer in output.outputs),
        "cached_tokens": output.num_cached_tokens,
    }
    return entry
