"""`trivium generate`: answer prompts from flags, from a text on stdin, or from JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from trivium.base.errors import ConfigError, InvalidParameterError
from trivium.cli.constraint import NO_CONSTRAINT, ConstraintFlags
from trivium.cli.flags import ConfigFile, ModelName, flags_of, given_params, settle, without
from trivium.cli.orders import Order, read_orders
from trivium.cli.terminal import fail, fetching, write, write_json
from trivium.config.options import CompileOptions, EngineOptions, ScheduleOptions
from trivium.config.sampling import SamplingParams

if TYPE_CHECKING:
    from trivium.api import LLM, RequestOutput
    from trivium.config.chat_output import ChatOutput
    from trivium.config.resolve import Settings

_IN_JSON_ONLY = ("logprobs", "prompt_logprobs", "prompt_logprob_start", "logprobs_mode")
"""Parameters of what only the JSON form shows."""


@flags_of(SamplingParams, EngineOptions, without=("model",), aside=(ScheduleOptions, CompileOptions))
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
    form: ConstraintFlags = NO_CONSTRAINT,
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Complete prompts, from `--prompt` or from standard input.

    Raises:
        ConfigError: A flag has a bad value, or there is nothing to complete.
        RequestError: A prompt or parameter is refused.
    """
    common = given_params(flags)
    if constraint := form.constraint():
        common["structured_outputs"] = constraint
    settings = settle((EngineOptions,), without(SamplingParams, flags), config=config, model=model)
    orders = read_orders(prompt, common, is_json=jsonl, is_chat=chat)
    _refuse_unprinted(orders, is_json=json, is_stream=stream)
    with open_llm(settings) as llm:
        prompts: list[str | list[int]] = []
        params: list[SamplingParams] = []
        for order in orders:
            with order.blamed():
                prompts.append(_prompt_of(llm, order))
                params.append(params_of(llm, order.params))
        if stream:
            return _stream(llm, prompts[0], params[0])
        outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty() and len(prompts) > 1)
    return _print(outputs, is_json=json)


def _refuse_unprinted(orders: Sequence[Order], *, is_json: bool, is_stream: bool) -> None:
    """Refuse what would be computed and then not be shown.

    Raises:
        ConfigError: Logprobs without `--json`, or a stream of more than one answer.
    """
    if not is_json:
        for name in _IN_JSON_ONLY:
            if any(order.params.get(name) is not None for order in orders):
                raise ConfigError(f"{name} is not shown in plain text; --{name.replace('_', '-')} needs --json")
    if is_stream and (is_json or len(orders) > 1 or SamplingParams(**orders[0].params).num_draws != 1):
        raise ConfigError("--stream prints one answer to one prompt as text; leave it out for more")


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


def chat_prompt(llm: LLM, messages: Sequence[dict[str, Any]]) -> tuple[list[int], ChatOutput | None]:
    """Return the token ids of a conversation through the model's chat template, and what its answer is made of.

    Raises:
        ConfigError: The model has no chat template.
        RequestError: A message is not one, or the template refuses them.
    """
    from trivium.grammar.chat import ChatRequest, conversation_of, output_of  # noqa: PLC0415  (start-up time)
    from trivium.tokens.conversation import render_prompt  # noqa: PLC0415

    template = llm.frontend.chat_template
    if template is None:
        raise ConfigError(f"{llm.frontend.name} has no chat template; give one with --chat-template")
    request = ChatRequest(messages=messages)
    conversation = conversation_of(request, template, llm.frontend.dialects)
    text = render_prompt(template, conversation)
    output = output_of(request, llm.frontend.dialects, conversation, text)
    return llm.frontend.tokenizer.encode(text, add_special_tokens=False), output


def _prompt_of(llm: LLM, order: Order) -> str | list[int]:
    """The prompt as the engine takes it; ids are checked here, where the line at fault is known."""
    if order.messages is not None:
        return chat_prompt(llm, order.messages)[0]
    prompt = order.prompt if order.prompt is not None else ""
    if isinstance(prompt, list):
        last = llm.frontend.config.vocab_size - 1
        if not prompt:
            raise InvalidParameterError("the prompt has no tokens; give at least one", param="prompt")
        if (bad := next((token for token in prompt if token > last), None)) is not None:
            raise InvalidParameterError(f"token id {bad} is outside the vocabulary, 0 to {last}", param="prompt")
    return prompt


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
    for answer in entry["outputs"]:  # of conversations only
        del answer["parts"], answer["tool_calls"]
    entry["usage"] = {
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": sum(len(answer.token_ids) for answer in output.outputs),
        "cached_tokens": output.num_cached_tokens,
    }
    return entry
