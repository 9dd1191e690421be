"""Traces: what a function does as data, and the line at which it cannot be told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

import trivium.lang as sgl
from trivium.base.errors import ProgramError
from trivium.program.codec import from_json
from trivium.program.parser import parse


@dataclass
class City:
    name: str


def lookup(city: str) -> dict[str, str]:
    return {"pattern": f"[{city}]+"}


@sgl.function
def whole(s: Any, city: str, style: str = "short") -> Any:
    s += sgl.system("You answer.")
    with s.user():
        s += "What of " + city + "? " + style
    s += sgl.assistant(sgl.gen("answer", max_tokens=16, stop=["\n"], json_schema=City))
    s += sgl.tool(lookup, {"city": city}, into="found")
    s += sgl.gen("more", regex=s["found"]["pattern"], temperature=0)
    with s.var_scope("tips"):
        forks = s.fork(2)
        forks += lambda i: f"Tip {i}: " + sgl.gen("tip", max_tokens=4 + i)
        s += forks[1]["tip"] + "\n"
    forks.join()
    s["left"] = "go"
    s.while_(
        lambda s: (s["left"] != "stop") & sgl.not_(sgl.contains(s["tips"], "x")),
        lambda s: s.append(sgl.select("left", ["go", "stop"], choices_method="joint_probability")),
        max_steps=3,
    )
    s.if_(s["left"] == "stop", lambda s: s.append("."), lambda s: s.append(sgl.gen(max_tokens=1)))
    s.match(s["left"], {("stop", "end"): lambda s: s.append("!")}, lambda s: s.append("?"))
    return {"left": s["left"], "name": s.get_parsed("answer").name}


TEXT = """\
program whole(city, style="short") {
    role system {
        say "You answer."
    }
    role user {
        say "What of " + @city + "? " + @style
    }
    role assistant {
        gen answer max_tokens=16 stop=["\\n"] json_schema=SCHEMA
    }
    tool lookup args={"city": @city} into=found
    gen more temperature=0 regex=$found["pattern"]
    scope tips {
        fork f0 {
            branch {
                say "Tip 0: "
                gen tip max_tokens=4
            }
            branch {
                say "Tip 1: "
                gen tip max_tokens=5
            }
        }
        say $f0#1.tip + "\\n"
    }
    join f0 gather_variable
    set left = "go"
    while (($left != "stop") and (not ($tips contains "x"))) max_steps=3 {
        select left choices=["go", "stop"] method=joint_probability
    }
    if ($left == "stop") {
        say "."
    } else {
        gen max_tokens=1
    }
    match $left {
        case "stop", "end" {
            say "!"
        }
    } else {
        say "?"
    }
    return {"left": $left, "name": $answer.parsed["name"]}
}
"""


def test_a_whole_program() -> None:
    trace = whole.trace()
    schema = json.dumps(trace.program.body[2].body[0].options["json_schema"])  # type: ignore[attr-defined]
    assert trace.to_text() == TEXT.replace("SCHEMA", schema)
    assert parse(trace.to_text()) == trace.program == from_json(trace.to_json())
    assert trace.to_mermaid().startswith("flowchart TD\n")
    line = whole.func.__code__.co_firstlineno
    assert trace.program.body[0].line == f"{__file__}:{line + 2}"


def test_given_arguments_are_written_into_it() -> None:
    @sgl.function
    def several(s: Any, count: int, word: str) -> None:
        for idx in range(count):
            s += f"{idx}" + word
        s.if_(count > 1, lambda s: s.append("many"), lambda s: s.append("one"))

    assert several.trace(count=2).to_text() == (
        'program several(word) {\n    say "0" + @word\n    say "1" + @word\n    say "many"\n}\n'
    )
    assert several.bind(count=1).trace(word="w").to_text() == 'program several() {\n    say "0w"\n    say "one"\n}\n'


def test_a_trace_runs_as_its_function_does() -> None:
    def answers(prompt: str) -> str:
        return '{"name": "Oslo"}' if prompt.endswith("[assistant]") else "Oslo"[: len(prompt) % 4 + 1]

    def score(before: str, letter: str) -> float:
        return -0.1 if letter in "stop" else -1.0

    runs = []
    for function in (whole, whole.trace()):
        backend = sgl.ScriptedBackend(answers, score=score)
        state = function.run(city="Oslo", backend=backend)
        found = {name: state[name] for name in ("answer", "more", "tip", "tips", "left", "found")}
        runs.append((state.text(), found, state.ret_value, sorted(backend.prompts)))
    assert runs[0] == runs[1]
    assert runs[0][2] == {"left": "stop", "name": "Oslo"}


def lines(function: Any) -> int:
    return int(function.func.__code__.co_firstlineno)


def fstring(s: Any, x: Any) -> None:
    s += "a"
    s += f"<{x}>"


def branching(s: Any, x: Any) -> None:
    s += "a"
    if x:
        s += "b"


def both(s: Any, x: Any) -> None:
    s += sgl.gen("y")
    s += "c" if s["y"] == "1" and x else "d"


def looping(s: Any, x: Any) -> None:
    s += "a"
    for each in x:
        s += each


def counting(s: Any, x: Any) -> None:
    s += "a"
    s.fork(x)


def unknown_call(s: Any, x: Any) -> None:
    s += "a"
    s += json.dumps({"x": x})


def method(s: Any, x: Any) -> None:
    s += "a"
    s += x.strip()


def joined(s: Any, x: Any) -> None:
    s += "a"
    s += ", ".join([x])


def own_measure(s: Any, x: Any) -> None:
    s += "a"
    s += sgl.select("y", [x], choices_method=lambda **_: None)  # type: ignore[arg-type]


def reading_text(s: Any, x: Any) -> None:
    s += "a"
    s["y"] = s.text()


def meta(s: Any, x: Any) -> None:
    s += sgl.gen("y")
    s["z"] = s.get_meta_info("y")


def another(s: Any, x: Any) -> None:
    s += "a"
    whole.run(x)


def old_value(s: Any, x: Any) -> None:
    s["y"] = x
    y = s["y"]
    s["y"] = "b"
    s += y


def old_in_loop(s: Any, x: Any) -> None:
    s["y"] = x
    y = s["y"]
    s.while_(lambda s: s["y"] != "b", lambda s: (s.append(y), s.append(sgl.gen("y"))))


def sibling(s: Any, x: Any) -> None:
    forks = s.fork(2)
    forks[0].append(sgl.gen("y"))
    forks[1].append(forks[0]["y"])


def set_in_one_way(s: Any, x: Any) -> None:
    s.if_(x, lambda s: s.append(sgl.gen("y")))
    s += s["y"]


def swallowing(s: Any, x: Any) -> None:
    try:
        s += "a" + str(x)
    except Exception:
        s += "b"


def never_ended(s: Any, x: Any) -> None:
    s += x
    s += sgl.user_begin() + "b"


def set_again(s: Any, x: Any) -> None:
    forks = s.fork(1)
    forks[0].append(sgl.gen("y"))
    y = forks[0]["y"]
    s += y
    forks[0].append(sgl.gen("y"))


def failed(s: Any, x: Any) -> None:
    s += sgl.gen("y") + x
    s["z"] = s.error() is None


def asking(s: Any, x: Any) -> None:
    s.while_(lambda s: x, lambda s: s.append(sgl.gen("y")))
    s += "a" if "y" in s else "b"


def endless(s: Any, x: Any) -> None:
    while s.error is not None:
        s += sgl.gen()


def failing(s: Any, x: Any) -> None:
    s += "a"
    s += x + 1


@pytest.mark.parametrize(
    ("func", "at", "reason"),
    [
        (fstring, 2, "argument 'x' is made a text (an f-string"),
        (branching, 2, "Python asks whether argument 'x' is true"),
        (both, 2, "Python asks whether (variable 'y' == \"1\") is true"),
        (looping, 2, "Python goes through argument 'x'"),
        (counting, 2, "size is argument 'x'; it must be a whole number above 0"),
        (unknown_call, 2, "Object of type Abstract is not JSON serializable"),
        (method, 2, ".strip of argument 'x' is asked for"),
        (joined, 2, "expected str instance, Abstract found"),
        (own_measure, 2, "choices_method is function, a measure of one's own"),
        (reading_text, 2, "the text is read (text())"),
        (meta, 2, "get_meta_info"),
        (another, 2, "another program, whole, is run"),
        (old_value, 4, "variable 'y' was set again after it was read"),
        (old_in_loop, 3, "variable 'y' was read before the while and is set in it"),
        (sibling, 3, "variable 'y' is of a branch that this state has not forked"),
        (set_in_one_way, 2, "variable 'y' is asked for, which is not set on every way there"),
        (swallowing, 2, "argument 'x' is made a text"),
        (never_ended, 2, "never ends"),
        (set_again, 0, "variable 'y' of a branch was set again"),
        (failed, 2, "whether something failed is asked for"),
        (asking, 2, "variable 'y' is asked for, which is not set on every way"),
        (endless, 2, "it has more than 10000 nodes"),
        (failing, 2, "unsupported operand"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced_is_named_with_its_line(func: Any, at: int, reason: str) -> None:
    function = sgl.function(func)
    with pytest.raises(ProgramError) as error:
        function.trace()
    assert reason in str(error.value)
    assert "cannot be traced" in str(error.value)
    if at:
        assert error.value.line == f"{__file__}:{lines(function) + at}"


def test_what_cannot_be_traced_runs_all_the_same() -> None:
    for func, argument, expected in ((fstring, "b", "a<b>"), (branching, True, "ab"), (method, " b ", "ab")):
        assert sgl.function(func).run(argument, backend=sgl.ScriptedBackend()).text() == expected


def test_decisions_of_an_ordinary_run() -> None:
    @sgl.function
    def own(s: Any) -> None:
        s.while_(lambda s: len(s.text()) < 3, lambda s: s.append("a"), max_steps=2, at_limit="go_on")
        s.match(s.text(), {"a": lambda s: s.append("1"), ("aa", "b"): lambda s: s.append("2")})
        s.if_(lambda s: s.text() == "?", lambda s: s.append("no"))
        s.while_(lambda s: True, lambda s: s.append("."), max_steps=2)

    with pytest.raises(ProgramError, match="the while has taken 2 steps") as error:
        own.run(backend=sgl.ScriptedBackend())
    assert error.value.line == f"{__file__}:{lines(own) + 5}"
