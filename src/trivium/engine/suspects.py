"""Who may run after an engine has died: decisions only, no process, no clock, no message.

The requests of the step in which an engine died are suspects. They are tried in groups, each until it has come beyond
the point where the engine died::

    died in step {a b c d}      groups  [a b] [c d]
    [a b] on trial, dies in {a b}       [a] [b] [c d]
    [a] alone, comes beyond             [b] [c d]          a runs on
    [b] on trial beside a, dies in {a b}    [b] [c d]      a is cleared only if b dies alone
    [b] alone, dies twice               [c d]              b is condemned
    [c d] come beyond                                      everybody runs

A group of one that is tried first in a new engine is alone in it: only a death in a step that held nothing else counts
against a request, and two of them condemn it. Requests that were in the middle of an answer and no suspects run beside
a larger group; those that have not begun wait until every suspect runs, so that they do not take its seat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

MOST_DEATHS_ALONE = 2
"""Deaths in a step of its own, at the same token, that condemn a request."""
MOST_FUTILE = 3
"""Engines in a row that may die without a token and outside of any step."""
MOST_TOKENLESS = 24
"""Engines in a row that may die without a token in whatever step; more than that is not the fault of requests."""


@dataclass(frozen=True, slots=True)
class Death:
    """What the death of an engine means."""

    condemned: str | None
    """The request that is to end with an error."""
    is_hopeless: bool
    """Whether all open requests are to end, since the engine dies whatever it runs."""
    num_futile: int
    """Engines in a row, this one included, from whose death nothing could be learnt; 0 when something could."""


class Suspects:
    """Decides whom the next engine gets, and when.

    Invariants:
        A request is in at most one group; a request on trial is in none.
        While nobody is suspected, everybody may run.
    """

    def __init__(self) -> None:
        self._groups: deque[list[str]] = deque()
        """To be tried, in this order."""
        self._on_trial: set[str] = set()
        self._is_alone = False
        """Whether the one on trial is all that the engine may run."""
        self._bystanders: list[str] = []
        """What else was in the step with a single suspect: to be tried after it, and cleared if it is condemned."""
        self._sent: set[str] = set()
        self._deaths_alone: dict[str, int] = {}
        self._num_futile = 0
        self._num_tokenless = 0

    @property
    def is_settled(self) -> bool:
        """Whether nobody is suspected."""
        return not self._on_trial and not self._groups

    @property
    def on_trial(self) -> Collection[str]:
        """Requests of the running group that have not come beyond the point yet."""
        return self._on_trial

    def died(self, in_step: Collection[str], open_ids: Sequence[str], *, has_progressed: bool) -> Death:
        """Take note of a death, and suspect again.

        Args:
            in_step: The requests of the step in which the engine died; none when it died outside of any.
            open_ids: Requests that have not ended, in order of arrival.
            has_progressed: Whether the engine had delivered a token.
        """
        self._keep_only(open_ids)
        self._sent.clear()
        step = [request_id for request_id in open_ids if request_id in in_step]
        condemned = self._blame(step, open_ids, was_alone=len(in_step) == 1)
        self._on_trial.clear()
        if has_progressed:
            self._num_futile = self._num_tokenless = 0
        else:
            self._num_tokenless += 1
            self._num_futile = 0 if step else self._num_futile + 1
        is_hopeless = self._num_futile > MOST_FUTILE or self._num_tokenless > MOST_TOKENLESS
        return Death(condemned, is_hopeless, self._num_futile)

    def due(self, open_ids: Sequence[str], begun: Collection[str]) -> list[str]:
        """Return whom to send to the running engine now, in this order; they count as sent.

        Args:
            open_ids: Requests that have not ended, in order of arrival.
            begun: Those of which a token has been delivered.
        """
        self._keep_only(open_ids)
        if not self._on_trial:
            self._try_next()
        found = [request_id for request_id in open_ids if self._may_run(request_id, begun)]
        found.sort(key=lambda request_id: request_id not in self._on_trial)
        self._sent.update(found)
        return found

    def came_beyond(self, request_ids: Iterable[str]) -> None:
        """Take note that requests on trial have come beyond the point where the last engine died, or have ended."""
        for request_id in request_ids:
            self._on_trial.discard(request_id)
            self._deaths_alone.pop(request_id, None)
            self._bystanders = []

    def forget_all(self) -> None:
        """Begin anew: every open request has ended."""
        self._keep_only(())
        self._num_futile = self._num_tokenless = 0

    def _blame(self, step: list[str], open_ids: Sequence[str], *, was_alone: bool) -> str | None:
        """Put the suspects of a death in front of all groups; returns whom it condemns.

        Args:
            step: The open requests of the step.
            open_ids: Requests that have not ended, in order of arrival.
            was_alone: Whether the step held one request only, open or not: who has left may have been it.
        """
        tried = [request_id for request_id in open_ids if request_id in self._on_trial]
        suspects = [request_id for request_id in step if request_id in self._on_trial] or step
        self._put_first([request_id for request_id in tried if request_id not in suspects])
        if len(suspects) != 1:
            self._put_first(*_halves(suspects))
            return None
        (suspect,) = suspects
        if not was_alone:
            self._bystanders = [request_id for request_id in step if request_id != suspect]
            self._put_first(suspects, *_halves(self._bystanders))
            return None
        deaths = self._deaths_alone[suspect] = self._deaths_alone.get(suspect, 0) + 1
        if deaths < MOST_DEATHS_ALONE:
            self._put_first(suspects)
            return None
        self._take_out((suspect, *self._bystanders))
        self._bystanders = []
        return suspect

    def _put_first(self, *groups: list[str]) -> None:
        self._take_out([request_id for group in groups for request_id in group])
        self._groups.extendleft(group for group in reversed(groups) if group)

    def _take_out(self, request_ids: Collection[str]) -> None:
        kept = ([each for each in group if each not in request_ids] for group in self._groups)
        self._groups = deque(group for group in kept if group)

    def _try_next(self) -> None:
        self._is_alone = False
        if self._groups:
            group = self._groups.popleft()
            self._on_trial = set(group)
            self._is_alone = len(group) == 1 and not self._sent

    def _may_run(self, request_id: str, begun: Collection[str]) -> bool:
        if request_id in self._sent:
            return False
        if self.is_settled or request_id in self._on_trial:
            return True
        is_suspect = any(request_id in group for group in self._groups)
        return not self._is_alone and not is_suspect and request_id in begun

    def _keep_only(self, open_ids: Iterable[str]) -> None:
        """Forget whatever has ended."""
        known = set(open_ids)
        self._on_trial &= known
        self._sent &= known
        self._take_out({each for group in self._groups for each in group} - known)
        self._deaths_alone = {each: count for each, count in self._deaths_alone.items() if each in known}


def _halves(suspects: list[str]) -> tuple[list[str], list[str]]:
    middle = (len(suspects) + 1) // 2
    return suspects[:middle], suspects[middle:]
