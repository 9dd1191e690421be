"""What the text of an answer means: reasoning, content, and tool calls with their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from trivium.config.chat_output import ChatOutput

PartKind = Literal["content", "reasoning", "tool_name", "tool_arguments"]


class OutputPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of an answer; a call begins with its name, which is one piece, and its arguments, joined, are JSON."""

    kind: PartKind
    text: str
    call: int = 0
    """Index of the call among those of the answer."""

    def append_to(self, parts: list[OutputPart]) -> None:
        """Append to parts, joined with the last one where both are pieces of one."""
        last = parts[-1] if parts else None
        if last is not None and (last.kind, last.call) == (self.kind, self.call):
            parts[-1] = OutputPart(self.kind, last.text + self.text, self.call)
        else:
            parts.append(self)


class PartsState(NamedTuple):
    """Where a reader stands; immutable."""


class PartReader:
    """Says of certain text what it means; its state is kept by whoever reads with it."""

    def __init__(self, wanted: ChatOutput) -> None:
        """Read as `wanted` asks for."""
        self.start = PartsState()
        self._wanted = wanted

    def read(self, state: PartsState, text: str) -> tuple[PartsState, list[OutputPart]]:
        """Return the state behind `text`, and the parts that became certain with it."""
        return state, [OutputPart("content", text)] if text else []

    def finish(self, state: PartsState) -> list[OutputPart]:
        """Return the parts that become certain when nothing follows."""
        return []


def join_parts(parts: Iterable[OutputPart]) -> list[OutputPart]:
    """Return the same parts with neighbours joined that are pieces of one."""
    joined: list[OutputPart] = []
    for part in parts:
        part.append_to(joined)
    return joined
