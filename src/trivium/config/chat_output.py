"""What the answer of a chat is made of: reasoning, content and tool calls, and which of them it must have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trivium.base.errors import InvalidParameterError
from trivium.config.structured import check_schema

MAX_TOOLS = 512
MAX_TOOLS_BYTES = 1 << 20
"""Most bytes of all tools' parameters together."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

ToolChoice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call."""

    name: str
    """1 to 128 letters, digits, `_`, `.` and `-`."""
    parameters: Mapping[str, Any] | None = None
    """JSON Schema of its arguments, an object; `None`: it takes none."""
    strict: bool = False
    """Whether arguments that break the schema are made impossible."""

    def validate(self) -> None:
        """Check every field against its limits.

        Raises:
            InvalidParameterError: A field is of a wrong type or outside its limits.
        """
        name: Any = self.name
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise _bad("name of a tool", name, "1 to 128 of letters, digits, '_', '.' and '-'", "tools")
        parameters: Any = self.parameters
        if parameters is not None:
            if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
                raise _bad(f"parameters of '{name}'", parameters, "a JSON Schema whose type is 'object'", "tools")
            check_schema(f"parameters of '{name}'", parameters, param="tools")
        if not isinstance(self.strict, bool):
            raise _bad(f"strict of '{name}'", self.strict, "true or false", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOutput:
    """How the text of an answer is split into reasoning, content and tool calls, and which calls it must have.

    A `structured_outputs` of the same request constrains the content; but a structural tag is of the whole text, whose
    marks it writes itself.
    """

    reasoning_dialect: str | None = None
    """Whose marks (`grammar.dialects`) split reasoning off; `None`: nothing is reasoning."""
    starts_in_reasoning: bool = False
    """Whether the prompt has opened the span of reasoning already."""
    tool_dialect: str | None = None
    """Whose tool calls are read; `None`: none are."""
    tools: tuple[Tool, ...] = ()
    """Functions that may be called, 512 at most."""
    tool_choice: ToolChoice = "auto"
    """`none`: no calls are read; `required`: there is one at least."""
    allowed_tools: tuple[str, ...] | None = None
    """Names of the tools that may be called; `None`: all. A named choice is `required` with this one."""
    parallel_tool_calls: bool = True
    """Whether there may be more than one call."""
    max_reasoning_tokens: int | None = None
    """Tokens of reasoning after which its end is written."""

    def validate(self) -> None:
        """Check every field against its limits, and against each other.

        Raises:
            InvalidParameterError: A field is of a wrong type, outside its limits or contradicts another.
        """
        for name in ("starts_in_reasoning", "parallel_tool_calls"):
            if not isinstance(getattr(self, name), bool):
                raise _bad(name, getattr(self, name), "true or false")
        for name in ("reasoning_dialect", "tool_dialect"):
            if not isinstance(getattr(self, name), str | None):
                raise _bad(name, getattr(self, name), "a dialect's name")
        if self.tool_choice not in ("auto", "none", "required"):  # a tuple, since it may be unhashable
            raise _bad("tool_choice", self.tool_choice, "'auto', 'none' or 'required'")
        self._validate_tools()
        self._validate_reasoning()

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        if self.tool_choice == "none" or self.tool_dialect is None:
            return ()
        if self.allowed_tools is None:
            return self.tools
        return tuple(each for each in self.tools if each.name in self.allowed_tools)

    @property
    def limits_calls(self) -> bool:
        """Whether some calls, or none, are made impossible."""
        is_limited = self.tool_choice == "required" or self.allowed_tools is not None or not self.parallel_tool_calls
        return bool(self.callable_tools) and (is_limited or any(tool.strict for tool in self.callable_tools))

    def _validate_tools(self) -> None:
        tools: Any = self.tools
        if not isinstance(tools, (tuple, list)) or not all(isinstance(each, Tool) for each in tools):
            raise _bad("tools", tools, "a list of Tool")
        if len(tools) > MAX_TOOLS:
            raise _bad("tools", f"{len(tools)} tools", f"at most {MAX_TOOLS}")
        for each in tools:
            each.validate()
        names = [each.name for each in tools]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidParameterError(
                f"tools holds '{twice}' twice; each tool needs a name of its own", param="tools"
            )
        size = sum(len(json.dumps(each.parameters)) for each in tools if each.parameters is not None)
        if size > MAX_TOOLS_BYTES:
            raise _bad("tools", f"{size} bytes of parameters", f"at most {MAX_TOOLS_BYTES} bytes")
        self._validate_choice(names)

    def _validate_choice(self, names: list[str]) -> None:
        allowed: Any = self.allowed_tools
        if allowed is not None:
            if not isinstance(allowed, (tuple, list)) or not allowed:
                raise _bad("allowed_tools", allowed, "a list of tools' names that is not empty")
            for name in allowed:
                if name not in names:
                    raise InvalidParameterError(f"tool_choice names '{name}', which tools lacks", param="tool_choice")
        if self.tool_choice == "required":
            if not names:
                raise InvalidParameterError("tool_choice requires a call, but there are no tools", param="tool_choice")
            if self.tool_dialect is None:
                raise InvalidParameterError(
                    "tool_choice requires a call, but it is not known how this model writes one; start the server with "
                    "--tool-call-parser",
                    param="tool_choice",
                )

    def _validate_reasoning(self) -> None:
        if self.starts_in_reasoning and self.reasoning_dialect is None:
            raise _bad("starts_in_reasoning", True, "false, since no reasoning_dialect is given")  # noqa: FBT003
        budget: Any = self.max_reasoning_tokens
        if budget is None:
            return
        if not isinstance(budget, int) or isinstance(budget, bool) or not 0 <= budget < 1 << 31:
            raise _bad("max_reasoning_tokens", budget, f"a whole number from 0 to {(1 << 31) - 1}")
        if self.reasoning_dialect is None:
            raise InvalidParameterError(
                f"max_reasoning_tokens is {budget}, but it is not known how this model marks its reasoning; start the "
                "server with --reasoning-parser",
                param="max_reasoning_tokens",
            )


def _bad(name: str, value: Any, limit: str, param: str | None = None) -> InvalidParameterError:
    return InvalidParameterError(f"{name} is {value!r}; it must be {limit}", param=param or name)
