"""What it brings that the engine knows programs: agents whose tools take a while, beside other traffic.

    python benchmarks/pausing_programs.py [MODEL] [ROUNDS]

*Paths kept.* Six agents take eight turns each: an answer of 32 tokens, then a tool that runs for 2 to 8 seconds and
returns 120 tokens. Meanwhile two requests of 600 tokens, each of its own, are always open. KV memory holds the agents'
paths and little more. Off is `--program-idle-s 0`.

*Order.* Sixteen programs of one to eight turns without pauses begin together on four seats, and say what they have
left. `srf` sees requests alone, `program` what is left of their programs. Time is counted in steps of the engine,
so that it is the same on every machine.

The modes take turns, round by round. Prints medians.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from trivium.assembly import build_engine
from trivium.config.program_share import ProgramShare
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit

KV_TOKEN_BYTES = 23040
NUM_AGENTS, NUM_TURNS, TASK_LEN, ANSWER_LEN, RESULT_LEN = 6, 8, 500, 32, 120
PAUSE_S = (2.0, 8.0)
NUM_OTHERS, OTHER_LEN = 2, 600
KV_TOKENS = 11_500


@dataclass
class Agent:
    """A program: what it has read and written, and when it goes on."""

    name: str
    chance: random.Random
    turns_left: int
    pause_s: tuple[float, float]
    tokens: list[int]
    wakes_s: float = 0.0
    ended_s: float | None = None
    num_steps: int = 0
    """Steps of the engine until it ended."""
    is_open: bool = False
    cached: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)

    def submit(self, loop: EngineLoop) -> None:
        """Ask for the next answer."""
        self.turns_left -= 1
        self.is_open = True
        self.prompts.append(len(self.tokens))
        share = ProgramShare(
            program_id=self.name,
            remaining_tokens=self.turns_left * (RESULT_LEN + ANSWER_LEN),
            ends=self.turns_left == 0,
        )
        loop.submit(
            Submit(
                request_id=f"{self.name}-{self.turns_left}",
                prompt_ids=self.tokens,
                params=SamplingParams(temperature=0.0, max_tokens=ANSWER_LEN, ignore_eos=True),
                program=share,
            )
        )

    def hear(self, news: Any, now_s: float) -> None:
        """Take a delta of the answer; behind the last the tool runs."""
        if news.token_ids and news.first_token == 0:
            self.cached.append(news.cached_len)
        self.tokens = [*self.tokens, *news.token_ids]
        if news.finish_reason is None:
            return
        self.is_open = False
        self.tokens = [*self.tokens, *drawn(self.chance, RESULT_LEN)]
        self.wakes_s = now_s + self.chance.uniform(*self.pause_s)
        if not self.turns_left:
            self.ended_s = now_s


def drawn(chance: random.Random, count: int) -> list[int]:
    """Return tokens that nobody else has."""
    return [chance.randrange(100, 40_000) for _ in range(count)]


def engine(model: str, kv_tokens: int, **options: Any) -> EngineLoop:
    """Load a model with KV memory for so many tokens."""
    return build_engine(options_from({"model": model, "kv_cache_memory": str(kv_tokens * KV_TOKEN_BYTES), **options}))


def run(loop: EngineLoop, agents: list[Agent], chance: random.Random, num_others: int) -> tuple[float, int]:
    """Run all agents to their ends beside others; returns seconds, and how many others were answered."""
    began_s = time.perf_counter()
    by_id = {agent.name: agent for agent in agents}
    num_open = num_asked = num_answered = 0
    while any(agent.ended_s is None for agent in agents):
        now_s = time.perf_counter()
        for agent in agents:
            if not agent.is_open and agent.ended_s is None and now_s >= agent.wakes_s:
                agent.submit(loop)
        while num_open < num_others:
            params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
            loop.submit(Submit(request_id=f"other{num_asked}", prompt_ids=drawn(chance, OTHER_LEN), params=params))
            num_open, num_asked = num_open + 1, num_asked + 1
        if not loop.has_work:
            time.sleep(0.001)
            continue
        for agent in agents:
            agent.num_steps += agent.ended_s is None
        for news in loop.step():
            agent = by_id.get(news.request_id.rpartition("-")[0])
            if agent is not None:
                agent.hear(news, time.perf_counter())
            elif news.finish_reason is not None:
                num_open, num_answered = num_open - 1, num_answered + 1
    seconds = time.perf_counter() - began_s
    loop.close()
    return seconds, num_answered


def with_pauses(model: str, idle_s: float, seed: int) -> tuple[float, ...]:
    """Return hit rate, prompt tokens computed, seconds, and answers to others per second."""
    agents = []
    for idx in range(NUM_AGENTS):
        chance = random.Random(f"{seed}{idx}")  # noqa: S311
        agents.append(Agent(f"agent{idx}", chance, NUM_TURNS, PAUSE_S, drawn(chance, TASK_LEN)))
    loop = engine(model, KV_TOKENS, program_idle_s=idle_s)
    seconds, num_others = run(loop, agents, random.Random(seed), NUM_OTHERS)  # noqa: S311
    known = sum(sum(agent.prompts[:-1]) + (NUM_TURNS - 1) * (ANSWER_LEN - 1) for agent in agents)
    cached, asked = (sum(sum(part) for part in parts) for parts in zip(*((a.cached, a.prompts) for a in agents)))  # noqa: B905
    return cached / known, asked - cached, seconds, num_others / seconds


def without_pauses(model: str, order: str, seed: int) -> tuple[float, ...]:
    """Return the mean and the longest time from a program's first request to its end, in steps of the engine."""
    chance = random.Random(seed)  # noqa: S311
    lengths = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 6, 8]
    chance.shuffle(lengths)
    agents = [
        Agent(f"agent{idx}", chance, turns, (0.0, 0.0), drawn(chance, TASK_LEN)) for idx, turns in enumerate(lengths)
    ]
    loop = engine(model, 60_000, order=order, max_num_seqs=4)
    run(loop, agents, chance, 0)
    took = [agent.num_steps for agent in agents]
    return statistics.mean(took), max(took)


def main() -> None:
    """Measure and print."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3  # noqa: PLR2004
    kept: dict[str, list[tuple[float, ...]]] = {"off": [], "on": []}
    ordered: dict[str, list[tuple[float, ...]]] = {"srf": [], "program": []}
    for number in range(rounds):
        for mode in sorted(kept, reverse=number % 2 == 1):
            kept[mode].append(with_pauses(model, 300.0 if mode == "on" else 0.0, number))
        for order in sorted(ordered, reverse=number % 2 == 1):
            ordered[order].append(without_pauses(model, order, number))
    print(f"{NUM_AGENTS} agents of {NUM_TURNS} turns, {NUM_OTHERS} others open, KV memory for {KV_TOKENS} tokens")
    for mode, results in kept.items():
        hits, computed, seconds, others = (statistics.median(column) for column in zip(*results, strict=True))
        print(f"paths kept {mode:<4} hit rate {hits:6.1%} of what was known   {computed:6.0f} prompt tokens computed   "
              f"{seconds:5.1f} s   {others:4.2f} others/s")  # fmt: skip
    for order, results in ordered.items():
        mean, longest = (statistics.median(column) for column in zip(*results, strict=True))
        print(f"order {order:<8} a program took {mean:5.0f} steps on average, {longest:5.0f} at most")


if __name__ == "__main__":
    main()
