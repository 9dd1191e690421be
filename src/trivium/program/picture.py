"""Programs as a picture: a flow chart in Mermaid's notation, which notebooks, GitHub and most wikis draw.

::

    box        what the model or a tool does          rounded   texts and variables
    diamond    a condition                            dotted    a branch of a fork, and its join
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count

from trivium.program.nodes import Body, Fork, Gen, If, Join, Match, Node, Program, Role, Scope, Select, Tool, While
from trivium.program.printer import node_line, value_text

MAX_LABEL_LEN = 60
Ends = list[tuple[str, str]]
"""Where the next node is reached from: a node's id, and what stands at the edge."""


def to_mermaid(program: Program) -> str:
    """Draw a program, ending in a newline."""
    picture = _Picture()
    ends = picture.body(program.body, [(picture.node("([", program.name, "])"), "")])
    picture.reach(
        picture.node("([", "end" if program.result is None else f"return {value_text(program.result)}", "])"), ends
    )
    return "\n".join(["flowchart TD", *picture.lines]) + "\n"


class _Picture:
    """Lines of the chart, as they come."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._ids = count()
        self._forks: dict[str, Ends] = {}
        """Where the branches of each fork end."""

    def node(self, begin: str, label: str, end: str) -> str:
        name = f"n{next(self._ids)}"
        short = label if len(label) <= MAX_LABEL_LEN else f"{label[: MAX_LABEL_LEN - 3]}..."
        self.lines.append(f'    {name}{begin}"{_escaped(short)}"{end}')
        return name

    def reach(self, name: str, ends: Iterable[tuple[str, str]], line: str = "-->") -> None:
        for origin, label in ends:
            self.lines.append(f"    {origin} {line}{f'|{_escaped(label)}|' if label else ''} {name}")

    def body(self, body: Body, ends: Ends) -> Ends:
        for node in body:
            ends = self._one(node, ends)
        return ends

    def _one(self, node: Node, ends: Ends) -> Ends:  # noqa: PLR0911  (one return per shape)
        match node:
            case Role() | Scope():
                name = self._step(node, "([", "])", ends)
                return self.body(node.body, [(name, "")])
            case If():
                name = self._step(node, "{", "}", ends)
                return self.body(node.then, [(name, "yes")]) + self.body(node.otherwise, [(name, "no")])
            case While():
                name = self._step(node, "{", "}", ends)
                self.reach(name, self.body(node.body, [(name, "yes")]))
                return [(name, "no")]
            case Match():
                name = self._step(node, "{", "}", ends)
                ways = [self.body(case.body, [(name, ", ".join(map(value_text, case.values)))]) for case in node.cases]
                return [*chain(*ways), *self.body(node.otherwise, [(name, "else")])]
            case Fork():
                name = self._step(node, "{{", "}}", ends)
                starts = [[(name, f"branch {idx}")] for idx in range(len(node.branches))]
                self._forks[node.name] = list(chain(*map(self.body, node.branches, starts)))
                return [(name, "")]
            case Join():
                name = self._step(node, "{{", "}}", ends)
                self.reach(name, self._forks.pop(node.fork, []), "-.->")
                return [(name, "")]
            case Gen() | Select() | Tool():
                return [(self._step(node, "[", "]", ends), "")]
        return [(self._step(node, "(", ")", ends), "")]

    def _step(self, node: Node, begin: str, end: str, ends: Ends) -> str:
        name = self.node(begin, node_line(node), end)
        self.reach(name, ends)
        return name


def _escaped(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in " _.,:;=@$!?*/" else f"#{ord(letter)};" for letter in text)
