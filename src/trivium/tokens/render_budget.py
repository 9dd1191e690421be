"""`RenderBudget`: how much one rendering of a template may do, counted where templates do things.

A template comes with a model, so it is a stranger's program: it may loop for ever or double a text until memory ends.
Every loop turn, call, operator and filter pays here before or after it runs; who can't pay ends with `OverBudgetError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trivium.base.clock import Clock, SystemClock

MAX_LETTERS = 1 << 24
"""Most letters of any one text, or of everything in a container together (a value counts as 16)."""
MAX_WORK = 1_000_000
"""Most work of one rendering: a loop turn, call, operator or filter is 1, and 64 letters of its result are 1 more."""
MAX_SECONDS = 5.0
"""Longest rendering; looked at after every `_WORK_PER_LOOK`."""

_LETTERS_PER_VALUE = 16
_LETTERS_PER_WORK = 64
_WORK_PER_LOOK = 256
_WIDTH = re.compile(r"[0-9]{5}")


class OverBudgetError(Exception):
    """A template did more than one rendering may do."""


class RenderBudget:
    """What is left to one rendering."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._work_left = MAX_WORK
        self._looks_at = MAX_WORK - _WORK_PER_LOOK
        self._ends_at_s = self._clock.now_s() + MAX_SECONDS

    def pay(self, work: int) -> None:
        """Take `work` off.

        Raises:
            OverBudgetError: Not so much is left, or time is up.
        """
        self._work_left -= work
        if self._work_left < 0:
            raise OverBudgetError(f"it does more than {MAX_WORK} pieces of work (an endless loop?)")
        if self._work_left > self._looks_at:
            return
        self._looks_at = self._work_left - _WORK_PER_LOOK
        if self._clock.now_s() > self._ends_at_s:
            raise OverBudgetError(f"it takes longer than {MAX_SECONDS:g} s")

    def pay_for(self, value: Any) -> Any:
        """Pay for a text or container that was made, and return it.

        Raises:
            OverBudgetError: It is too large, or too much work.
        """
        if isinstance(value, (str, list, tuple, dict)):
            self.pay(1 + self.weigh(value) // _LETTERS_PER_WORK)
        return value

    def turns(self, values: Iterable[Any], letters: int) -> Iterator[Any]:
        """Yield `values`, paying for each turn of a loop whose body writes `letters` letters of its own."""
        cost = 1 + letters // _LETTERS_PER_WORK
        for value in values:
            self.pay(cost)
            yield value

    def foresee(self, letters: int) -> None:
        """Refuse to begin what would make a text or list of so many letters.

        Raises:
            OverBudgetError: They are more than `MAX_LETTERS`.
        """
        if letters > MAX_LETTERS:
            raise OverBudgetError(f"it makes a text of {letters} letters; at most {MAX_LETTERS} are allowed")

    def weigh(self, value: Any) -> int:
        """Count the letters in a value, containers with all they hold, each time they hold it.

        Raises:
            OverBudgetError: They are more than `MAX_LETTERS`.
        """
        letters = 0
        waiting = [value]
        while waiting:
            top = waiting.pop()
            if isinstance(top, str):
                letters += len(top)
            elif isinstance(top, Mapping):
                waiting.extend(top.keys())
                waiting.extend(top.values())
            elif isinstance(top, (list, tuple)):
                waiting.extend(top)
            elif isinstance(top, range):
                letters += len(top) * _LETTERS_PER_VALUE
            letters += 0 if top is value else _LETTERS_PER_VALUE
            self.foresee(letters + len(waiting))
        return letters

    def foresee_product(self, value: Any, arguments: Iterable[Any]) -> None:
        """Refuse an operation that may write its `value` as often as its largest argument is long (or says).

        Padding, indenting, replacing and joining all stay below that product.
        """
        factor = max((_factor(argument) for argument in arguments), default=1)
        self.foresee(max(self.weigh(value), 1) * max(factor, 1))

    def foresee_format(self, template: str, arguments: Iterable[Any]) -> None:
        """Refuse a format whose fields are padded to huge widths, or write a large value many times."""
        if _WIDTH.search(template):
            raise OverBudgetError("it formats with a width of more than 9999")
        values = list(arguments)
        if "*" in template or re.search(r"\{[^{}]*:[^{}]*\{", template):
            self.foresee_product(template, values)
        num_fields = template.count("%") + template.count("{")
        self.foresee(len(template) + num_fields * self.weigh(values))


def _factor(argument: Any) -> int:
    """How often an operation may write its value because of this argument."""
    if isinstance(argument, int):
        return abs(argument)
    if isinstance(argument, str):
        return len(argument)
    if isinstance(argument, Mapping):
        return max(map(_factor, argument.values()), default=1)
    return max(map(_factor, argument), default=1) if isinstance(argument, (list, tuple)) else 1
