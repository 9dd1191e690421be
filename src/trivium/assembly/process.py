"""The engine process: how it is started, and what it runs.

Run as a program (`python -m trivium.assembly FOLDER EPOCH PARENT`, options on standard input) it is the engine process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivium.assembly.engine import build_engine
from trivium.assembly.model import Report
from trivium.config.options import EngineOptions
from trivium.engine.adapters import AdapterRecord

if TYPE_CHECKING:
    from trivium.engine.client import EngineClient


def engine_client(
    options: EngineOptions, *, heartbeat_timeout_s: float = 10.0, report: Report | None = None
) -> EngineClient:
    """Make the client of an engine process for these options; it starts with `start`.

    The model must have been found before (`find_model`): the engine process looks for it on this machine only.
    """
    from trivium.engine.client import EngineClient  # noqa: PLC0415  (start-up time)

    options = replace(options, model=replace(options.model, offline=True))
    return EngineClient(
        [sys.executable, "-m", "trivium.assembly"],
        pack_options(options),
        seed=options.schedule.seed,
        max_held=options.schedule.max_queue,
        payload_again=lambda info, adapters: pack_options(_like_the_first(options, info), adapters),
        heartbeat_timeout_s=heartbeat_timeout_s,
        on_progress=report,
    )


def _like_the_first(options: EngineOptions, info: Mapping[str, object]) -> EngineOptions:
    """Options of an engine started again: KV memory is what the first found, whatever is free now."""
    return replace(options, cache=replace(options.cache, kv_cache_memory=f"{info['kv_bytes']}B"))


class _Payload(msgspec.Struct):
    options: EngineOptions
    adapters: list[AdapterRecord] | None


def pack_options(options: EngineOptions, adapters: Sequence[AdapterRecord] | None = None) -> bytes:
    """Write options, and the adapters of the engine before if there was one, as JSON for the engine process."""
    return msgspec.json.encode(_Payload(options, None if adapters is None else list(adapters)), enc_hook=str)


def unpack_options(payload: bytes) -> tuple[EngineOptions, list[AdapterRecord] | None]:
    """Read what `pack_options` wrote."""

    def decode(kind: type, value: object) -> object:
        return kind(value)

    read = msgspec.json.decode(payload, type=_Payload, dec_hook=decode)
    return read.options, read.adapters


def main(argv: list[str]) -> int:
    """Be the engine process; returns the exit code."""
    from trivium.base import log  # noqa: PLC0415  (start-up time)
    from trivium.engine.process import EngineProcess  # noqa: PLC0415

    folder, epoch, parent_pid = Path(argv[0]), int(argv[1]), int(argv[2])
    options, restored = unpack_options(sys.stdin.buffer.read())
    log.set_up(level=options.log.log_level, form=options.log.log_format)
    with suppress(KeyboardInterrupt):
        return EngineProcess(folder, epoch, parent_pid).serve(
            lambda report: build_engine(options, report, restored=restored)
        )
    return 0
