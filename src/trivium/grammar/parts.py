"""What a piece of an answer is: reasoning, content, the name of a tool that is called, or of its arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

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


def join_parts(parts: Iterable[OutputPart]) -> list[OutputPart]:
    """Return the same parts with neighbours joined that are pieces of one."""
    joined: list[OutputPart] = []
    for part in parts:
        part.append_to(joined)
    return joined
