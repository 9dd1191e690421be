"""Programs as data do what the author's own lines would do, in the order of the data."""

from __future__ import annotations

import time
from typing import Any

import pytest

import trivium.lang as sgl
from trivium.base.errors import InvalidParameterError, ProgramError
from trivium.lang.interpret import as_function
from trivium.program.parser import parse


def run(text: str, answers: Any = (), tools: Any = None, **arguments: Any) -> tuple[Any, sgl.ScriptedBackend]:
    backend = sgl.ScriptedBackend(answers)
    state = as_function(parse(text), tools).run(backend=backend, **arguments)
    state.sync()
    return state, backend


def test_texts_gens_and_roles() -> None:
    state, backend = run(
        """program p(city, style="short") {
            role user {
                say "What of " + @city + "? " + @style
            }
            role assistant {
                gen x max_tokens=3
            }
            return "<" + $x + ">"
        }""",
        ["abcdef"],
        city="Oslo",
    )
    assert backend.prompts == ["[user]What of Oslo? short\n[assistant]"]
    assert backend.params[0].max_tokens == 3
    assert (state["x"], state.ret_value) == ("abc", "<abc>")


def test_every_kind_of_decision() -> None:
    text = """program p(q) {
        gen a
        if ($a == "yes") {
            say "+"
        } else {
            say "-"
        }
        set left = ""
        while ($left != "aaa") max_steps=5 {
            set left = $left + "a"
            gen a
        }
        match $a {
            case "no", "never" {
                say "n"
            }
            case "3" {
                say "three"
            }
        } else {
            say "other"
        }
    }"""
    state, _ = run(text, ["yes", "1", "2", "3"], q=1)
    assert state.text() == "yes+123three"
    assert run(text, ["?", "1", "2", "never"], q=1)[0].text() == "?-12nevern"
    assert run(text, ["?", "1", "2", "4"], q=1)[0].text() == "?-124other"


def test_a_while_at_its_limit_fails_or_goes_on() -> None:
    text = 'program p() {\nset a = "x"\nwhile ($a == "x") max_steps=3 MORE{\nsay "."\n}\nsay "end"\n}'
    assert run(text.replace("MORE", "at_limit=go_on "))[0].text() == "...end"
    with pytest.raises(ProgramError, match=r"p:body\[1\]: the while has taken 3 steps"):
        run(text.replace("MORE", ""))


def test_forks_run_side_by_side_and_are_read_before_they_are_joined() -> None:
    text = """program p() {
        say "s"
        fork f {
            branch {
                say "0"
                gen x
                gen y
            }
            branch {
                say "1"
                gen x
            }
        }
        say $f#1.x + $f#0.x
        join f gather_variable
        return [$x, $y]
    }""".replace('if ($x == "A") {\n                    gen y\n                }', "gen y")
    answers = {"s0": "A", "s1": "B", "s0A": "C"}
    state, _ = run(text, lambda prompt: answers[prompt])
    assert state.text() == "sBA"
    assert state.ret_value == [["A", "B"], ["C"]]
    began = time.monotonic()
    backend = sgl.ScriptedBackend(lambda prompt: "x" * 10, delay_s=0.01)
    slow = "program p() {\nfork f {\n" + 'branch {\ngen x\nif ($x == "") {\n}\ngen z\n}\n' * 8 + "}\n}"
    as_function(parse(slow)).run(backend=backend).sync()
    assert time.monotonic() - began < 8 * 0.2


def test_tools_choose_constraints_and_choices() -> None:
    async def search(query: str) -> dict[str, Any]:
        return {"pattern": f"[{query}]+", "names": ["ab", "c"]}

    state, backend = run(
        'program p(q) {\ntool search args={"query": @q} into=found\ngen x regex=$found["pattern"]\n'
        'select y choices=$found["names"]\nreturn $found["names"][1]\n}',
        ["xyz"],
        tools={"search": search},
        q="xyz",
    )
    assert backend.params[0].structured_outputs is not None
    assert backend.params[0].structured_outputs.regex == "[xyz]+"
    assert (state["y"], state.ret_value) == ("ab", "c")


def test_what_is_parsed_is_what_the_text_says() -> None:
    state, _ = run('program p() {\ngen x dtype="int"\nif ($x.parsed > 40) {\nsay "!"\n}\nreturn $x.parsed\n}', ["42"])
    assert (state.text(), state.ret_value) == ("42!", 42)


def test_errors_cite_the_place() -> None:
    with pytest.raises(ProgramError, match=r"^p:body\[1\]: toolcall 't' failed: there is no tool 't'"):
        run('program p() {\nsay "a"\ntool t into=t\n}')
    with pytest.raises(InvalidParameterError, match=r"\$x is int, where a text is needed"):
        run('program p() {\nset x = 1\nsay "a" + $x\n}')
    with pytest.raises(InvalidParameterError, match=r'\$x\["k"\] is not there'):
        run('program p() {\nset x = {}\nreturn $x["k"]\n}')
    with pytest.raises(InvalidParameterError, match="missing a required argument: 'q'; parameters are q"):
        run("program p(q) {\n}")
    with pytest.raises(ProgramError, match=r"p:body\[0\]\.branches\[0\]\[0\]: gen 'x' failed"):
        run('program p() {\nfork f {\nbranch {\ngen x\nif ($x == "a") {\n}\n}\n}\n}')


def test_a_batch_and_an_event_loop() -> None:
    function = as_function(parse('program p(q) {\nsay @q\ngen x\nif ($x == "a") {\nsay "!"\n}\n}'))
    states = function.run_batch([{"q": "1"}, ("2",)], backend=sgl.ScriptedBackend(lambda prompt: "a"))
    assert [state.text() for state in states] == ["1a!", "2a!"]


def test_a_watch_sees_every_node_and_may_end_the_run() -> None:
    seen: list[str] = []

    def watch(state: sgl.ProgramState, node: Any, place: str) -> None:
        seen.append(place)
        if len(seen) > 3:
            raise InvalidParameterError("too many steps")

    function = as_function(parse('program p() {\nwhile ("a" == "a") max_steps=9 {\nsay "."\n}\n}'), watch=watch)
    with pytest.raises(InvalidParameterError, match="too many steps"):
        function.run(backend=sgl.ScriptedBackend())
    assert seen == ["body[0]", "body[0].body[0]", "body[0].body[0]", "body[0].body[0]"]
