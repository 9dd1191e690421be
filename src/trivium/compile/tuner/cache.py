"""What was timed, remembered in one file: by machine, then by case.

::

    <cache>/tuning.json
    {
     "format": "trivium tuning", "version": 1,
     "machines": {
      "<digest>": {
       "machine": {"processor": …, "isa": …, "threads": …, "kernels": …, "compiler": …},
       "limits": {…},                                   what the machine can do at most
       "products": {"<case>": {"best": "direct", "seconds": {"auto": …, "direct": …}}, …}
      }, …
     }
    }

A timing holds for the processor, the level, the number of threads and the kernels that it was taken with, and for
nothing else; entries of other machines stay in the file and are not read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from trivium.base.errors import ModelError
from trivium.base.files import write_atomically
from trivium.compile.tuner.space import Case
from trivium.plan.cost import MachineLimits
from trivium.plan.machine import Machine
from trivium.plan.tactic import KERNELS
from trivium.weights.filelock import locked

logger = logging.getLogger(__name__)

_FORMAT, _VERSION = "trivium tuning", 1
_LOCK_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What was found of one case."""

    best: str
    """Kernel; `auto` where no other was clearly faster than what rules choose."""
    seconds: Mapping[str, float]
    """Median of one run, by kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MachineEntry:
    """Everything that is known of one machine."""

    machine: Machine
    limits: MachineLimits | None = None
    products: Mapping[str, Timing]


class TuningCache:
    """The timings of one cache directory, as one machine sees them."""

    def __init__(self, cache_directory: Path, machine: Machine) -> None:
        """Look into `cache_directory`, which need not exist, with the eyes of `machine`."""
        self.path = cache_directory / "tuning.json"
        self._lock = cache_directory / "locks" / "tuning.lock"
        self._machine = machine

    def timings(self) -> dict[str, Timing]:
        """Return this machine's timings by the text of their case."""
        entry = self._own(self._read())
        return {} if entry is None else dict(entry.products)

    def limits(self) -> MachineLimits | None:
        """Return what this machine can do, if it was measured."""
        entry = self._own(self._read())
        return None if entry is None else entry.limits

    def best(self, cases: Mapping[str, Case]) -> dict[Case, str]:
        """Return the fastest kernel of every case that was timed here.

        Args:
            cases: Text of a case to the case.
        """
        found = self.timings()
        return {case: found[text].best for text, case in cases.items() if text in found}

    def keep(self, timings: Mapping[Case, Timing]) -> bool:
        """Add timings; what another process has added meanwhile stays.

        Returns:
            Whether they were written; a cache that cannot be written is one warning.
        """
        own = {str(case): asdict(timing) for case, timing in timings.items()}
        return self._change(lambda entry: entry["products"].update(own))

    def keep_limits(self, limits: MachineLimits) -> bool:
        """Remember what this machine can do; returns as `keep`."""
        return self._change(lambda entry: entry.update(limits=asdict(limits)))

    def num_others(self) -> int:
        """Return how many entries there are of other machines and kernels."""
        return sum(name != self._machine.digest for name in self._read())

    def forget_others(self) -> int:
        """Remove the entries of other machines and kernels; returns how many they were."""
        others = self.num_others()
        return others if others and self._change(lambda _: None, keep_others=False) else 0

    def _own(self, machines: Mapping[str, Any]) -> _MachineEntry | None:
        found = machines.get(self._machine.digest)
        if found is None:
            return None
        try:
            entry = msgspec.convert(found, _MachineEntry)
        except msgspec.ValidationError as error:
            logger.warning("timings in %s are not used: %s", self.path, error)
            return None
        known = {case: timing for case, timing in entry.products.items() if timing.best in KERNELS}
        is_ours = entry.machine == self._machine
        return _MachineEntry(machine=entry.machine, limits=entry.limits, products=known) if is_ours else None

    def _read(self) -> dict[str, Any]:
        try:
            document = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("timings in %s are not used: %s", self.path, error)
            return {}
        is_ours = isinstance(document, dict) and (document.get("format"), document.get("version")) == (
            _FORMAT,
            _VERSION,
        )
        machines = document.get("machines") if is_ours else None
        return machines if isinstance(machines, dict) else {}

    def _change(self, change: Callable[[dict[str, Any]], object], *, keep_others: bool = True) -> bool:
        try:
            with locked(self._lock, timeout_s=_LOCK_S):
                machines = self._read()
                if self._own(machines) is None:
                    machines[self._machine.digest] = {"machine": asdict(self._machine), "products": {}}
                change(machines[self._machine.digest])
                if not keep_others:
                    machines = {self._machine.digest: machines[self._machine.digest]}
                document = {"format": _FORMAT, "version": _VERSION, "machines": machines}
                write_atomically(self.path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
        except (OSError, ModelError) as error:
            logger.warning("timings are not kept: %s cannot be written: %s", self.path, error)
            return False
        return True
