"""Grammars are compiled once, in another thread, and no more of them are kept than there is room for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from support.grammars import vocabulary
from trivium.base.errors import CapacityError, InvalidParameterError
from trivium.config.structured import StructuredOutputs
from trivium.grammar import compiler as compiler_module
from trivium.grammar.compiler import GrammarCompiler, key_of
from trivium.grammar.matcher import Grammar


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    own = GrammarCompiler(vocabulary)
    yield own
    own.close()


def regex(text: str) -> StructuredOutputs:
    return StructuredOutputs(regex=text)


class SlowVocabulary:
    """Compiles when it is told to, in a thread that is not the caller's."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.has_begun = threading.Event()
        self.threads: set[str] = set()

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        self.threads.add(threading.current_thread().name)
        self.has_begun.set()
        assert self.may_go.wait(10)
        return vocabulary().compile(wanted)


def test_equal_constraints_are_compiled_once(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    first = compiler.submit(StructuredOutputs(json=schema))
    again = compiler.submit(StructuredOutputs(json=dict(schema)))
    other = compiler.submit(StructuredOutputs(json=schema, any_whitespace=True))
    assert first is again
    assert first.result() is not other.result()
    stats = compiler.stats
    assert (stats.compiled_total, stats.cached_total, stats.failed_total, stats.num_kept) == (2, 1, 0, 2)
    assert stats.compile_seconds_total > 0


def test_a_constraint_that_fails_is_told_why_each_time(compiler: GrammarCompiler) -> None:
    for _ in range(2):
        with pytest.raises(InvalidParameterError, match=r"(?s)regex cannot be enforced: .*unclosed group"):
            compiler.submit(regex("(a")).result()
    assert (compiler.stats.failed_total, compiler.stats.cached_total) == (1, 1)  # found out once
    assert compiler.stats.kept_bytes == 0


def test_what_broke_is_tried_again() -> None:
    class Breaking:
        def compile(self, wanted: StructuredOutputs) -> Grammar:
            raise MemoryError

    own = GrammarCompiler(Breaking)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(MemoryError):
            own.submit(regex("a")).result()
    assert own.stats.failed_total == 2
    own.close()


def test_grammars_make_room_where_they_take_too_much_together() -> None:
    own = GrammarCompiler(vocabulary, max_kept_bytes=1_000_000)
    first, second = own.submit(regex("a+")), own.submit(regex("b+"))
    assert first.result().num_bytes + second.result().num_bytes == own.stats.kept_bytes < 1_000_000
    assert own.submit(regex("a+")) is first
    second.result().note_mask(0.1)  # an answer made it grow, and it was used longest ago
    assert own.submit(regex("c+")).result()
    assert own.submit(regex("a+")) is first
    assert own.submit(regex("b+")) is not second
    assert own.stats.num_evicted_total == 1
    assert own.stats.num_kept == 3
    own.close()


def test_a_grammar_that_can_take_no_more_answers_is_compiled_again(compiler: GrammarCompiler) -> None:
    first = compiler.submit(regex("a+"))
    assert first.result().anew() is not None
    again = compiler.submit(regex("a+"))
    assert again is not first
    assert again.result().start()
    assert compiler.submit(regex("a+")) is again
    assert (compiler.stats.compiled_total, compiler.stats.num_evicted_total) == (2, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"json": {"not": {}}}, "#/not: the keyword 'not' is not supported"),
        ({"json": {"$ref": "https://example.org/s.json"}}, "Default retriever does not fetch"),
        ({"json": {"$ref": "#/$defs/missing"}}, "cannot be enforced"),
        ({"grammar": "start: missing"}, "unknown name"),
        ({"grammar": 'root ::= "a" ['}, "no GBNF"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_the_reason(
    compiler: GrammarCompiler, fields: dict[str, Any], reason: str
) -> None:
    wanted = StructuredOutputs(**fields)
    wanted.validate()
    with pytest.raises(InvalidParameterError, match=reason) as caught:
        compiler.submit(wanted).result()
    assert caught.value.param == wanted.kind


def test_the_caller_never_waits_and_the_least_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_KEPT", 3)
    slow = SlowVocabulary()
    own = GrammarCompiler(lambda: slow)  # type: ignore[arg-type,return-value]
    promises: list[Future[Grammar]] = [own.submit(regex(text)) for text in ("a", "b", "c")]
    assert not any(each.done() for each in promises)
    slow.may_go.set()
    assert all(each.result() for each in promises)
    assert slow.threads == {"trivium-grammar_0"}
    own.submit(regex("a")).result()
    own.submit(regex("d")).result()  # b was used longest ago
    assert [own.submit(regex(text)) is promise for text, promise in zip("ac", promises[::2], strict=True)] == [True] * 2
    assert own.submit(regex("b")) is not promises[1]
    own.close()


def test_too_many_that_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_WAITING", 2)
    monkeypatch.setattr(compiler_module, "MAX_KEPT", 1)
    slow = SlowVocabulary()
    own = GrammarCompiler(lambda: slow)  # type: ignore[arg-type,return-value]
    waiting = [own.submit(regex(text)) for text in ("a", "b")]
    with pytest.raises(CapacityError, match="2 constraints wait to be compiled, of at most 2"):
        own.submit(regex("c"))
    slow.may_go.set()
    assert all(each.result() for each in waiting)
    assert own.submit(regex("c")).result()
    own.close()


def test_what_nobody_waits_for_any_more_is_not_compiled() -> None:
    slow = SlowVocabulary()
    own = GrammarCompiler(lambda: slow)  # type: ignore[arg-type,return-value]
    begun = own.submit(regex("a"), "r0")
    assert slow.has_begun.wait(10)
    left, shared = own.submit(regex("b"), "r1"), own.submit(regex("c"), "r2")
    assert own.submit(regex("c"), "r3") is shared
    for asker in ("r0", "r1", "r2", "r4"):
        own.leave(asker)
    assert left.cancelled()
    slow.may_go.set()
    assert begun.result()
    assert shared.result()
    assert own.submit(regex("b"), "r5").result()
    own.leave("r5")
    assert own.stats.compiled_total == 3
    own.close()


def test_who_waits_for_what_is_being_compiled_is_told(compiler: GrammarCompiler) -> None:
    slow, told = SlowVocabulary(), []
    own = GrammarCompiler(lambda: slow)  # type: ignore[arg-type,return-value]
    own.note = told.append
    first = own.submit(regex("a"), "r0")
    assert slow.has_begun.wait(10)
    own.submit(regex("b"), "r1")
    own.submit(regex("a"), "r2")
    own.submit(regex("a"))
    own.leave("r0")
    slow.may_go.set()
    assert first.result()
    own.submit(regex("b"), "r3").result()
    own.close()
    assert told[:4] == [["r0"], ["r0", "r2"], ["r0", "r2"], ["r2"]]
    assert told[4] == told[-1] == []
    assert "r1" in told[5]


def test_any_thread_may_ask(monkeypatch: pytest.MonkeyPatch, compiler: GrammarCompiler) -> None:
    """Callers of an `LLM` check their requests in threads of their own, while the loop has others compiled."""
    monkeypatch.setattr(compiler_module, "MAX_KEPT", 4)
    wanted = [regex(f"a{{{count}}}") for count in range(1, 13)]
    results: list[Grammar] = []

    def ask(offset: int) -> None:
        results.extend(compiler.submit(wanted[(idx * 5 + offset) % len(wanted)]).result() for idx in range(60))

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6 * 60
    stats = compiler.stats
    assert stats.compiled_total + stats.cached_total == len(results)


def test_keys_tell_constraints_apart() -> None:
    distinct = [regex("a"), regex("b"), StructuredOutputs(grammar="a"), StructuredOutputs(choice=("a",))]
    distinct += [
        StructuredOutputs(json={"a": 1}),
        StructuredOutputs(json='{"a":1}'),
        StructuredOutputs(json_object=True),
        StructuredOutputs(json={"enum": ["\ud800"]}),
        StructuredOutputs(json={"enum": ["\udfff"]}),
    ]
    assert len({key_of(each) for each in distinct}) == len(distinct)


def test_a_long_chain_of_rules_does_not_overflow_a_stack(compiler: GrammarCompiler) -> None:
    num_links = 3000
    rules = "".join(f"r{link}: r{link + 1}\n" for link in range(num_links))
    refs = {f"a{link}": {"$ref": f"#/$defs/a{link + 1}"} for link in range(num_links)} | {f"a{num_links}": {}}
    nested = {f"a{link}": {"properties": {"x": {"$ref": f"#/$defs/a{link + 1}"}}} for link in range(num_links)} | {
        f"a{num_links}": {}
    }
    for wanted in (
        StructuredOutputs(grammar=f'start: r0\n{rules}r{num_links}: "a"'),
        StructuredOutputs(json={"$defs": refs, "$ref": "#/$defs/a0"}),
        StructuredOutputs(json={"$defs": nested, "$ref": "#/$defs/a0"}),
    ):
        assert compiler.submit(wanted).result(100).start()


def test_grammars_that_take_long_to_translate_are_refused(compiler: GrammarCompiler) -> None:
    rules = "".join(f"r{link} ::= r{link + 1}\n" for link in range(1001))
    with pytest.raises(InvalidParameterError, match="grammar has 1002 rules; at most 1000 in GBNF"):
        compiler.submit(StructuredOutputs(grammar=f"{rules}root ::= r0")).result(10)
