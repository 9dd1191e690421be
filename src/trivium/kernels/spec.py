"""Shapes checked by name at the border of a kernel: the same letter must have the same size everywhere.

A mismatch is a bug of ours, so it raises `InternalError`; the message names the op, the letter, and both arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trivium.base.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Shapes:
    """Binds shape letters to sizes, array after array.

    Example:
        >>> Shapes("gemm").match("a", np.zeros((2, 3), np.float32), "M K")["K"]
        3
    """

    def __init__(self, op: str) -> None:
        """Start a check.

        Args:
            op: Name of the kernel, for messages.
        """
        self._op = op
        self._sizes: dict[str, tuple[int, str]] = {}

    def match(self, name: str, array: NDArray[np.float32], pattern: str) -> Shapes:
        """Check one float32 array against space-separated letters.

        Args:
            name: The argument's name, for messages.
            array: The array.
            pattern: One letter per axis, as in "B M K".

        Raises:
            InternalError: The array is not float32, has another number of axes, or a letter has two sizes.
        """
        letters = pattern.split()
        # Conditions first: writing the messages would cost more than a small product.
        if array.dtype != np.float32:
            raise InternalError(f"{self._op}: {name} is {array.dtype}, not float32")
        if array.ndim != len(letters):
            raise InternalError(f"{self._op}: {name} has shape {array.shape}, not [{', '.join(letters)}]")
        for letter, size in zip(letters, array.shape, strict=True):
            known, owner = self._sizes.setdefault(letter, (size, name))
            if known != size:
                raise InternalError(f"{self._op}: {name} has {letter}={size} but {owner} has {letter}={known}")
        return self

    def __getitem__(self, letter: str) -> int:
        return self._sizes[letter][0]
