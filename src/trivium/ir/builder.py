"""Write a graph by calling ops in order.

A model definition is a function over one `Builder`:

::

    b = Builder("LlamaForCausalLM")
    tokens, rows = b.input("token_ids"), b.input("logit_rows")
    x = b.embed(tokens, b.param("embed_tokens.weight", (49152, 576)))
    x = b.rms_norm(x, b.param("norm.weight", (576,)), eps=1e-5)
    b.output("logits", b.gemm(b.gather_rows(x, rows), b.param("embed_tokens.weight", (49152, 576))))
    graph = b.build()

The builder infers every type as it goes, so a shape that does not fit is an error at the line that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping

from trivium.base.errors import ensure
from trivium.config.model import Activation, RopeConfig
from trivium.ir.graph import Attribute, Dim, Graph, Node, TensorType, Value
from trivium.ir.ops import OPS
from trivium.ir.verify import verify

STEP_INPUTS: Mapping[str, TensorType] = {
    "token_ids": TensorType("i32", ("T",)),
    "positions": TensorType("i32", ("T",)),
    "reach": TensorType("i32", ("T",)),
    "logit_rows": TensorType("i32", ("R",)),
}
"""What a step offers to every graph; `reach` is each token's request's longest possible length."""


class Builder:
    """Collects the nodes of one graph; each op method appends a node and returns its output.

    Every op method raises `InternalError` when operands or attributes do not fit the op.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: dict[str, Value] = {}
        self._params: dict[str, Value] = {}
        self._nodes: list[Node] = []
        self._outputs: dict[str, str] = {}
        self._num_values = 0

    def input(self, name: str, shape: tuple[Dim, ...] | None = None) -> Value:
        """Declare an input, or return it when it is declared already.

        Args:
            name: One of `STEP_INPUTS`, or `embeds`, for which the shape ("T", M) must be given (float32).
            shape: Sizes of `embeds`.

        Raises:
            InternalError: A step has no such input.
        """
        if name not in self._inputs:
            ensure(name in STEP_INPUTS or name == "embeds", f"{self._name}: a step has no input {name!r}")
            ensure(name != "embeds" or shape is not None, f"{self._name}: input embeds needs its shape")
            self._inputs[name] = Value(name, STEP_INPUTS.get(name, TensorType("f32", shape or ())))
        return self._inputs[name]

    def param(self, name: str, shape: tuple[int, ...]) -> Value:
        """Declare a float32 parameter by its canonical name, or return it when declared (tied weights).

        Raises:
            InternalError: The name is declared with another shape.
        """
        value = self._params.setdefault(name, Value(name, TensorType("f32", shape)))
        ensure(value.type.shape == shape, f"{self._name}: parameter {name} is {value.type}, not {shape}")
        return value

    def output(self, name: str, value: Value) -> None:
        """Declare `value` an output of the graph."""
        ensure(name not in self._outputs, f"{self._name}: output {name} is declared twice")
        self._outputs[name] = value.name

    def build(self) -> Graph:
        """Return the verified graph.

        Raises:
            InternalError: The graph is not legal; the message names the node.
        """
        inputs, params = tuple(self._inputs.values()), tuple(self._params.values())
        graph = Graph(self._name, inputs, params, tuple(self._nodes), dict(self._outputs))
        verify(graph)
        return graph

    def embed(self, token_ids: Value, weight: Value, *, embeds: Value | None = None, scale: float = 1.0) -> Value:
        """[T], [V, M] -> [T, M]: look up rows and scale them; rows of `embeds` [T, M] win where not NaN."""
        return self._append("embed", (token_ids, weight, embeds), scale=scale)

    def rms_norm(self, x: Value, weight: Value, *, eps: float) -> Value:
        """[..., N], [N] -> [..., N]: normalise the last axis, of tokens [T, M] or of heads [T, H, D]."""
        return self._append("rms_norm", (x, weight), eps=eps)

    def gemm(self, x: Value, weight: Value, *, bias: Value | None = None, delta: Value | None = None) -> Value:
        """[T, K], [N, K] -> [T, N]: x @ weight.T, plus `bias` [N], plus an adapter's `delta` [T, N]."""
        return self._append("gemm", (x, weight, bias, delta))

    def split(self, x: Value, sizes: tuple[int, ...]) -> tuple[Value, ...]:
        """[..., N] -> one value per size: consecutive pieces of the last axis."""
        return self._append_many("split", (x,), {"sizes": sizes})

    def reshape(self, x: Value, shape: tuple[Dim, ...]) -> Value:
        """Give the same elements another shape, e.g. ("T", H * D) -> ("T", H, D)."""
        return self._append("reshape", (x,), shape=shape)

    def rope_table(self, positions: Value, reach: Value, *, rope: RopeConfig) -> Value:
        """[T], [T] -> [T, 2, rotary_dim / 2]: cos and sin per token, attention factor applied."""
        return self._append("rope_table", (positions, reach), rope=rope)

    def rope(self, x: Value, table: Value) -> Value:
        """[T, H, D] -> [T, H, D]: rotate each head's leading elements."""
        return self._append("rope", (x, table))

    def kv_write(self, k: Value, v: Value, *, layer: int) -> Value:
        """[T, G, D] twice -> kv token: store the step's K and V of `layer`; `attention` takes the token."""
        return self._append("kv_write", (k, v), layer=layer)

    def attention(
        self, q: Value, kv: Value, *, layer: int, scale: float, window: int | None = None, softcap: float | None = None
    ) -> Value:
        """[T, H, D] -> [T, H, D]: causal attention of each token over its request's KV of `layer`.

        H is a multiple of the KV heads G; query head h reads KV head h // (H / G). A token sees itself and
        `window` - 1 positions before it, or all.
        """
        return self._append("attention", (q, kv), layer=layer, scale=scale, window=window, softcap=softcap)

    def gated(self, gate: Value, up: Value, *, activation: Activation) -> Value:
        """[...] twice -> [...]: activation(gate) * up."""
        return self._append("gated", (gate, up), activation=activation)

    def add(self, a: Value, b: Value) -> Value:
        """[...] twice -> [...]: a + b."""
        return self._append("add", (a, b))

    def mul(self, a: Value, b: Value) -> Value:
        """[...] twice -> [...]: a * b."""
        return self._append("mul", (a, b))

    def scale(self, x: Value, factor: float) -> Value:
        """[...] -> [...]: x * factor."""
        return self._append("scale", (x,), factor=factor)

    def softcap(self, x: Value, cap: float) -> Value:
        """[...] -> [...]: cap * tanh(x / cap)."""
        return self._append("softcap", (x,), cap=cap)

    def gather_rows(self, x: Value, rows: Value) -> Value:
        """[T, M], [R] -> [R, M]: the wanted rows."""
        return self._append("gather_rows", (x, rows))

    def _append(self, op: str, inputs: tuple[Value | None, ...], **attributes: Attribute) -> Value:
        (output,) = self._append_many(op, inputs, attributes)
        return output

    def _append_many(
        self, op: str, inputs: tuple[Value | None, ...], attributes: Mapping[str, Attribute]
    ) -> tuple[Value, ...]:
        schema = OPS[op]
        types = (None if value is None else value.type for value in inputs)
        operands = dict(zip(schema.input_names, types, strict=True))
        outputs = []
        for output_type in schema.infer(operands, attributes):
            outputs.append(Value(f"%{self._num_values}", output_type))
            self._num_values += 1
        names = tuple(None if value is None else value.name for value in inputs)
        self._nodes.append(Node(op, names, dict(attributes), tuple(outputs)))
        return tuple(outputs)
