"""Editing graphs: who makes and uses what, replacements that keep an order that can run."""

from __future__ import annotations

import pytest

from support.pass_cases import EMBED, canonical, graph_of
from trivium.base.errors import InternalError
from trivium.compile.edit import GraphEditor, operand, operands, result
from trivium.ir.verify import verify

BODY = (
    EMBED + "%a: f32[T,6] = mul(%x, %x)\n%b: f32[T,6] = add(%a, %x)\n%c: f32[T,6] = scale(%b; factor=2.0)\n"
    "%d, %e: f32[T,2], f32[T,4] = split(%c; sizes=(2, 4))\noutput first = %d\noutput sum = %b\n"
)


def editor() -> GraphEditor:
    return GraphEditor(graph_of(BODY))


def names(edited: GraphEditor) -> list[str]:
    return [node.outputs[0].name for node in edited.build().nodes]


def test_an_untouched_graph_is_the_same_graph() -> None:
    graph = graph_of(BODY)
    assert GraphEditor(graph).build() == graph


def test_makers_and_users_are_known_by_op_and_order() -> None:
    edited = editor()
    assert edited.maker("norm") is None
    assert edited.maker("%a", "add") is None
    made = edited.maker("%b", "add", "mul")
    assert made is not None
    assert operands(made) == {"a": "%a", "b": "%x"}
    assert [user.op for user in edited.users("%x")] == ["mul", "add"]
    assert edited.only_user("%a", "add") is made
    assert edited.only_user("%a", "mul") is None
    assert edited.only_user("%x") is None
    assert edited.only_user("%b") is None, "an output has one more user"
    assert edited.is_output("%b")
    assert edited.is_param("norm")
    assert not edited.is_param("%a")


def test_only_for_wants_one_use_by_that_user_and_no_other_results() -> None:
    edited = editor()
    add, scale, split = (edited.maker(name) for name in ("%b", "%c", "%d"))
    assert add is not None
    assert scale is not None
    assert split is not None
    assert edited.only_for("%a", add) is edited.maker("%a")
    assert edited.only_for("%a", scale) is None
    assert edited.only_for("%b", scale) is None
    assert edited.only_for("%c", split) is scale
    twice = edited.maker("%a")
    assert twice is not None
    assert edited.only_for("%x", twice) is None


def test_replacing_keeps_names_and_users() -> None:
    edited = editor()
    add, scale = edited.maker("%b"), edited.maker("%c")
    assert add is not None
    assert scale is not None
    new = edited.node("mul", {"a": "%b", "b": "%b"}, {}, ["%c"])
    edited.replace([scale], new, at=scale)
    assert edited.maker("%c") is new
    assert [user.op for user in edited.users("%b")] == ["mul"]
    verify(edited.build())
    assert names(edited) == ["%x", "%a", "%b", "%c", "%d"]


def test_several_nodes_become_one_where_it_is_wanted() -> None:
    for where in ("%a", "%b"):
        edited = editor()
        olds = [node for name in ("%a", "%b") if (node := edited.maker(name)) is not None]
        at = edited.maker(where)
        assert at is not None
        edited.replace(olds, edited.node("gated", {"gate": "%x", "up": "%x"}, {"activation": "silu"}, ["%b"]), at=at)
        assert names(edited) == ["%x", "%b", "%c", "%d"]
        assert edited.maker("%a") is None
        assert [user.op for user in edited.users("%x")] == ["gated"]
        verify(edited.build())


def test_insertions_stand_beside_their_node_in_the_order_in_which_they_were_asked_for() -> None:
    edited = editor()
    add = edited.maker("%b")
    assert add is not None
    for name in ("%p", "%q"):
        edited.insert_before(add, edited.node("mul", {"a": "%x", "b": "%a"}, {}, [name]))
    edited.insert_after(add, edited.node("mul", {"a": "%b", "b": "%p"}, {}, ["%r"]))
    edited.insert_first(edited.node("mul", {"a": "embeds", "b": "embeds"}, {}, ["%s"]))
    assert names(edited) == ["%s", "%x", "%a", "%p", "%q", "%b", "%r", "%c", "%d"]
    verify(edited.build())
    assert edited.is_before("%p", add)
    assert not edited.is_before("%r", add)
    assert edited.is_before("norm", add)
    assert (
        edited.first_of([node for name in ("%r", "%p", "%b") if (node := edited.maker(name))]).outputs[0].name == "%p"
    )


def test_redirecting_reaches_users_and_outputs() -> None:
    edited = editor()
    add = edited.maker("%b")
    assert add is not None
    edited.redirect("%b", "%a")
    assert edited.users("%b") == []
    edited.remove(add)
    graph = edited.build()
    verify(graph)
    assert graph.outputs == {"first": "%d", "sum": "%a"}
    assert "%b" not in canonical(graph).replace("%b:", "")


def test_walking_sees_what_is_there_when_its_turn_comes() -> None:
    edited, seen = editor(), []
    for node in edited.nodes():
        seen.append(node.outputs[0].name)
        if node.outputs[0].name == "%a":
            gone = edited.maker("%c")
            assert gone is not None
            edited.redirect("%c", "%b")
            edited.remove(gone)
            add = edited.maker("%b")
            assert add is not None
            edited.insert_after(add, edited.node("mul", {"a": "%b", "b": "%b"}, {}, ["%late"]))
    assert seen == ["%x", "%a", "%b", "%late", "%d"]
    assert [node.op for node in edited.nodes("split")] == ["split"]


def test_names_are_fresh_and_nodes_are_checked() -> None:
    edited = editor()
    first = edited.fresh()
    assert first != edited.fresh()
    with pytest.raises(InternalError, match="add has no operand c"):
        edited.node("add", {"a": "%x", "c": "%x"}, {}, ["%z"])
    with pytest.raises(InternalError, match="add: b is missing"):
        edited.node("add", {"a": "%x"}, {}, ["%z"])
    split = edited.maker("%d")
    assert split is not None
    with pytest.raises(InternalError, match="several outputs in"):
        result(split)
    embed = edited.maker("%x")
    assert embed is not None
    assert operand(embed, "embeds") == "embeds"
    norm = edited.node("add_norm", {"a": "%x"}, {"eps": None, "kind": None, "gives": ("wide",)}, ["%z"])
    with pytest.raises(InternalError, match="weight is missing in: %z"):
        operand(norm, "weight")
