"""What a good program is, and what is said of one that is none."""

from __future__ import annotations

import pytest

from trivium.base.errors import InvalidParameterError
from trivium.program.nodes import Fork, Gen, Program, Role, Say
from trivium.program.parser import parse
from trivium.program.values import Argument, text_of
from trivium.program.verify import variables_of, verify


def body(text: str) -> str:
    return "program p(q) {\n" + text + "\n}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('say "a" + $x', "body[0] reads $x, which nothing before it sets; known are none"),
        ("say @r", "body[0] reads @r, which is no parameter; those are q"),
        ('if (@q == "a") {\nset x = 1\n}\nreturn $x', "result reads $x, which is not set on every way there"),
        ("while @q max_steps=2 {\ngen x\n}\nsay $x", "body[1] reads $x, which is not set on every way there"),
        ("say $f#0.x", "body[0] reads $f#0.x, but nothing before it forks 'f'"),
        ("fork f {\nbranch {\ngen x\n}\n}\nsay $f#1.x", "body[1] reads $f#1.x, but 'f' has 1 branches"),
        ("fork f {\nbranch {\ngen x\n}\n}\nsay $x", "body[1] reads $x, which nothing before it sets"),
        ("join f", "body[0] joins 'f', which nothing before it forks"),
        ("fork f {\nbranch {\n}\n}\njoin f\njoin f", "body[2] joins 'f', which has been joined"),
        ("fork f {\nbranch {\n}\n}\nwhile @q max_steps=2 {\njoin f\n}", "body[1] joins 'f' in every step"),
        ("fork f {\n}", "body[0] forks into 0 branches; it takes 1 to 1024"),
        ("role user {\nrole system {\n}\n}", "body[0].body[0] begins system inside user; roles do not nest"),
        ("role cook {\n}", "body[0].role is \"cook\"; it must be one of system, user, assistant"),
        ("gen x tokens=4", "body[0] gives gen 'tokens'; known are max_tokens"),
        ('gen x regex="a" ebnf="b"', "body[0] gives gen regex and ebnf; it takes one of them"),
        ('gen x dtype="list"', "body[0] gives gen the dtype 'list'; it must be one of int, float, bool, str"),
        ("gen x timeout_s=0", "body[0].timeout_s is 0; it must be a number of seconds above 0"),
        ("select x choices=[]", "body[0] selects among no choices"),
        ('select x choices="ab"', "body[0] has the choices 'ab'; they are a list, or what holds one"),
        ("while @q max_steps=0 {\n}", "body[0].max_steps is 0; it must be a whole number from 1 to 1000000"),
        ("while @q {\n}", "body[0] has no max_steps"),
        ("match @q {\ncase @q {\n}\n}", "body[0].cases[0] has a value that names something; cases are literals"),
        ('set x = (@q contains "a" contains "b")', "it must be a list of at most 2"),
        ("set x = 1e999", "body[0] holds inf, which is no number of JSON"),
        ("gin x", "line 2: 'gin' is no node; nodes are say, gen"),
        ("gen x x=1 x=2", "line 2: x is given twice"),
        ('say "a', "line 2: '\"' is not expected"),
        ("say", "line 2: 'the line ends' where a value is expected"),
        ("gen x }", "line 3: '}' follows the program"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidParameterError) as error:
        parse(body(text))
    assert message in str(error.value)


def test_a_program_made_in_python_is_held_to_the_same() -> None:
    inner = Role(role="user", body=(Say(text=text_of("to ", Argument("who"))),))
    with pytest.raises(InvalidParameterError, match=r"body\[0\]\.body\[0\] reads @who, which is no parameter"):
        verify(Program(name="p", body=(inner,)))
    with pytest.raises(InvalidParameterError, match="holds a set; values are those of JSON"):
        verify(Program(name="p", body=(Gen(name="x", options={"stop": {1}}),)))
    deep: Fork = Fork(name="f", branches=((),))
    for _ in range(32):
        deep = Fork(name="f", branches=((deep,),))
    with pytest.raises(InvalidParameterError, match="is nested 33 deep; at most 32 bodies are"):
        verify(Program(name="p", body=(deep,)))


@pytest.mark.parametrize(
    "text",
    [
        'set x = ""\nif @q {\ngen x\n}\nsay $x',
        "if @q {\ngen x\n} else {\nset x = 1\n}\nreturn $x",
        "fork f {\nbranch {\ngen x\n}\nbranch {\ngen x\n}\n}\nsay $f#1.x\njoin f\nreturn $x",
        "while @q max_steps=2 {\nfork f {\nbranch {\n}\n}\njoin f\n}",
        'gen x reasoning="deepseek_r1"\nsay $x_reasoning_content',
    ],
)
def test_what_is_set_on_every_way_may_be_read(text: str) -> None:
    parse(body(text))


def test_the_variables_of_a_program_are_its_own_and_those_it_joins() -> None:
    program = parse(
        body(
            "gen a\nfork f {\nbranch {\ngen b\n}\n}\nfork g {\nbranch {\ngen c\n}\n}\nif @q {\ntool t into=d\n}\njoin g"
        )
    )
    assert variables_of(program.body) == ("a", "d", "c")
