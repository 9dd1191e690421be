"""Programs as text and pictures, as they look, and what is foreseen of them."""

from __future__ import annotations

from trivium.program.foresight import Work, constraints, most_work, static_prefix, together, tools
from trivium.program.nodes import Role, Say
from trivium.program.parser import parse
from trivium.program.picture import to_mermaid
from trivium.program.printer import to_text
from trivium.program.values import Argument, Variable, read, text_of

TEXT = """\
program advise(topic, style="short") {
    role system {
        say "Be brief."
    }
    role user {
        say "Advise on " + @topic + "."
    }
    fork tips {
        branch {
            gen tip max_tokens=16 stop=["\\n"]
        }
        branch {
            gen tip max_tokens=8 dtype="int"
        }
    }
    say $tips#0.tip
    join tips gather_variable
    select kind choices=["yes", "no"] method=joint_probability timeout_s=1.5
    tool search args={"query": $kind, "$ref": {}} into=found
    if (($kind == "yes") and (not ($found["n"] > 2))) {
        gen why max_tokens=4 regex=$found["pattern"]
    } else {
        set why = ""
    }
    while ($why != "") max_steps=3 at_limit=go_on {
        gen why max_tokens=5 n=2
    }
    match $kind.parsed {
        case "yes", 1 {
            say "!"
        }
    } else {
        scope "all of it" {
            gen max_tokens=1
        }
    }
    return {"why": $why}
}
"""


def test_text_is_written_as_it_was_read() -> None:
    assert to_text(parse(TEXT)) == TEXT
    assert to_text(parse("// spoken\n" + TEXT.replace("    ", " \t").replace("}\n", "}\n\n"))) == TEXT


def test_what_is_foreseen() -> None:
    program = parse(TEXT)
    assert static_prefix(program.body) == (
        Role(role="system", body=(Say(text="Be brief."),)),
        Role(role="user", body=(Say(text="Advise on "),)),
    )
    assert constraints(program) == [("dtype", "int")]
    assert tools(program) == ["search"]
    assert list(together(program.body)) == [("tips", 2)]
    assert most_work(program.body) == Work(nodes=20, model_calls=8, tool_calls=1, branches=2, tokens=59)
    assert most_work(parse("program p() {\ngen\n}").body).tokens is None
    assert most_work(parse("program p() {\ngen\n}").body, 128).tokens == 128


def test_a_picture_shows_every_way() -> None:
    lines = to_mermaid(parse('program p() {\nif ("a" == "b") {\ngen x\n}\nfork f {\nbranch {\ngen y\n}\n}\njoin f\n}'))
    assert lines.splitlines() == [
        "flowchart TD",
        '    n0(["p"])',
        '    n1{"if #40;#34;a#34; == #34;b#34;#41;"}',
        "    n0 --> n1",
        '    n2["gen x"]',
        "    n1 -->|yes| n2",
        '    n3{{"fork f"}}',
        "    n2 --> n3",
        "    n1 -->|no| n3",
        '    n4["gen y"]',
        "    n3 -->|branch 0| n4",
        '    n5{{"join f gather#95;variable"}}'.replace("#95;", "_"),
        "    n3 --> n5",
        "    n4 -.-> n5",
        '    n6(["end"])',
        "    n5 --> n6",
    ]


def test_values_are_read_with_their_parts() -> None:
    held = {"q": {"list": ["a", "b"]}, "x": "c"}
    value = text_of("<", Argument("q", ("list", 1)), Variable("x"), ">")
    assert read(value, lambda named: held[named.name]) == "<bc>"
