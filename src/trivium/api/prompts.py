"""From what users write to token ids: one prompt or many, in each of its forms, and conversations.

::

    "a"                                one text             ["a", "b"]                 many texts
    [1, 2]                             one list of ids      [[1, 2], [3]]              many lists of ids
    {"prompt": "a"}                    one text             [{"prompt": "a"}, "b"]     forms may be mixed
    {"prompt_token_ids": [1, 2]}       one list of ids

What has another form is refused, with what was given and what is expected; nothing is converted in silence.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from trivium.base.errors import InvalidParameterError, TemplateError, UnsupportedFeatureError
from trivium.config.defaults import recommended_sampling
from trivium.config.sampling import SamplingParams

if TYPE_CHECKING:
    from trivium.assembly import Frontend
    from trivium.config.chat_output import ChatOutput
    from trivium.config.program_share import ProgramShare
    from trivium.engine.adapters import AdapterRecord
    from trivium.grammar.chat import ChatRequest
    from trivium.tokens.chat import ChatTemplate

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`; a mapping may also hold `cache_salt`."""
Message = Mapping[str, Any]
"""A chat message: `role` and `content`."""
Priorities = int | Sequence[int]
"""For every prompt, or one per prompt; smaller starts first."""
Params = SamplingParams | Sequence[SamplingParams] | None
"""For every prompt, one per prompt, or the model's own recommendation."""

MAX_SHOWN_CHARS = 60
_MOST_PRIORITY = (1 << 31) - 1
_FORMS = "a text, a list of token ids, {'prompt': text} or {'prompt_token_ids': ids}"
_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_UNSUPPORTED_KEYS = frozenset({
    "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs", "prompt_embeds", "token_type_ids",
    "encoder_prompt", "decoder_prompt",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt as the engine takes it."""

    text: str | None
    """What `RequestOutput.prompt` reports."""
    ids: list[int]
    cache_salt: str = ""
    """Prompts share their prefix's KV only with prompts of the same salt."""
    priority: int = 0
    """Smaller starts first, where the engine orders by priority."""
    adapter: AdapterRecord | None = None
    """What answers it beside the base."""
    chat_output: ChatOutput | None = None
    """What the answer is made of, where it is more than text."""
    num_earlier_calls: int = 0
    """Tool calls of the conversation's history."""
    program: ProgramShare | None = None
    """The program to which its request belongs, if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatForm:
    """How conversations are written as prompts."""

    chat_template: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool = True
    documents: Sequence[Mapping[str, str]] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    max_reasoning_tokens: int | None = None


def with_output(params: SamplingParams, prompt: ReadPrompt) -> SamplingParams:
    """Return the parameters of a prompt's request: what a chat's answer is made of is said there, unless given."""
    if prompt.chat_output is None or params.chat_output is not None:
        return params
    return replace(params, chat_output=prompt.chat_output)


class PromptReader:
    """Knows a model's tokenizer, chat template and recommended parameters."""

    def __init__(self, frontend: Frontend) -> None:
        self.frontend = frontend
        self.tokenizer = frontend.tokenizer

    def one(self, prompt: object) -> ReadPrompt:
        """Read one prompt.

        Raises:
            InvalidParameterError: It has none of the forms above.
            UnsupportedFeatureError: It holds something that is not text.
        """
        return self._read("prompt", prompt)

    def many(self, prompts: object) -> list[ReadPrompt]:
        """Read one prompt or a list of them.

        Raises:
            InvalidParameterError: One has none of the forms above.
            UnsupportedFeatureError: One holds something that is not text.
        """
        if not _is_list(prompts) or (prompts and not _is_prompt_like(prompts[0])):
            return [self._read("prompts", prompts)]
        return [self._read(f"prompts[{idx}]", prompt) for idx, prompt in enumerate(prompts)]

    def chat(self, messages: object, form: ChatForm) -> ReadPrompt:
        """Write one conversation as a prompt; the template writes the start token, so none is added to it.

        Raises:
            RequestError: The messages are refused, as the HTTP server would, or there is no template.
        """
        return self._converse("messages", messages, form, self._template(form))

    def chats(self, messages: object, form: ChatForm) -> list[ReadPrompt]:
        """Write one conversation, or each of a list of them, as a prompt.

        Raises:
            RequestError: As for `chat`.
        """
        template = self._template(form)
        if isinstance(messages, list | tuple) and messages and all(isinstance(one, list | tuple) for one in messages):
            return [self._converse(f"messages[{idx}]", one, form, template) for idx, one in enumerate(messages)]
        return [self._converse("messages", messages, form, template)]

    def params(self, given: object) -> SamplingParams:
        """Return the given parameters, or the model's recommended ones.

        Raises:
            InvalidParameterError: They are no `SamplingParams`.
        """
        if given is None:
            return SamplingParams(**recommended_sampling(self.frontend.generation_config))
        return _checked_params("sampling_params", given)

    def params_per_prompt(self, given: object, num_prompts: int) -> list[SamplingParams]:
        """Return one record per prompt.

        Raises:
            InvalidParameterError: They are no `SamplingParams`, or not as many as prompts.
        """
        if not _is_list(given):
            return [self.params(given)] * num_prompts
        if len(given) != num_prompts:
            raise InvalidParameterError(
                f"there are {num_prompts} prompts and {len(given)} sampling_params; give one, or one per prompt",
                param="sampling_params",
            )
        return [_checked_params(f"sampling_params[{idx}]", one) for idx, one in enumerate(given)]

    def with_priorities(self, prompts: Sequence[ReadPrompt], given: object) -> list[ReadPrompt]:
        """Return the prompts with their priorities: one for all, or one each.

        Raises:
            InvalidParameterError: They are no whole numbers, too large, or not as many as prompts.
        """
        if not _is_list(given):
            return [replace(prompt, priority=_priority("priority", given)) for prompt in prompts]
        if len(given) != len(prompts):
            raise InvalidParameterError(
                f"there are {len(prompts)} prompts and {len(given)} priorities; give one, or one per prompt",
                param="priority",
            )
        read = [_priority(f"priority[{idx}]", one) for idx, one in enumerate(given)]
        return [replace(prompt, priority=one) for prompt, one in zip(prompts, read, strict=True)]

    def _read(self, where: str, prompt: object) -> ReadPrompt:
        if isinstance(prompt, Mapping):
            return self._read_mapping(where, prompt)
        if isinstance(prompt, str):
            return ReadPrompt(prompt, self.tokenizer.encode(prompt, add_special_tokens=True))
        if _is_list(prompt):
            return ReadPrompt(None, [_token_id(f"{where}[{idx}]", id_) for idx, id_ in enumerate(prompt)])
        raise _bad(where, prompt, _FORMS)

    def _read_mapping(self, where: str, prompt: Mapping[Any, Any]) -> ReadPrompt:
        given = {key: value for key, value in prompt.items() if value is not None}
        for key in given:
            if key in _UNSUPPORTED_KEYS:
                raise UnsupportedFeatureError(f"{where}[{key!r}] is not supported; prompts are text", param="prompt")
            if key not in _KEYS:
                hint = "; conversations go to chat" if key in {"role", "content"} else ""
                raise InvalidParameterError(
                    f"{where} has the key {_shown(key)}; known are {', '.join(_KEYS)}{hint}", param="prompt"
                )
        salt = given.pop("cache_salt", "")
        if not isinstance(salt, str):
            raise _bad(f"{where}['cache_salt']", salt, "a text")
        if len(given) != 1:
            raise InvalidParameterError(
                f"{where} must have either prompt or prompt_token_ids; it has {' and '.join(given) or 'neither'}",
                param="prompt",
            )
        [(key, value)] = given.items()
        if isinstance(value, str) != (key == "prompt"):
            raise _bad(f"{where}[{key!r}]", value, "a text" if key == "prompt" else "a list of token ids")
        read = self._read(f"{where}[{key!r}]", value)
        return ReadPrompt(read.text, read.ids, salt)

    def _template(self, form: ChatForm) -> ChatTemplate:
        from trivium.tokens.chat import find_template  # noqa: PLC0415  (start-up time)

        own = form.chat_template
        if own is not None and not isinstance(own, str):
            raise _bad("chat_template", own, "a Jinja template as text, or the path of one")
        template = self.frontend.chat_template if own is None else find_template(override=own, tokenizer=self.tokenizer)
        if template is None:
            raise TemplateError(
                f"{self.frontend.name} has no chat template; give one with chat_template=", param="messages"
            )
        return template

    def _converse(self, where: str, messages: object, form: ChatForm, template: ChatTemplate) -> ReadPrompt:
        from trivium.grammar.chat import conversation_of, output_of  # noqa: PLC0415  (start-up time)
        from trivium.tokens.conversation import render_prompt  # noqa: PLC0415
        from trivium.tokens.tool_messages import count_calls  # noqa: PLC0415

        request = _chat_request(where, messages, form)
        dialects = self.frontend.dialects_with(template)
        conversation = conversation_of(request, template, dialects)
        text = render_prompt(template, conversation)
        return ReadPrompt(
            text,
            self.tokenizer.encode(text, add_special_tokens=False),
            chat_output=output_of(request, dialects, conversation, text),
            num_earlier_calls=count_calls(conversation.messages),
        )


def _chat_request(where: str, messages: object, form: ChatForm) -> ChatRequest:
    from trivium.grammar.chat import ChatRequest  # noqa: PLC0415  (start-up time)
    from trivium.tokens.tool_request import WantedCalls, read_tool_choice, read_tools  # noqa: PLC0415

    variables = form.chat_template_kwargs
    if variables is not None and not isinstance(variables, Mapping):
        raise _bad("chat_template_kwargs", variables, "a mapping of names to values")
    return ChatRequest(
        messages=messages,
        where=where,
        tools=read_tools(form.tools or ()),
        calls=WantedCalls() if form.tool_choice is None else read_tool_choice(form.tool_choice),
        parallel_tool_calls=form.parallel_tool_calls,
        documents=form.documents or (),
        add_generation_prompt=form.add_generation_prompt,
        continue_final_message=form.continue_final_message,
        variables=variables or {},
        max_reasoning_tokens=form.max_reasoning_tokens,
    )


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _is_prompt_like(value: object) -> bool:
    return isinstance(value, str | Mapping) or _is_list(value)


def _token_id(where: str, value: object) -> int:
    number = _whole_number(value)
    if number is None:
        raise _bad(where, value, "a token id, a whole number")
    return number


def _priority(where: str, value: object) -> int:
    number = _whole_number(value)
    if number is None or abs(number) > _MOST_PRIORITY:
        raise _bad(where, value, f"a whole number from -{_MOST_PRIORITY} to {_MOST_PRIORITY}")
    return number


def _whole_number(value: object) -> int | None:
    """Take whole numbers, NumPy's too, and neither booleans nor 1.0."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    return None


def _checked_params(where: str, given: object) -> SamplingParams:
    if isinstance(given, SamplingParams):
        return given
    hint = " (SamplingParams(**given) makes one)" if isinstance(given, Mapping) else ""
    expected = f"a SamplingParams{hint}, a list with one per prompt, or None for the model's own recommendation"
    raise _bad(where, given, expected, param="sampling_params")


def _bad(where: str, value: object, expected: str, *, param: str | None = None) -> InvalidParameterError:
    kind = type(value).__name__
    shown = "None" if value is None else f"{_shown(value)} ({kind})"
    return InvalidParameterError(
        f"{where} is {shown}; it must be {expected}",
        param=param or ("prompt" if where.startswith("prompt") else where.split("[", 1)[0]),
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
