"""Templates of strangers: none gets out, none goes on for ever, and metering changes no result."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trivium.base.clock import FakeClock
from trivium.base.errors import TemplateError
from trivium.tokens.chat import ChatTemplate
from trivium.tokens.render_budget import MAX_SECONDS, OverBudgetError, RenderBudget

MESSAGES = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "yy"}]
GROW = "{% set ns = namespace(x='ab', l=[1]) %}{% for i in range(100) %}"
STOPPED = {
    "nested loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "recursive macro": "{% macro m(n) %}{{ m(n) ~ m(n) }}{% endmacro %}{{ m(1) }}",
    "recursive loop": "{% for a in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    "text times number": "{{ 'a' * 10000000000 }}",
    "list times number": "{{ 10000000000 * [1] }}",
    "power": "{{ 9 ** 99999999 }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "doubling with ~": GROW + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling with +": GROW + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling a list": GROW + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "doubling a block": GROW + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling by nesting": GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "doubling with dict": GROW + "{% set ns.l = dict(a=ns.l, b=ns.l) %}{% endfor %}{{ ns.l | tojson }}",
    "padding filter": "{{ 'a' | center(10000000000) }}",
    "padding method": "{{ 'a'.ljust(10000000000) }}",
    "padding block": "{% filter center(10000000000) %}a{% endfilter %}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "format inner width": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format filter": "{{ '%*d' | format(1000000000, 1) }}",
    "replace": "{% set a = 'a' * 100000 %}{{ a.replace('a', a) }}",
    "join method": "{% set a = 'a' * 100000 %}{{ a.join(range(100000) | list) }}",
    "join filter": "{% set a = 'a' * 100000 %}{{ range(100000) | map('string') | join(a) }}",
    "translate": "{% set a = 'a' * 100000 %}{{ a.translate({97: a}) }}",
    "indent": "{{ ('\n' * 100000) | indent(100000) }}",
    "json indent": "{{ [1, 2] | tojson(indent=1000000000) }}",
    "fill of batch": "{{ [1] | batch(1000000000, 'x') | list }}",
    "much output": "{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}",
    "much constant text": "{% set x %}{% for i in range(100000) %}" + "z" * 100000 + "{% endfor %}{% endset %}",
    "huge range": "{{ range(10000000000) | list }}",
    "time format": "{{ strftime_now('%1000000000Y') }}",
}
ESCAPES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals of a function": "{{ cycler.__init__.__globals__.os.popen('touch PATH').read() }}",
    "globals of ours": "{{ raise_exception.__globals__['sys'].modules['os'].system('touch PATH') }}",
    "attribute by name": "{{ (''|attr('__class__')).mro()[1].__subclasses__()[0] }}",
    "attribute by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "attribute by map": "{{ ['']|map(attribute='__class__.__mro__')|list|first|first }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "extends": "{% extends '/etc/passwd' %}",
    "template object": "{{ self.__init__.__globals__['os'].system('touch PATH') }}",
    "the environment": "{{ environment.from_string('x').render() }}{{ context.parent() }}",
}


@pytest.mark.parametrize("name", sorted(STOPPED))
def test_a_template_that_explodes_is_stopped_soon(name: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(TemplateError):
        ChatTemplate(STOPPED[name]).render(MESSAGES)
    assert time.monotonic() - began_s < MAX_SECONDS + 5


def test_turns_of_recursive_loops_are_work_too() -> None:
    source = "{% for a in [0] * 99 recursive %}{% if not a %}{{ loop(range(1, 99999)) }}{% endif %}{% endfor %}"
    with pytest.raises(TemplateError, match="pieces of work"):
        ChatTemplate(source).render(MESSAGES)


def test_a_rendering_ends_when_its_time_is_up() -> None:
    clock = FakeClock()
    budget = RenderBudget(clock)
    budget.pay(1000)
    clock.advance(MAX_SECONDS + 1)
    with pytest.raises(OverBudgetError, match="longer than 5 s"):
        budget.pay(1000)


@pytest.mark.parametrize("name", sorted(ESCAPES))
def test_a_template_that_reaches_outside_is_refused_and_touches_nothing(name: str, tmp_path: Path) -> None:
    file = tmp_path / "touched"
    with pytest.raises(TemplateError):
        ChatTemplate(ESCAPES[name].replace("PATH", str(file))).render(MESSAGES)
    assert not file.exists()


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ m.role }}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ m.content }}{% else %}none{% endfor %}",
        "{% for m in [] %}x{% else %}empty{% endfor %}{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}",
        "{% for k in [1, 2] recursive %}{{ k }}{% if k == 1 %}{{ loop([3, 4]) }}{% endif %}{% endfor %}",
        "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.revindex }}{{ loop.cycle(1, 2) }}{% endfor %}",
        "{% macro m(x, y=2) %}{{ x }}{{ y }}{{ caller() if caller }}{% endmacro %}{% call m(3) %}c{% endcall %}",
        "{{ messages | last }}{{ messages[::-1] }}",
        "{{ 'a' ~ 1 ~ none ~ 2.5 }}{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 2 * 3 }}{{ 'ab' * 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}",
        "{{ '%s and %d' % ('x', 3) }}{{ '{} {a}'.format(1, a=2) }}{{ '%s' | format(4) }}{{ 'x%dy' % 5 }}",
        "{{ messages | map(attribute='role') | join(', ') | upper | replace('U', 'u') | indent(2) | center(40) }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{{ [3, 1, 2] | sort | reverse | list }}{{ [1, 1] | unique | list }}{{ [1, 2, 3] | batch(2, 0) | list }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% set x %}block{{ 1 }}{% endset %}{{ x }}{% filter upper %}abc{% endfilter %}{% set a, b = 1, 2 %}{{ a, b }}",
        "{{ {'a': [1, (2, 3)]} }}{{ none }}{{ true }}{{ undefined_name }}{{ undefined_name is defined }}",
        "{{ range(3) | list }}{{ dict(a=1) }}{{ {'b': 1} | dictsort }}{{ messages | groupby('role') | length }}",
        "{{ 'A b' | lower | title | trim | wordcount }}{{ 3.7 | round | int }}{{ '5' | int + 1 }}{{ 'ab' | first }}",
        "{{ 'x'.join(['1', '2']) }}{{ ' x '.strip() }}{{ 'a-b'.split('-')[1] }}{{ 'z'.zfill(3) }}",
    ],
)
def test_paying_changes_no_result(source: str) -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert ChatTemplate(source).render(MESSAGES) == plain.from_string(source).render(messages=MESSAGES)


def test_a_long_conversation_stays_within_budget() -> None:
    source = (
        "{% set ns = namespace(seen=[]) %}{% for m in messages %}{% set ns.seen = ns.seen + [m] %}"
        "{{ m.role ~ ': ' ~ m.content | trim }}{{ ns.seen | length }}{{ loop.length }}{% endfor %}"
    )
    long = [{"role": "user", "content": "word " * 100}] * 4000
    assert ChatTemplate(source).render(long).endswith("40004000")
