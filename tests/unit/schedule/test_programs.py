"""Requests of a program: what is kept for it, until when, and who starts first."""

from __future__ import annotations

import pytest

from support.scheduling import Bench, full_spec, make_request
from trivium.config.program_share import ProgramShare
from trivium.schedule.programs import MAX_IDLE
from trivium.schedule.request import Request

PAGES = 12
SYSTEM = list(range(100, 112))


def share(name: str = "p", **fields: object) -> ProgramShare:
    return ProgramShare(program_id=name, **fields)  # type: ignore[arg-type]


def bench_of(num_pages: int = PAGES, **options: object) -> Bench:
    return Bench(full_spec(4), num_pages, max_num_seqs=2, **options)


def ran(bench: Bench, name: str, prompt: list[int], **fields: object) -> Request:
    """Run a request that draws one token to its end."""
    request = make_request(name, prompt, max_tokens=1, **fields)
    bench.scheduler.add(request)
    bench.run()
    return request


def crowd(bench: Bench) -> None:
    """Others need the whole pool, twice, while the program's tool runs."""
    for idx in range(2):
        ran(bench, f"other{idx}", [200 + idx, *range(31)])


def second_turn(bench: Bench, **fields: object) -> int:
    return ran(bench, "turn2", [*SYSTEM, 7, 8], **fields).cached_len


def test_a_program_finds_its_path_again_when_others_came_between() -> None:
    bench = bench_of()
    ran(bench, "turn1", SYSTEM, share=share())
    crowd(bench)
    assert second_turn(bench, share=share()) == len(SYSTEM)


@pytest.mark.parametrize(
    ("fields", "options"),
    [({}, {}), ({"share": share()}, {"program_idle_s": 0.0}), ({"share": share(ends=True)}, {})],
    ids=["no program", "switched off", "its last request"],
)
def test_without_an_open_program_others_take_its_memory(fields: dict[str, object], options: dict[str, object]) -> None:
    bench = bench_of(**options)
    ran(bench, "turn1", SYSTEM, **fields)
    crowd(bench)
    assert second_turn(bench) < len(SYSTEM)


def test_a_program_that_does_not_tell_ends_when_it_was_idle() -> None:
    bench = bench_of(program_idle_s=10.0)
    ran(bench, "turn1", SYSTEM, share=share())
    bench.clock.advance(9.0)
    crowd(bench)
    assert second_turn(bench, share=share()) == len(SYSTEM)
    assert len(bench.scheduler.programs) == 1
    bench.clock.advance(10.0)
    crowd(bench)
    assert len(bench.scheduler.programs) == 0
    assert second_turn(bench) < len(SYSTEM)


def test_a_program_is_not_idle_while_a_request_of_it_is_open() -> None:
    bench = bench_of(program_idle_s=10.0)
    ran(bench, "turn1", SYSTEM, share=share())
    bench.scheduler.add(make_request("turn2", [*SYSTEM, 1], max_tokens=8, share=share()))
    for _ in range(4):
        bench.clock.advance(9.0)
        bench.step()
    assert len(bench.scheduler.programs) == 1


def test_the_end_of_a_program_can_be_told() -> None:
    bench = bench_of()
    ran(bench, "turn1", SYSTEM, share=share(), tenant="ann")
    assert not bench.scheduler.programs.end("p")
    assert bench.scheduler.programs.end("p", "ann")
    assert not bench.scheduler.programs.end("p", "ann")
    crowd(bench)
    assert second_turn(bench) < len(SYSTEM)


def test_programs_of_two_tenants_may_have_one_name() -> None:
    bench = bench_of(num_pages=24)
    for tenant in ("ann", "bob"):
        ran(bench, tenant, [ord(tenant[0]), *SYSTEM], share=share(), tenant=tenant)
    assert bench.scheduler.programs.end("p", "bob")
    assert len(bench.scheduler.programs) == 1


def test_what_runs_on_when_its_program_has_ended_claims_nothing() -> None:
    bench = bench_of()
    request = make_request("turn1", SYSTEM, max_tokens=3, share=share())
    bench.scheduler.add(request)
    bench.step()
    assert bench.scheduler.programs.end("p")
    bench.run()
    crowd(bench)
    assert second_turn(bench) < len(SYSTEM)


def test_an_aborted_request_leaves_its_program_idle() -> None:
    bench = bench_of(program_idle_s=10.0)
    request = make_request("turn1", SYSTEM, max_tokens=8, share=share())
    bench.scheduler.add(request)
    bench.step()
    bench.scheduler.abort(request)
    bench.clock.advance(10.0)
    crowd(bench)
    assert len(bench.scheduler.programs) == 0


def test_the_number_of_idle_programs_is_bounded() -> None:
    bench = bench_of()
    for idx in range(MAX_IDLE + 3):
        request = make_request(f"r{idx}", [1], max_tokens=1, share=share(f"p{idx}"))
        bench.scheduler.add(request)
        bench.scheduler.abort(request)
    assert len(bench.scheduler.programs) == MAX_IDLE
    assert not bench.scheduler.programs.end("p2")
    assert bench.scheduler.programs.end("p3")
    assert bench.scheduler.check() == []


def test_least_remaining_program_work_starts_first() -> None:
    bench = Bench(full_spec(4), 400, max_num_seqs=2, order="program", aging_s=1e6)
    long = make_request("long", [9] * 60, max_tokens=1)
    requests = [
        make_request(name, [idx, *range(length)], max_tokens=1, share=share(name, remaining_tokens=left))
        for idx, (name, length, left) in enumerate([("much", 4, 900), ("little", 20, 40), ("last", 30, 0)])
    ]
    alone = make_request("alone", [80, *range(50)], max_tokens=1)
    bench.scheduler.add(long, *requests, alone)
    names: list[str] = []
    while (scheduled := bench.step()) is not None:
        names += [str(entry.request.request_id) for entry in scheduled.entries if entry.is_fresh]
    assert names == ["last", "alone", "long", "little", "much"]


def test_what_a_program_has_used_stands_for_what_is_left_where_nobody_says() -> None:
    bench = Bench(full_spec(4), 400, max_num_seqs=1, order="program")
    ran(bench, "long1", list(range(80)), share=share("long"))
    ran(bench, "short1", [1, 2, 3], share=share("short"))
    later = [make_request(f"{name}2", [50, 51], max_tokens=1, share=share(name)) for name in ("long", "short")]
    for request in later:
        bench.scheduler.add(request)
    assert [request.program_left for request in later] == [80, 3]
    told = make_request("told", [60], max_tokens=1, share=share("long", remaining_tokens=5))
    bench.scheduler.add(told)
    assert told.program_left == 5
