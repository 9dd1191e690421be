"""What an engine can be asked for that is not a request: the names of `messages.Call`, and what each does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from trivium.base.errors import RequestError, TriviumError, UnsupportedFeatureError
from trivium.base.log import ROOT
from trivium.cache.pins import PinRefusal
from trivium.engine.adapters import AdapterRecord, EngineAdapters

if TYPE_CHECKING:
    from trivium.engine.loop import EngineLoop
    from trivium.schedule.scheduler import Scheduler

Answer = dict[str, object]
Operation = Callable[..., "Answer | Future[Answer]"]
"""Takes the call's arguments; JSON-like values, at once or promised."""


def operations(loop: EngineLoop, scheduler: Scheduler) -> Mapping[str, Operation]:
    """Return everything that a loop over a scheduler can be asked for, by name."""
    return {
        "stats": loop.stats,
        "check": lambda: {"differences": loop.check()},
        "flush": loop.flush,
        "info": lambda: loop.info,
        "answers": lambda request_ids=None: loop.report(request_ids),
        "cache": scheduler.describe_cache,
        "pin": lambda **what: pin(loop, scheduler, **what),
        "unpin": lambda pin_id: {"unpinned": scheduler.pins.unpin(pin_id)},
        "end_program": lambda **whose: {"ended": scheduler.programs.end(**whose)},
        "reload": lambda **values: reload(scheduler, **values),
        "queued": lambda: {"request_ids": loop.queued_requests()},
        "load_adapter": lambda **what: load_adapter(loop.adapters, **what),
        "unload_adapter": lambda generation: {"unloaded": adapters_of(loop.adapters).unload(generation)},
    }


def pin(
    loop: EngineLoop,
    scheduler: Scheduler,
    *,
    pin_id: str,
    prompt_ids: Sequence[int],
    cache_salt: str,
    ttl_s: float | None = None,
    adapter: str | None = None,
    adapter_generation: int = 0,
) -> Answer:
    """Keep a cached prompt in the cache; says how many tokens of it, or why it is refused."""
    held = loop.find_adapter(adapter, adapter_generation)
    namespace = loop.limits.namespace_of(cache_salt=cache_salt, limit_len=len(prompt_ids), adapter=held)
    made = scheduler.pin(pin_id, np.array(prompt_ids, np.int32), namespace, ttl_s)
    if isinstance(made, PinRefusal):
        return {"refused": made.reason, "is_final": made.is_final}
    return {"tokens": made.holding.locked_len}


def reload(scheduler: Scheduler, *, max_queue: int, log_level: str) -> Answer:
    """Take new values of options that can change while requests run."""
    scheduler.set_max_queue(max_queue)
    logging.getLogger(ROOT).setLevel(log_level.upper())
    return {}


def adapters_of(adapters: EngineAdapters | None) -> EngineAdapters:
    """Return an engine's adapters.

    Raises:
        UnsupportedFeatureError: It can have none.
    """
    if adapters is None:
        raise UnsupportedFeatureError("this executor takes no adapters", param="model")
    return adapters


def load_adapter(adapters: EngineAdapters | None, *, name: str, path: str, generation: int) -> Future[Answer]:
    """Begin to load an adapter; the answer has its record as `adapter`, or says why there is none."""
    promised: Future[Answer] = Future()

    def tell(load: Future[AdapterRecord]) -> None:
        error = load.exception()
        if isinstance(error, TriviumError):
            promised.set_result(refusal_of(error))
        elif error is not None:
            promised.set_exception(error)
        else:
            promised.set_result({"adapter": msgspec.to_builtins(load.result())})

    adapters_of(adapters).submit(name, path, generation).add_done_callback(tell)
    return promised


def refusal_of(error: TriviumError) -> Answer:
    """Write an error so that the asker can raise the same one."""
    return {
        "refused": type(error).__name__,
        "message": str(error),
        "param": error.param if isinstance(error, RequestError) else None,
        "retry_after_s": getattr(error, "retry_after_s", None),
    }


def result_of(answer: Mapping[str, Any]) -> AdapterRecord:
    """Read what `load_adapter` answered.

    Raises:
        TriviumError: The adapter was refused.
    """
    if "refused" in answer:
        from trivium.engine.streams import error_from  # noqa: PLC0415  (streams knows messages, as does the loop)

        raise error_from(answer["refused"], answer["message"], answer["param"], answer["retry_after_s"])
    return msgspec.convert(answer["adapter"], AdapterRecord)
