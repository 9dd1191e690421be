"""Change a graph node by node: who makes a value, who uses it, and nodes that take the place of others.

Passes look for a pattern and replace it by one node that defines the same values, so that users need not be told.
A node is known by the first value that it defines.

::

    editor = GraphEditor(graph)
    for node in editor.nodes("scale"):
        if node.attributes["factor"] == 1.0:
            editor.redirect(node.outputs[0].name, operand(node, "x"))
    return editor.build()
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from trivium.base.errors import InternalError, ensure
from trivium.ir.graph import Attribute, Graph, Node, TensorType, Value
from trivium.ir.ops import OPS
from trivium.ir.printer import node_text


def operands(node: Node) -> dict[str, str | None]:
    """Return the node's operands by name; `None` for those that are absent."""
    return dict(zip(OPS[node.op].input_names, node.inputs, strict=True))


def operand(node: Node, name: str) -> str:
    """Return the value that an operand is.

    Raises:
        InternalError: It is absent.
    """
    found = operands(node)[name]
    if found is None:
        raise InternalError(f"{name} is missing in: {node_text(node)}")
    return found


def result(node: Node) -> str:
    """Return the name of the node's only output.

    Raises:
        InternalError: It has several.
    """
    ensure(len(node.outputs) == 1, f"several outputs in: {node_text(node)}")
    return node.outputs[0].name


class GraphEditor:
    """A graph that can be changed; nodes keep an order in which they can run.

    Invariants:
        Every node's operands are defined before it, if the changes that were asked for keep it so; `build` does not
        check it, `ir.verify` does.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._outputs = dict(graph.outputs)
        self._slots: list[list[Node]] = []
        """Nodes by place; a replacement of several nodes shares the place of one."""
        self._place: dict[str, int] = {}
        self._makers: dict[str, Node] = {}
        self._users: dict[str, dict[str, Node]] = {}
        """Value to the nodes that use it, by their own first value, in no particular order."""
        self._types = {value.name: value.type for value in (*graph.inputs, *graph.params)}
        self._params = {value.name for value in graph.params}
        self._fresh = (f"%new{number}" for number in itertools.count())
        for place, node in enumerate(graph.nodes):
            self._slots.append([node])
            self._enter(node, place)

    def nodes(self, *ops: str) -> Iterator[Node]:
        """Yield the nodes that have one of these ops (or all), in order, as they are when their turn comes.

        The graph may be changed between two nodes: a node that is gone by then is not yielded, new ones in places that
        are still to come are.
        """
        for place in range(len(self._slots)):
            for node in tuple(self._slots[place]):
                is_there = self._makers.get(node.outputs[0].name) is node
                if is_there and (not ops or node.op in ops):
                    yield node

    def maker(self, value: str | None, *ops: str) -> Node | None:
        """Return the node that defines `value` if it has one of these ops (or any); inputs and parameters have none."""
        node = self._makers.get(value or "")
        return node if node is not None and (not ops or node.op in ops) else None

    def users(self, value: str) -> list[Node]:
        """Return the nodes that use `value`, in order."""
        return sorted(self._users.get(value, {}).values(), key=self._order)

    def only_user(self, value: str, *ops: str) -> Node | None:
        """Return the one node that uses `value`, once, if it has one of these ops (or any).

        `None` where there are none or several, or where the value is an output of the graph.
        """
        users = self._users.get(value, {})
        if len(users) != 1 or self.is_output(value):
            return None
        (node,) = users.values()
        is_once = node.inputs.count(value) == 1
        return node if is_once and (not ops or node.op in ops) else None

    def only_for(self, value: str, user: Node) -> Node | None:
        """Return the node that defines `value` if nobody but `user` has any use for it, or for its other outputs."""
        maker = self._makers.get(value)
        if maker is None or len(maker.outputs) != 1:
            return None
        only = self.only_user(value)
        return maker if only is not None and only.outputs == user.outputs else None

    def in_order(self, nodes: Iterable[Node]) -> list[Node]:
        """Return nodes in the order in which they run."""
        return sorted(nodes, key=self._order)

    def first_of(self, nodes: Iterable[Node]) -> Node:
        """Return the node that runs first."""
        return min(nodes, key=self._order)

    def is_output(self, value: str) -> bool:
        """Whether the graph gives `value` to its caller."""
        return value in self._outputs.values()

    def is_param(self, value: str) -> bool:
        """Whether `value` is a parameter."""
        return value in self._params

    def type_of(self, value: str) -> TensorType:
        """Return the type of a value."""
        return self._types[value]

    def is_before(self, value: str, node: Node) -> bool:
        """Whether `value` is defined before `node` runs."""
        maker = self._makers.get(value)
        return maker is None or self._order(maker) < self._order(node)

    def fresh(self) -> str:
        """Return a name that no value has."""
        return next(name for name in self._fresh if name not in self._types)

    def node(
        self, op: str, inputs: Mapping[str, str | None], attributes: Mapping[str, Attribute], outputs: Sequence[str]
    ) -> Node:
        """Make a node, which is not part of the graph yet.

        Args:
            op: Name of the op.
            inputs: Operand to value; what is left out is absent.
            attributes: All of them.
            outputs: Names for the values that it defines.

        Raises:
            InternalError: Operands or attributes do not fit the op.
        """
        schema = OPS[op]
        unknown = set(inputs) - set(schema.input_names)
        ensure(not unknown, f"{op} has no operand {', '.join(sorted(unknown))}")
        names = tuple(inputs.get(name) for name in schema.input_names)
        types = {
            name: None if value is None else self._types[value]
            for name, value in zip(schema.input_names, names, strict=True)
        }
        inferred = schema.infer(types, attributes)
        values = tuple(Value(name, each) for name, each in zip(outputs, inferred, strict=True))
        return Node(op, names, dict(attributes), values)

    def replace(self, olds: Sequence[Node], new: Node, *, at: Node) -> None:
        """Put one node where `at` stands, which is one of `olds`, and take these out.

        What `olds` defined and `new` does not must have no users left.
        """
        place, index = self._order(at)
        for old in olds:
            self._leave(old)
        self._slots[place][index] = new
        self._clean([old for old in olds if old is not at])
        self._enter(new, place)

    def insert_before(self, node: Node, new: Node) -> None:
        """Put a node right before another."""
        self._insert(node, new, 0)

    def insert_after(self, node: Node, new: Node) -> None:
        """Put a node right after another."""
        self._insert(node, new, 1)

    def insert_first(self, new: Node) -> None:
        """Put a node before all others."""
        self._slots[0].insert(0, new)
        self._enter(new, 0)

    def remove(self, node: Node) -> None:
        """Take out a node whose values have no users."""
        self._leave(node)
        self._clean([node])

    def redirect(self, old: str, new: str) -> None:
        """Let all users of `old`, the graph's outputs included, use `new`."""
        for node in self.users(old):
            inputs = tuple(new if name == old else name for name in node.inputs)
            self.replace([node], replace(node, inputs=inputs), at=node)
        self._outputs = {name: new if value == old else value for name, value in self._outputs.items()}

    def build(self) -> Graph:
        """Return the changed graph."""
        nodes = tuple(itertools.chain.from_iterable(self._slots))
        return Graph(self._graph.name, self._graph.inputs, self._graph.params, nodes, dict(self._outputs))

    def _order(self, node: Node) -> tuple[int, int]:
        place = self._place[node.outputs[0].name]
        slot = self._slots[place]
        first = node.outputs[0].name
        return place, 0 if len(slot) == 1 else next(i for i, each in enumerate(slot) if each.outputs[0].name == first)

    def _insert(self, node: Node, new: Node, offset: int) -> None:
        place = self._place[node.outputs[0].name]
        self._slots[place].insert(self._order(node)[1] + offset, new)
        self._enter(new, place)

    def _enter(self, node: Node, place: int) -> None:
        key = node.outputs[0].name
        for value in node.outputs:
            self._makers[value.name] = node
            self._place[value.name] = place
            self._types[value.name] = value.type
        for name in node.inputs:
            if name is not None:
                self._users.setdefault(name, {})[key] = node

    def _leave(self, node: Node) -> None:
        key = node.outputs[0].name
        for value in node.outputs:
            if self._makers.get(value.name) is node:
                del self._makers[value.name]
        for name in node.inputs:
            if name is not None:
                self._users.get(name, {}).pop(key, None)

    def _clean(self, nodes: Sequence[Node]) -> None:
        """Take nodes out of their places."""
        for node in nodes:
            place = self._place[node.outputs[0].name]
            self._slots[place] = [each for each in self._slots[place] if each is not node]
