"""Decisions that a program can hold: `if_`, `while_` and `match` of a state, and the questions that they ask.

Python's own `if` and `while` decide while the author's function runs. These decide the same way when the function is
run, and are recorded when it is traced::

    s += gen("sure", choices=["yes", "no"])
    s.if_(s["sure"] == "yes", lambda s: s.append("Good."), lambda s: s.append("Why?" + gen("why")))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InvalidParameterError, ProgramError
from trivium.lang.abstract import Abstract, value_of
from trivium.lang.expressions import author_line
from trivium.program.nodes import AT_LIMIT
from trivium.program.values import Operation

if TYPE_CHECKING:
    from trivium.lang.state import ProgramState

Do = Callable[["ProgramState"], Any]
"""Appends to the state; what it returns is not used."""
MAX_STEPS = 100


class Flow:
    """The decisions of a state."""

    _strand: Any

    def if_(self, condition: Any, then: Do, otherwise: Do | None = None) -> None:
        """Do one of two things.

        Args:
            condition: A value, or a function of the state that returns one.
            then: Done if it is true.
            otherwise: Done if it is not.
        """
        asked = _asked(condition, self)
        if isinstance(asked, Abstract):
            self._strand.trace_if(self, asked, then, otherwise)
        elif asked:
            then(self)  # type: ignore[arg-type]
        elif otherwise is not None:
            otherwise(self)  # type: ignore[arg-type]

    def while_(self, condition: Do, body: Do, *, max_steps: int = MAX_STEPS, at_limit: str = AT_LIMIT[0]) -> None:
        """Do something as long as a condition holds.

        Args:
            condition: A function of the state, asked before every step.
            body: Done in every step.
            max_steps: Most steps.
            at_limit: `fail` makes one step too many an error; `go_on` ends the loop.

        Raises:
            InvalidParameterError: An argument has a bad value.
            ProgramError: The condition still holds after `max_steps` steps.
        """
        if not is_count(max_steps):
            raise InvalidParameterError(
                f"max_steps is {max_steps!r}; it must be a whole number above 0", param="max_steps"
            )
        if at_limit not in AT_LIMIT:
            raise InvalidParameterError(
                f"at_limit is {at_limit!r}; it must be {' or '.join(AT_LIMIT)}", param="at_limit"
            )
        if self._strand.is_tracing:
            self._strand.trace_while(self, condition, body, max_steps, at_limit)
            return
        for _ in range(max_steps):
            if not condition(self):  # type: ignore[arg-type]
                return
            body(self)  # type: ignore[arg-type]
        if at_limit == "fail" and condition(self):  # type: ignore[arg-type]
            line = author_line()
            raise ProgramError(
                f"{line}: the while has taken {max_steps} steps, its limit, and its condition still holds", line=line
            )

    def match(self, subject: Any, cases: Mapping[Any, Do], otherwise: Do | None = None) -> None:
        """Do what belongs to a value.

        Args:
            subject: A value, or a function of the state that returns one.
            cases: Values, or tuples of them, to what is done if the subject is one of them.
            otherwise: Done if it is none of them.
        """
        asked = _asked(subject, self)
        rows = [(key if isinstance(key, tuple) else (key,), do) for key, do in cases.items()]
        if isinstance(asked, Abstract):
            self._strand.trace_match(self, asked, rows, otherwise)
            return
        found = next((do for values, do in rows if asked in values), otherwise)
        if found is not None:
            found(self)  # type: ignore[arg-type]


def not_(condition: Any) -> Any:
    """Return whether a condition does not hold; `not` itself cannot be traced."""
    return Abstract(Operation("not", (condition.value,))) if isinstance(condition, Abstract) else not condition


def contains(whole: Any, part: Any) -> Any:
    """Return whether a text or a list contains something; `in` itself cannot be traced."""
    if isinstance(whole, Abstract) or isinstance(part, Abstract):
        return Abstract(Operation("contains", (value_of(whole), value_of(part))))
    return part in whole


def is_count(value: object) -> bool:
    """Say whether a value is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _asked(given: Any, state: Any) -> Any:
    return given(state) if callable(given) and not isinstance(given, Abstract) else given
