"""The words that programs are written in, with SGLang's names, arguments and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from trivium.base.errors import InvalidParameterError
from trivium.lang.abstract import Abstract
from trivium.lang.choices import ChoicesSamplingMethod, method_of, token_length_normalized
from trivium.lang.expressions import Expr, Gen, RoleBegin, RoleEnd, Select, Sum, ToolCall, as_expr, leaves
from trivium.lang.forms import form_of
from trivium.lang.function import SglFunction
from trivium.lang.reasoning import separate
from trivium.lang.sampling import Sampling

_GREEDY = 1e-5


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = None) -> SglFunction: ...


@overload
def function(
    func: None = None,
    num_api_spec_tokens: int | None = None,
    *,
    tools: Mapping[str, Callable[..., Any]] | None = None,
) -> Callable[[Callable[..., Any]], SglFunction]: ...


def function(
    func: Callable[..., Any] | None = None,
    num_api_spec_tokens: int | None = None,
    *,
    tools: Mapping[str, Callable[..., Any]] | None = None,
) -> SglFunction | Callable[[Callable[..., Any]], SglFunction]:
    """Make a function a program; its first parameter is `s`, the state that it appends to.

    Args:
        func: The function, where the decorator has no arguments.
        num_api_spec_tokens: Tokens that a model behind an API is asked for ahead, to save calls (see `remotely`);
            models in this process are not paid by the call, so it changes nothing for them.
        tools: Functions that `tool` calls by name.

    Raises:
        InvalidParameterError: The first parameter is not `s`.
    """
    if func is not None:
        return SglFunction(func, num_api_spec_tokens, tools=tools)
    return lambda own: SglFunction(own, num_api_spec_tokens, tools=tools)


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | str | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | type | None = None,
    *,
    ebnf: str | None = None,
    structural_tag: str | Mapping[str, Any] | None = None,
    seed: int | None = None,
    timeout: float | None = None,
) -> Expr:
    """Let the model write; what is `None` the run decides.

    Args:
        name: The variable that holds the text.
        stop: Texts that end the answer and are cut off.
        stop_regex: Regular expressions whose match ends the answer where it is first whole, and is cut off.
        n: Answers to draw; more than one make the variable a list, and the state goes on with the first.
        dtype: `int`, `float`, `bool` or `str`, or its name: write a value of this type.
        choices: Write one of these, as `select` does.
        choices_method: As for `select`.
        regex: Write what matches this expression.
        json_schema: Write JSON of a schema, its text, a Pydantic model or a dataclass; `get_parsed` reads it.
        ebnf: Write a sentence of this grammar.
        structural_tag: Write free text with constrained spans.
        seed: Of the random numbers.
        timeout: Seconds that it may take.

    Raises:
        InvalidParameterError: An argument has a bad value, or contradicts another.
        UnsupportedFeatureError: `stop_regex` uses what a stop cannot.
    """
    if choices is not None:
        method = token_length_normalized if choices_method is None else choices_method
        return select(name, choices, 0.0 if temperature is None else temperature, method, timeout=timeout)
    sampling = Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        n=n,
        stop=stop,
        stop_token_ids=stop_token_ids,
        stop_regex=stop_regex,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        ignore_eos=ignore_eos,
        seed=seed,
        return_logprob=return_logprob,
        logprob_start_len=logprob_start_len,
        top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs,
    )
    form = form_of(dtype=dtype, regex=regex, json_schema=json_schema, ebnf=ebnf, structural_tag=structural_tag)
    return Gen(name=name, sampling=sampling, form=form, timeout_s=timeout)


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> Expr:
    """Let the model write a whole number; see `gen`.

    Raises:
        InvalidParameterError: An argument has a bad value.
        UnsupportedFeatureError: `stop_regex` uses what a stop cannot.
    """
    return gen(
        name,
        max_tokens=max_tokens,
        n=n,
        stop=stop,
        stop_token_ids=stop_token_ids,
        stop_regex=stop_regex,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        ignore_eos=ignore_eos,
        return_logprob=return_logprob,
        logprob_start_len=logprob_start_len,
        top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs,
        dtype=int,
    )


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> Expr:
    """Let the model write a text between quotes; see `gen`.

    Raises:
        InvalidParameterError: An argument has a bad value.
        UnsupportedFeatureError: `stop_regex` uses what a stop cannot.
    """
    return gen(
        name,
        max_tokens=max_tokens,
        n=n,
        stop=stop,
        stop_token_ids=stop_token_ids,
        stop_regex=stop_regex,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        ignore_eos=ignore_eos,
        return_logprob=return_logprob,
        logprob_start_len=logprob_start_len,
        top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs,
        dtype=str,
    )


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod | str = token_length_normalized,
    *,
    timeout: float | None = None,
) -> Expr:
    """Let the model choose one of several texts, by their logprobs behind the state's text.

    Args:
        name: The variable that holds the choice.
        choices: The texts.
        temperature: 0, since choices are scored, not drawn.
        choices_method: The measure: one of the four of `choices`, by itself or by its name, or one of your own.
        timeout: Seconds that it may take.

    Raises:
        InvalidParameterError: An argument has a bad value.
    """
    texts: Any = choices
    is_list = not isinstance(texts, str | Abstract) and bool(texts)
    if not isinstance(texts, Abstract) and not (is_list and all(map(_is_choice, texts))):
        raise InvalidParameterError(f"choices is {choices!r}; it must be a list of texts", param="choices")
    if not 0 <= temperature <= _GREEDY:
        raise InvalidParameterError(f"temperature is {temperature!r}; select takes 0 only", param="temperature")
    listed = texts if isinstance(texts, Abstract) else tuple(texts)
    return Select(name=name, choices=listed, method=method_of(choices_method), timeout_s=timeout)


def tool(
    name: str | Callable[..., Any],
    args: Mapping[str, Any] | None = None,
    *,
    into: str | None = None,
    timeout: float | None = None,
) -> Expr:
    """Call a function of yours when everything before is done; what it returns is a variable, and no text.

    Args:
        name: A name among the program's `tools`, or the function itself, which may be a coroutine function.
        args: Its arguments by name.
        into: The variable; `None` takes the function's name.
        timeout: Seconds that it may take.

    Raises:
        InvalidParameterError: An argument has a bad value.
    """
    into = into or (name if isinstance(name, str) else getattr(name, "__name__", None))
    if not into:
        raise InvalidParameterError("the tool has no name, so into must say where its result goes", param="into")
    given: Any = args
    if given is not None and not isinstance(given, Mapping):
        raise InvalidParameterError(f"args is {args!r}; it must be a mapping of arguments by name", param="args")
    return ToolCall(tool=name, args=dict(args or {}), into=into, timeout_s=timeout)


def system(expr: Expr | str | None = None) -> Expr:
    """A system message."""
    return _message("system", expr)


def user(expr: Expr | str | None = None) -> Expr:
    """A user's message."""
    return _message("user", expr)


def assistant(expr: Expr | str | None = None) -> Expr:
    """An assistant's message."""
    return _message("assistant", expr)


def system_begin() -> Expr:
    """The beginning of a system message."""
    return RoleBegin(role="system")


def system_end() -> Expr:
    """The end of a system message."""
    return RoleEnd(role="system")


def user_begin() -> Expr:
    """The beginning of a user's message."""
    return RoleBegin(role="user")


def user_end() -> Expr:
    """The end of a user's message."""
    return RoleEnd(role="user")


def assistant_begin() -> Expr:
    """The beginning of an assistant's message."""
    return RoleBegin(role="assistant")


def assistant_end() -> Expr:
    """The end of an assistant's message."""
    return RoleEnd(role="assistant")


def separate_reasoning(expr: Expr | None = None, model_type: str | None = None) -> Expr:
    """Keep the reasoning of a `gen` apart: NAME holds the answer, NAME_reasoning_content the reasoning.

    The state's text goes on with the answer alone.

    Args:
        expr: A `gen`, or a sum that has some.
        model_type: How the model marks its reasoning: a dialect's name, as `--reasoning-parser` takes it, or SGLang's.

    Raises:
        InvalidParameterError: There is no `gen`.
        UnsupportedFeatureError: There is no such dialect.
    """
    if expr is None or model_type is None:
        raise InvalidParameterError("separate_reasoning needs expr and model_type", param="separate_reasoning")
    return separate(expr, model_type)


def _message(role: str, expr: Expr | str | None) -> Expr:
    inner = () if expr is None else tuple(leaves(as_expr(expr)))
    return Sum(parts=(RoleBegin(role=role), *inner, RoleEnd(role=role)))


def _is_choice(given: object) -> bool:
    return isinstance(given, Abstract) or (isinstance(given, str) and given != "")
