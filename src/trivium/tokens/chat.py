"""`ChatTemplate`: messages to the prompt text that a model was trained on.

Templates are Jinja programs that come with a model; they run in `sandbox.PayingEnvironment`. This module gives them
what templates expect to find, makes messages uniform, and turns whatever goes wrong into `TemplateError`.
Source: the conventions of Hugging Face chat templates.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from trivium.base.errors import ConfigError, TemplateError
from trivium.tokens.template_source import find_template_source

if TYPE_CHECKING:
    from pathlib import Path

    import jinja2

    from trivium.tokens.render_budget import RenderBudget
    from trivium.tokens.sandbox import PayingEnvironment
    from trivium.tokens.tokenizer import Tokenizer

MAX_SOURCE_LETTERS = 1 << 18
TOOL_TEMPLATE, DEFAULT_TEMPLATE = "tool_use", "default"
PART_SEPARATOR = "\n"
"""Joins the text parts of a message whose content is a list."""

Message = Mapping[str, Any]


def _local_now() -> datetime:
    return datetime.now().astimezone()


class ChatTemplate:
    """A compiled chat template, or several with names, of which `tool_use` serves requests with tools.

    Rendering changes nothing, so one template serves many threads.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        bos_token: str = "",
        eos_token: str = "",
        tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = _local_now,
    ) -> None:
        """Compile.

        Args:
            source: Template text, or texts by name.
            bos_token: What the template writes for it.
            eos_token: Likewise.
            tokens: More special tokens by variable name, such as `pad_token`.
            now: The time for `strftime_now`.

        Raises:
            ConfigError: A template is too long or not Jinja; the message says where.
        """
        sources = {DEFAULT_TEMPLATE: source} if isinstance(source, str) else dict(source)
        if not sources:
            raise ConfigError("the chat template is an empty list; name one with --chat-template")
        self.sources: Mapping[str, str] = sources
        environment = _make_environment(now)
        self._templates = {name: _compile(environment, name, text) for name, text in sources.items()}
        self._variables = frozenset().union(*(_variables(environment, text) for text in sources.values()))
        self._tokens = {**(tokens or {}), "bos_token": bos_token, "eos_token": eos_token}

    def uses(self, variable: str) -> bool:
        """Whether the template looks at a variable: `tools`, `documents`, `enable_thinking` and so on."""
        return variable in self._variables or (variable == "tools" and TOOL_TEMPLATE in self.sources)

    def describe(self) -> dict[str, Any]:
        """Return what `portable.read_template` makes an equal template of, as JSON-like values."""
        return {"sources": dict(self.sources), "tokens": dict(self._tokens)}

    @functools.cached_property
    def takes_text_arguments(self) -> bool:
        """Whether it wants the arguments of calls as texts, because it fails at an object or writes it as Python does.

        Found by trying.
        """
        written = self._try({"probe": 1})
        is_fit = written is not None and "{'probe': 1}" not in written
        return not is_fit and self._try('{"probe": 1}') is not None

    def _try(self, arguments: str | Mapping[str, Any]) -> str | None:
        call = {"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        turns: list[dict[str, Any]] = [
            {"role": "user", "content": "probe"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "probe", "tool_call_id": "call00000", "name": "probe"},
        ]
        try:
            return self.render(turns)
        except TemplateError:
            return None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Write a conversation as a prompt; it usually contains the begin token already.

        Args:
            messages: Turns with `role` and `content`; a missing content is the empty text, text parts are joined.
            tools: Descriptions of functions, as in the OpenAI API.
            add_generation_prompt: End with the beginning of an answer.
            variables: More variables for the template, such as `documents` or `enable_thinking`.

        Raises:
            TemplateError: The template refused the messages (with its own words), failed, or did too much.
        """
        from trivium.tokens.render_budget import RenderBudget  # noqa: PLC0415  (start-up time)
        from trivium.tokens.sandbox import BUDGET  # noqa: PLC0415  (start-up time)

        budget = RenderBudget()
        given = {"documents": None, **variables, **self._tokens, BUDGET: budget}
        given |= {
            "messages": [_with_text(message) for message in messages],
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        return _run(self._choose(has_tools=bool(tools)), given, budget)

    def _choose(self, *, has_tools: bool) -> jinja2.Template:
        if has_tools and TOOL_TEMPLATE in self._templates:
            return self._templates[TOOL_TEMPLATE]
        return self._templates.get(DEFAULT_TEMPLATE) or next(iter(self._templates.values()))


def find_template(
    *,
    override: str | None = None,
    directory: Path | None = None,
    metadata: Mapping[str, Any] | None = None,
    tokenizer: Tokenizer | None = None,
) -> ChatTemplate | None:
    """Make the chat template of a model, or return `None` when it has none.

    Args:
        override: A Jinja file, or template text, that goes first.
        directory: The model's directory in Hugging Face layout.
        metadata: Key/value pairs of a GGUF file.
        tokenizer: Says what the begin and end tokens are called.

    Raises:
        ConfigError: The override is neither a file nor a template, or a template is not Jinja.
        CheckpointError: A file of the model is malformed.
    """
    source = find_template_source(override=override, directory=directory, metadata=metadata or {})
    if source is None:
        return None
    if tokenizer is None:
        return ChatTemplate(source)
    special = tokenizer.special
    return ChatTemplate(
        source,
        bos_token=tokenizer.special_text(special.bos_id),
        eos_token=tokenizer.special_text(next(iter(special.eos_ids), None)),
        tokens={
            "pad_token": tokenizer.special_text(special.pad_id),
            "unk_token": tokenizer.special_text(special.unk_id),
        },
    )


def _make_environment(now: Callable[[], datetime]) -> PayingEnvironment:
    from trivium.tokens.sandbox import PayingEnvironment  # noqa: PLC0415  (start-up time)

    environment = PayingEnvironment()
    environment.add_filter("tojson", _to_json)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = functools.partial(_format_now, now)
    return environment


def _compile(environment: PayingEnvironment, name: str, source: str) -> jinja2.Template:
    import jinja2  # noqa: PLC0415  (start-up time)

    if len(source) > MAX_SOURCE_LETTERS:
        raise ConfigError(f"chat template '{name}' has {len(source)} letters; at most {MAX_SOURCE_LETTERS} are taken")
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"chat template '{name}' is not Jinja, line {error.lineno}: {error.message}") from error
    except Exception as error:
        raise ConfigError(f"chat template '{name}' does not compile: {type(error).__name__}: {error}") from error


def _variables(environment: PayingEnvironment, source: str) -> frozenset[str]:
    """Names that a template reads; those that it sets itself may be among them."""
    from jinja2 import nodes  # noqa: PLC0415  (start-up time)

    return frozenset(name.name for name in environment.parse(source).find_all(nodes.Name) if name.ctx == "load")


class _RefusalError(Exception):
    """The template called `raise_exception`."""


def _run(template: jinja2.Template, given: Mapping[str, Any], budget: RenderBudget) -> str:
    from trivium.tokens.render_budget import OverBudgetError  # noqa: PLC0415  (start-up time)

    pieces: list[str] = []
    num_letters = 0
    try:
        for piece in template.generate(given):
            num_letters += len(piece)
            budget.foresee(num_letters)
            pieces.append(piece)
    except _RefusalError as refusal:
        raise TemplateError(str(refusal)) from None
    except OverBudgetError as error:
        raise TemplateError(f"the chat template was stopped: {error}") from None
    except Exception as error:
        raise TemplateError(f"the chat template failed: {str(error) or type(error).__name__}") from error
    return "".join(pieces)


def _with_text(message: Message) -> dict[str, Any]:
    """Copy a message so that its content is a text, because templates join contents with `+`."""
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, (list, tuple)):
        content = PART_SEPARATOR.join(_part_text(part) for part in content)
    return {**message, "content": content}


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise TemplateError(f"a message has a content part of type {kind!r}, which is no text", param="messages")
    return text


def _refuse(message: object = "the chat template refused the messages") -> NoReturn:
    raise _RefusalError(str(message))


def _format_now(now: Callable[[], datetime], form: str) -> str:
    """Format the present time; padding widths are refused, because the C library would honour any."""
    if re.search(r"[0-9]{3}", form):
        raise _RefusalError("strftime_now was called with a padding of more than 99")
    return now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  (templates pass it by position)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Write JSON as templates expect it: letters as they are, no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
