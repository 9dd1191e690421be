"""How a load is run: in this process, without a prefix cache, and over HTTP by Trivium and by peers.

Servers are ended after their turns, or stopped (SIGSTOP) where a start takes long; engines in this process are idle.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.peers.engines.engine import Engine
from benchmarks.peers.machine import Meter, process_tree
from benchmarks.peers.models import BenchModel, one_token_words
from benchmarks.peers.points import Point
from benchmarks.peers.prompts import read_ids
from benchmarks.peers.servers import Server, Servers
from benchmarks.peers.workdir import WorkDir
from benchmarks.programs.completions import Completions
from benchmarks.programs.loads import LOADS, Load
from benchmarks.programs.player import Player, count, play
from benchmarks.workloads.shapes import SharedPrefix
from trivium import LLM
from trivium.lang.backends.choice import backend_of

if TYPE_CHECKING:
    from trivium.lang.backends.backend import Backend

IN_PROCESS, NO_SHARING = "in-process", "no-sharing"
_SALT_LEN = 4
_SEATS = 64
_CONTEXT_LEN = 4096
# llama.cpp divides its context among slots; 16 hold what 16 programs ask at a time, and further branches wait.
_SHAPE = SharedPrefix(groups=1, per_group=1, system_len=_CONTEXT_LEN - 256, question_len=1, output_len=255)
POINT = Point(
    name="programs",
    suite="programs",
    way="http",
    concurrency=16,
    num_requests=1,
    prompt_len=_SHAPE.longest_prompt,
    output_len=_SHAPE.longest_output,
    shape=_SHAPE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One load, run in one way."""

    load: str
    way: str
    seconds: float
    counts: Mapping[str, float] = field(default_factory=dict)
    """Of `player.Counts`."""
    tells_cached: bool = True
    num_steps: int | None = None
    """Forward passes, where the engine is in this process."""
    others_cpu_share: float = 0.0
    error: str | None = None


class Way(Protocol):
    """One engine."""

    name: str
    takes_constraints: bool
    tells_cached: bool

    def begin(self) -> Backend:
        """Return what programs run on."""

    def num_steps(self) -> int | None:
        """Return how many forward passes there have been, where that is known."""

    def processor_s(self) -> float:
        """Return the processor seconds that it has used outside of this process."""

    def end(self) -> None:
        """Make way for another one."""

    def close(self) -> None:
        """Give everything back."""


class InProcess:
    """`LLM`, with its prefix cache or without."""

    takes_constraints = tells_cached = True

    def __init__(self, model: BenchModel, threads: int, *, is_sharing: bool) -> None:
        self.name = IN_PROCESS if is_sharing else NO_SHARING
        self._llm = LLM(
            str(model.gguf), offline=True, threads=threads, max_num_seqs=_SEATS, prefix_cache=is_sharing
        )  # fmt: skip

    def begin(self) -> Backend:
        """Return the model's backend, with an empty cache."""
        self._llm.shared_loop.call("flush")
        return backend_of(self._llm)

    def num_steps(self) -> int:
        """Return the engine's count."""
        return int(self._llm.shared_loop.call("stats")["steps_total"])  # type: ignore[call-overload]

    def processor_s(self) -> float:
        """It runs in this process."""
        return 0.0

    def end(self) -> None:
        """It is idle by itself."""

    def close(self) -> None:
        """Close the model."""
        self._llm.close()


class Served:
    """An engine's server."""

    def __init__(self, engine: Engine, variant: str, model: BenchModel, work: WorkDir, servers: Servers) -> None:
        self.name = engine.name if engine.name != "trivium" else "over-http"
        self.takes_constraints = engine.name in {"trivium", "vllm"}
        self.tells_cached = engine.name != "openvino"
        self._engine, self._variant, self._model, self._work, self._servers = engine, variant, model, work, servers
        self._frontend = _frontend(model)
        self._words = read_ids(one_token_words(work, model))
        self._server: Server | None = None
        self._backend: Completions | None = None

    def begin(self) -> Backend:
        """Start the server, or let it go on."""
        log = self._work.log(f"{self._engine.name}-server")
        make = lambda port: self._engine.server(self._model, self._variant, POINT, port)  # noqa: E731
        self._server, _ = self._servers.take(self.name, make, log)
        self._backend = Completions(
            self._server.url, self._frontend, self._words[:1], takes_constraints=self.takes_constraints
        )
        return self._backend

    def num_steps(self) -> None:
        """Servers do not tell."""

    def processor_s(self) -> float:
        """Return what the server's processes have used."""
        return 0.0 if self._server is None else self._server.processor_s()

    def end(self) -> None:
        """End it, or stop it where it is."""
        if self._backend is not None:
            self._backend.close()
        if self._server is not None:
            self._servers.give_back(self.name, self._server, keep=self._engine.keeps_server)
        self._backend = self._server = None

    def close(self) -> None:
        """`Servers` ends it."""


def run(name: str, way: Way, words: Sequence[int], seed: int, *, is_small: bool = False) -> Result:
    """Run a load once, with texts and first tokens of this seed; a failure is a result too."""
    load: Load = LOADS[name]
    if load.is_constrained and not way.takes_constraints:
        return Result(load=name, way=way.name, seconds=0.0, error="constraints are not offered")
    runs = load.runs(seed, is_small=is_small)
    salt = random.Random(seed).choices(words, k=_SALT_LEN)  # noqa: S311  (prompts, not secrets)
    with ExitStack() as stack:
        stack.callback(way.end)
        backend = way.begin()
        _warm_up(backend, words, seed)
        player = Player(backend, salt)
        steps, used_s, meter = way.num_steps(), way.processor_s(), Meter().start()
        own_s = _own_s()
        try:
            _, seconds = play(runs, player, load.programs)
        except Exception as error:
            return Result(load=name, way=way.name, seconds=0.0, error=f"{error} {error.__cause__ or ''}")
        shares = meter.stop(_own_s() - own_s + way.processor_s() - used_s)
        now = way.num_steps()
        return Result(
            load=name,
            way=way.name,
            seconds=seconds,
            counts=asdict(count(player.events)),
            tells_cached=way.tells_cached,
            num_steps=None if now is None or steps is None else now - steps,
            others_cpu_share=shares.others,
        )


def _warm_up(backend: Backend, words: Sequence[int], seed: int) -> None:
    """Answer a few prompts that no load has, so that pools are filled and pages are mapped."""
    import trivium.lang as sgl  # noqa: PLC0415  (start-up time)

    @sgl.function
    def warm(s: Any, idx: int) -> None:
        s += f"{seed} {idx} warm up" + sgl.gen(max_tokens=8)

    warm.run_batch([(idx,) for idx in range(4)], backend=Player(backend), temperature=0.0)


def _own_s() -> float:
    return process_tree(os.getpid())[os.getpid()].processor_s


def _frontend(model: BenchModel) -> Any:
    from trivium.assembly import load_frontend  # noqa: PLC0415  (reads a model)
    from trivium.config.resolve import options_from  # noqa: PLC0415

    return load_frontend(options_from({"model": str(model.gguf), "offline": True}))
