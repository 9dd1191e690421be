"""Match shapes by name: the same letter must mean the same size everywhere in one op.

::

    shapes = Shapes("gemm")
    shapes.match("x", x, "T K")
    shapes.match("weight", weight, "N K")     # error: gemm: weight has K=64 but x has K=576
    shapes.sizes("T N")                       # ("T", 1536)

A letter binds to a number or to a symbol of the graph; a numeral stands for itself; `...` stands for any leading sizes
and binds as a whole.
"""

from __future__ import annotations

from trivium.base.errors import InternalError, ensure
from trivium.ir.graph import Dim, DType, TensorType

REST = "..."


class Shapes:
    """The sizes bound so far while one op's operands are looked at."""

    def __init__(self, op: str) -> None:
        self._op = op
        self._bound: dict[str, tuple[tuple[Dim, ...], str]] = {}

    def match(self, name: str, found: TensorType, pattern: str, dtype: DType = "f32") -> None:
        """Bind the letters of `pattern` to the sizes of operand `name`.

        Raises:
            InternalError: Wrong element type, wrong number of sizes, or a letter that is bound to another size.
        """
        ensure(found.dtype == dtype, f"{self._op}: {name} is {found}; it must have element type {dtype}")
        letters, dims = pattern.split(), found.shape
        if letters and letters[0] == REST:
            num_rest = len(dims) - (len(letters) - 1)
            ensure(num_rest >= 0, f"{self._op}: {name} is {found}; it must be [{pattern}]")
            self._bind(name, REST, dims[:num_rest])
            letters, dims = letters[1:], dims[num_rest:]
        ensure(len(letters) == len(dims), f"{self._op}: {name} is {found}; it must be [{pattern}]")
        for letter, dim in zip(letters, dims, strict=True):
            self._bind(name, letter, (dim,))

    def _bind(self, name: str, letter: str, dims: tuple[Dim, ...]) -> None:
        expected = ((int(letter),), self._op) if letter.isdigit() else (dims, name)
        known, where = self._bound.setdefault(letter, expected)
        shown, shown_known = (",".join(map(str, dims)), ",".join(map(str, known)))
        ensure(known == dims, f"{self._op}: {name} has {letter}={shown} but {where} has {letter}={shown_known}")

    def sizes(self, pattern: str) -> tuple[Dim, ...]:
        """Return the sizes that the letters of `pattern` are bound to."""
        return tuple(dim for letter in pattern.split() for dim in self._bound[letter][0])

    def number(self, letter: str) -> int:
        """Return the size of `letter`, which must be a number.

        Raises:
            InternalError: The size is a symbol.
        """
        dim = self.sizes(letter)[0]
        if not isinstance(dim, int):
            raise InternalError(f"{self._op}: {letter} must be a number, not the symbol {dim}")
        return dim
