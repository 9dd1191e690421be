"""Programs are the same as data, as text and as JSON, and no input breaks what reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.programs import programs
from trivium.base.errors import InvalidParameterError
from trivium.program.codec import from_document, from_json, to_document, to_json
from trivium.program.foresight import constraints, most_work, static_prefix, together, tools
from trivium.program.nodes import NODES, WORD_OF, Program, walk
from trivium.program.parser import parse
from trivium.program.picture import to_mermaid
from trivium.program.printer import to_text
from trivium.program.verify import verify

SEEN: set[str] = set()
LAW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def same(found: Any, expected: Any) -> bool:
    """Equality that tells 1 from 1.0 and from True."""
    return found == expected and repr(found) == repr(expected)


@given(programs())
@LAW
def test_a_program_comes_back_from_text_and_json(program: Program) -> None:
    verify(program)
    assert same(parse(to_text(program)), program)
    assert same(from_json(to_json(program)), program)
    SEEN.update(WORD_OF[type(node)] for _, node in walk(program.body))


def test_every_kind_of_node_came_back() -> None:
    assert set(NODES) == SEEN


@given(programs())
@LAW
def test_what_is_foreseen_of_a_program_is_within_it(program: Program) -> None:
    work = most_work(program.body, 16)
    num_gens = sum(WORD_OF[type(node)] == "gen" for _, node in walk(program.body))
    assert len(constraints(program)) <= num_gens
    assert work.nodes >= len(program.body)
    assert len(list(together(program.body))) <= work.branches
    assert len(static_prefix(program.body)) <= work.nodes
    assert len(tools(program)) <= sum(WORD_OF[type(node)] == "tool" for _, node in walk(program.body))
    lines = to_mermaid(program).splitlines()
    assert lines[0] == "flowchart TD"
    assert len(lines) > sum(1 for _ in walk(program.body))


@given(programs(), st.data())
@LAW
def test_a_spoilt_document_is_read_or_refused(program: Program, data: st.DataObject) -> None:
    document = to_document(program)
    places: list[tuple[Any, Any]] = []
    pending: list[Any] = [document]
    while pending:
        holder = pending.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            places.append((holder, key))
            if isinstance(holder[key], dict | list):
                pending.append(holder[key])
    holder, key = data.draw(st.sampled_from(places))
    junk = st.sampled_from([
        None,
        True,
        -1,
        0,
        1.5,
        "",
        "say",
        [],
        {},
        [[]],
        {"kind": "gen"},
        {"$var": "nobody"},
        {"$op": "=="},
    ])
    if data.draw(st.booleans()):
        holder[key] = data.draw(junk)
    else:
        del holder[key]
    try:
        verify(from_document(document))
    except InvalidParameterError as error:
        assert error.param  # noqa: PT017  (either is right)


@given(st.text(alphabet='{}[]()"$@#.+=,:\n abgensay01-/\\', max_size=60))
@LAW
def test_any_text_is_read_or_refused(text: str) -> None:
    for given_text in (text, "program p() {" + text + "}"):
        for read in (parse, from_json):
            try:
                read(given_text)
            except InvalidParameterError:
                continue


@pytest.mark.parametrize("depth", [40, 5_000, 200_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    body = '{"kind":"scope","name":"a","body":[' * depth + "]}" * depth
    with pytest.raises(InvalidParameterError):
        from_json('{"version":1,"name":"p","body":[' + body + "]}")
    with pytest.raises(InvalidParameterError):
        parse("program p() {\n" + "scope a {\n" * depth + "}\n" * depth + "}")
    with pytest.raises(InvalidParameterError):
        from_json('{"version":1,"name":"p","body":[],"result":' + "[" * (depth + 40) + "]" * (depth + 40) + "}")


def test_json_is_plain() -> None:
    text = 'program p(q) {\n    say "a" + @q\n    gen x max_tokens=4\n}\n'
    assert json.loads(to_json(parse(text))) == {
        "version": 1,
        "name": "p",
        "params": [{"name": "q"}],
        "body": [
            {"kind": "say", "text": {"$text": ["a", {"$arg": "q"}]}},
            {"kind": "gen", "name": "x", "options": {"max_tokens": 4}},
        ],
    }
