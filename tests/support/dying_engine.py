"""An engine process over the tiny model that ends itself by SIGKILL at moments of its choice.

Run as a program (`dying_engine.py DEATHS FOLDER EPOCH PARENT`, options on standard input), where DEATHS is a JSON list
of objects::

    {"request": "r3", "token": 5}      in every step that would draw the sixth token of choice 0 of r3
    {"request": "r3", "token": 0}      in every step that runs any of its prompt
    {"request": "r3"}                  whenever it is admitted
    {"compiles": "r3"}                 whenever its constraint is compiled, whoever else waits for it
    {"start": [2, 3]}                  in the second and third engine, before it is ready
    {"fatal": [2]}                     in the second engine, with an error that trying again does not mend
    {"mute": 2.5}                      not at all, but every engine is silent for so many seconds before it starts
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trivium.assembly.engine import build_engine
from trivium.assembly.model import Report
from trivium.assembly.process import unpack_options
from trivium.base.errors import ConfigError
from trivium.config.structured import StructuredOutputs
from trivium.engine.admit import Answer
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit
from trivium.engine.process import EngineProcess
from trivium.grammar.matcher import Grammar
from trivium.schedule.decision import Entry


def command(deaths: Sequence[dict[str, Any]]) -> list[str]:
    """The command of an `EngineClient`."""
    return [sys.executable, __file__, json.dumps(list(deaths))]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kills(death: dict[str, Any], entry: Entry) -> bool:
    """Whether running this part of a step is what the engine dies of."""
    request = entry.request
    if death.get("request") != request.request_id or "token" not in death:
        return False
    if death["token"] == 0:
        return entry.start < request.prompt_len
    return bool(entry.draws) and request.output_len == death["token"]


def deadly(loop: EngineLoop, deaths: Sequence[dict[str, Any]]) -> EngineLoop:
    """Make a loop die as said: in the middle of a step, after it was noted."""
    note, submit = loop._note, loop.submit

    def note_and_die(answers: Sequence[Answer], unread: Sequence[Answer]) -> None:
        note(answers, unread)
        scheduled, _ = loop._last_step
        if scheduled is not None and any(kills(death, entry) for death in deaths for entry in scheduled.entries):
            die()

    def admit_or_die(message: Submit) -> None:
        if any(death.get("request") == message.request_id and "token" not in death for death in deaths):
            limits = loop.limits
            object.__setattr__(limits, "rope_variant", lambda _: die())
        submit(message)

    assert loop.compiling is not None
    compiler = loop.compiling.compiler
    compile_now = compiler._compile_now

    def compile_or_die(wanted: StructuredOutputs) -> Grammar:
        askers = compiler._askers[compiler._current or b""]
        if any(death.get("compiles") in askers for death in deaths):
            die()
        return compile_now(wanted)

    compiler._compile_now = compile_or_die  # type: ignore[method-assign]
    loop._note = note_and_die  # type: ignore[method-assign]
    loop.submit = admit_or_die  # type: ignore[method-assign]
    return loop


def main(deaths: Sequence[dict[str, Any]], folder: str, epoch: str, parent: str) -> int:
    options, restored = unpack_options(sys.stdin.buffer.read())
    time.sleep(max((death.get("mute", 0.0) for death in deaths), default=0.0))

    def build(report: Report) -> EngineLoop:
        if any(int(epoch) in death.get("start", ()) for death in deaths):
            die()
        if any(int(epoch) in death.get("fatal", ()) for death in deaths):
            raise ConfigError("there is no memory for it any more")
        return deadly(build_engine(options, report, restored=restored), deaths)

    return EngineProcess(Path(folder), int(epoch), int(parent)).serve(build)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), *sys.argv[2:]))
