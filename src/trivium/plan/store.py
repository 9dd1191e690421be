"""The automatic cache of plans: found again by their keys, built once even by two processes, and never in the way.

Layout::

    <cache>/plans/<first digits of the key>/plan.json
    <cache>/locks/plan-<first digits of the key>.lock     held while a plan is built, or removed

A cache that cannot be written costs a compile at every start, and one warning; it stops nothing.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trivium.base.errors import ModelError, PlanError, PlanMismatchError
from trivium.plan.format import Origin, StoredPlan, plan_file, read_key, read_plan, write_plan
from trivium.plan.key import PlanKey, differences, listed
from trivium.plan.machine import Machine
from trivium.plan.program import Plan
from trivium.weights.filelock import locked

logger = logging.getLogger(__name__)

_NEIGHBOURS = 16
_DAY_S = 86400.0
_NAME = re.compile(r"[0-9a-f]{16}")

_warned: set[Path] = set()
"""Caches whose trouble was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlan:
    """A plan, and how it was come by."""

    stored: StoredPlan
    directory: Path | None
    """Where it is kept; `None` when it could not be written."""
    build_seconds: float
    """How long compiling took; 0 when it was found."""

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.stored.plan

    @property
    def was_built(self) -> bool:
        """Whether it was compiled just now."""
        return self.build_seconds > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPlan:
    """An entry of the cache."""

    name: str
    directory: Path
    num_bytes: int
    age_days: float
    """Since it was last used."""
    stored: StoredPlan | None
    """`None` when its file cannot be used."""
    problem: str = ""

    def is_foreign(self, machine: Machine, compiler: str) -> str | None:
        """Return why this machine and this version of the passes will not use it again, or nothing."""
        if self.stored is None:
            return "unusable"
        if self.stored.key["kernels"] != machine.kernels:
            return "other kernels"
        if self.stored.key["compiler"] != compiler:
            return "other compiler"
        if self.stored.origin.processor != machine.processor or self.stored.key["isa"] != machine.isa:
            return "other processor"
        return None


def open_named_plan(directory: Path, asked: PlanKey) -> StoredPlan:
    """Read a plan that somebody named, which therefore must fit.

    Raises:
        PlanError: It cannot be read.
        PlanMismatchError: It is for something else; the message lists in what the two differ.
    """
    stored = read_plan(directory)
    if stored.key.digest != asked.digest:
        found = listed(differences(stored.key, asked))
        raise PlanMismatchError(
            f"the plan {directory} was compiled for {found}. Compile it again with the options of this command: "
            f"trivium compile {stored.origin.model} -o {directory}"
        )
    return stored


class PlanCache:
    """The plans of one cache directory."""

    def __init__(self, cache_directory: Path) -> None:
        """Look into `cache_directory`, which need not exist."""
        self._root = cache_directory

    def directory(self, key: PlanKey) -> Path:
        """Return where the plan of a key is kept."""
        return self._root / "plans" / key.name

    def load(self, key: PlanKey) -> StoredPlan | None:
        """Return the plan of a key, or nothing; a file that cannot be used is told in one line."""
        directory = self.directory(key)
        if not plan_file(directory).exists():
            return None
        try:
            stored = read_plan(directory)
        except PlanError as error:
            logger.warning("compiling anew: %s", error)
            return None
        if stored.key.digest != key.digest:
            logger.info("compiling anew: %s was for %s", directory, listed(differences(stored.key, key)))
            return None
        with suppress(OSError):  # for `prune`; a cache that cannot be written has nothing pruned either
            os.utime(plan_file(directory))
        return stored

    def load_or_build(self, key: PlanKey, origin: Origin, build: Callable[[], Plan]) -> HeldPlan:
        """Return the plan of a key, compiled and kept if need be.

        When two processes ask at once, one builds and the other waits for it.

        Args:
            key: What the plan must fit.
            origin: Said of a plan that is built.
            build: Compiles it.
        """
        directory = self.directory(key)
        found = self.load(key)
        if found is not None:
            return HeldPlan(stored=found, directory=directory, build_seconds=0.0)
        with self._locked(key):
            found = self.load(key)  # by the process that was waited for
            if found is not None:
                return HeldPlan(stored=found, directory=directory, build_seconds=0.0)
            self._say_why(key, origin)
            began_s = time.perf_counter()
            stored = StoredPlan(plan=build(), key=key, origin=origin)
            seconds = max(time.perf_counter() - began_s, 1e-9)
            return HeldPlan(stored=stored, directory=self.keep(stored), build_seconds=seconds)

    def keep(self, stored: StoredPlan) -> Path | None:
        """Write a plan; where that is impossible, warn once and go on.

        Returns:
            Its directory, or nothing when it could not be written.
        """
        directory = self.directory(stored.key)
        try:
            write_plan(stored, directory)
        except PlanError as error:
            self._warn_once(f"{error}; the plan is used from memory, and compiled again at the next start")
            return None
        return directory

    def entries(self) -> list[CachedPlan]:
        """List what is in the cache, the most recently used first."""
        entries = [_entry(path) for path in self._directories()]
        return sorted(entries, key=lambda entry: (entry.age_days, entry.name))

    def find(self, name: str) -> CachedPlan:
        """Return the entry whose name begins with these digits.

        Raises:
            PlanError: There is none, or more than one.
        """
        matches = [entry for entry in self.entries() if entry.name.startswith(name)]
        if len(matches) == 1 and name:
            return matches[0]
        known = ", ".join(entry.name for entry in (matches or self.entries())) or "none"
        problem = "more than one plan begins" if matches else "no plan begins"
        raise PlanError(f"{problem} with {name!r} in {self._root / 'plans'}, which holds: {known}")

    def remove(self, entry: CachedPlan) -> int:
        """Remove a plan and what unfinished writing left beside it.

        Returns:
            Bytes freed.

        Raises:
            PlanError: Another process is building it, or the cache cannot be written.
        """
        lock = self._lock(entry.name)
        try:
            with locked(lock, timeout_s=0):
                for path in (*entry.directory.glob("plan.json*"), entry.directory):
                    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        except ModelError as error:
            raise PlanError(f"plan {entry.name} is being built; try again later (lock {lock})") from error
        except OSError as error:
            raise PlanError(f"plan {entry.name} cannot be removed: {error}") from error
        return entry.num_bytes

    def _directories(self) -> list[Path]:
        root = self._root / "plans"
        found = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.is_dir() else []
        return [path for path in found if path.is_dir()]

    def _lock(self, name: str) -> Path:
        return self._root / "locks" / f"plan-{name}.lock"

    @contextmanager
    def _locked(self, key: PlanKey) -> Iterator[None]:
        """Hold the plan's lock; where no lock can be made, go on without."""

        def say() -> None:
            logger.info("another process is compiling this plan; waiting for it")

        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._lock(key.name), on_wait=say))
            except OSError as error:
                self._warn_once(f"the cache {self._root} cannot be written: {error.strerror or error}")
            yield

    def _warn_once(self, message: str) -> None:
        if self._root not in _warned:
            _warned.add(self._root)
            logger.warning(
                "%s. Set cache_dir or TRIVIUM_CACHE_DIR to a directory that can be written and has room", message
            )

    def _say_why(self, key: PlanKey, origin: Origin) -> None:
        """Log one line: what is compiled, and in what the nearest plan that is here differs."""
        newest = sorted(self._directories(), key=_last_use_s, reverse=True)[:_NEIGHBOURS]
        others = [found for directory in newest if (found := read_key(directory)) is not None]
        apart = [differences(other, key) for other in others if other["architecture"] == key["architecture"]]
        nearest = min(apart, key=len, default=())
        why = f"; the nearest one in the cache was for {listed(nearest)}" if nearest else ""
        logger.info("compiling a plan for %s%s", origin.name, why)


def _last_use_s(directory: Path) -> float:
    """Return the moment when a plan was last used; that of its directory where there is none."""
    for path in (plan_file(directory), directory):
        with suppress(OSError):
            return path.stat().st_mtime
    return time.time()  # removed while we look


def _entry(directory: Path) -> CachedPlan:
    stored, problem = None, ""
    try:
        stored = read_plan(directory)
    except PlanError as error:
        problem = str(error)
    try:
        sizes = [path.stat().st_size for path in directory.iterdir() if path.is_file()]
    except OSError:  # removed while we look
        sizes = []
    return CachedPlan(
        name=directory.name,
        directory=directory,
        num_bytes=sum(sizes),
        age_days=max(0.0, time.time() - _last_use_s(directory)) / _DAY_S,
        stored=stored,
        problem=problem,
    )
