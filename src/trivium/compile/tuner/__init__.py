"""Choosing tactics by timing them: what there is to choose, how it is timed, how long, and what is remembered."""

from __future__ import annotations

from trivium.compile.tuner.cache import Timing, TuningCache
from trivium.compile.tuner.search import BUDGETS, TuneLevel, Tuning, tune
from trivium.compile.tuner.space import Case, Site, with_tactics

__all__ = ["BUDGETS", "Case", "Site", "Timing", "TuneLevel", "Tuning", "TuningCache", "tune", "with_tactics"]
