"""Programs on a script: what they say, what they read back, how they are run."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

import trivium.lang as sgl
from trivium.base.errors import ConfigError, InvalidParameterError, ProgramError, UnsupportedFeatureError
from trivium.lang import ScriptedBackend
from trivium.lang.promises import Feed


@sgl.function
def capital(s: Any, country: str, question: str = "river?") -> str:
    s += "The capital of " + country + " is " + sgl.gen("city", stop=".")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("river", max_tokens=5))
    return "done"


def test_a_program_says_its_text_and_sets_its_variables() -> None:
    backend = ScriptedBackend(["Paris. And so on", "Seine and Marne"])

    state = capital.run("France", backend=backend)

    assert (state["city"], state["river"], state.ret_value) == ("Paris", "Seine", "done")
    assert state.text() == "The capital of France is Paris[user]river?\n[assistant]Seine\n"
    assert state.messages() == [{"role": "user", "content": "river?"}, {"role": "assistant", "content": "Seine"}]
    assert backend.prompts == ["The capital of France is ", "The capital of France is Paris[user]river?\n[assistant]"]
    assert state.get_meta_info("city")["finish_reason"] == {"type": "stop", "matched": "."}
    assert state.get_meta_info("river")["finish_reason"] == {"type": "length", "length": 5}
    assert "city" in state
    assert "country" not in state


def test_a_gen_goes_before_its_run_and_the_run_before_nothing() -> None:
    backend = ScriptedBackend(lambda _: "abc")

    @sgl.function
    def two(s: Any) -> None:
        s += sgl.gen(temperature=0.5, max_tokens=2, top_k=3, seed=1) + "\n" + sgl.gen(ignore_eos=True, stop=["x", "y"])

    two.run(max_new_tokens=7, temperature=0.2, top_p=0.9, backend=backend).sync()
    first, second = backend.params
    assert (first.max_tokens, first.temperature, first.top_k, first.top_p, first.seed) == (2, 0.5, 3, 0.9, 1)
    assert (second.max_tokens, second.temperature, second.ignore_eos, second.stop) == (7, 0.2, True, ("x", "y"))
    two.run(backend=backend).sync()
    assert (backend.params[-1].max_tokens, backend.params[-1].temperature) == (128, 1.0)


def test_several_answers_are_a_list_and_the_first_goes_on() -> None:
    @sgl.function
    def draw(s: Any) -> None:
        s += "x" + sgl.gen("a", n=3) + "y"

    state = draw.run(backend=ScriptedBackend(["one", "two", "three"]))
    assert state["a"] == ["one", "two", "three"]
    assert state.text() == "xoney"
    assert [each["completion_tokens"] for each in state.get_meta_info("a")["choices"]] == [3, 3, 5]


def test_logprobs_are_reported_in_sglangs_shape() -> None:
    @sgl.function
    def scored(s: Any) -> None:
        s += "ab" + sgl.gen("x", return_logprob=True, logprob_start_len=0, return_text_in_logprobs=True)

    meta = scored.run(backend=ScriptedBackend(["cd"])).get_meta_info("x")
    assert meta["input_token_logprobs"] == [(None, 97, "a"), (-1.0, 98, "b")]
    assert meta["output_token_logprobs"] == [(-1.0, 99, "c"), (-1.0, 100, "d")]


@dataclasses.dataclass
class City:
    name: str
    size: int


class Town(BaseModel):
    name: str
    size: int


@pytest.mark.parametrize(
    ("arguments", "text", "value"),
    [
        ({"dtype": int}, "-12", -12),
        ({"dtype": float}, "1.5", 1.5),
        ({"dtype": bool}, "False", False),
        ({"dtype": str}, '"a b"', "a b"),
        ({"regex": "[a-c]+"}, "abc", "abc"),
        ({"json_schema": '{"type": "object"}'}, '{"a": 1}', {"a": 1}),
        ({"json_schema": {"type": "array"}}, "[1]", [1]),
        ({"json_schema": City}, '{"name": "a", "size": 2}', City("a", 2)),
        ({"json_schema": Town}, '{"name": "a", "size": 2}', Town(name="a", size=2)),
        ({"ebnf": 'start: "a"'}, "a", "a"),
    ],
)
def test_what_has_a_form_is_held_to_it_and_read(arguments: dict[str, Any], text: str, value: Any) -> None:
    backend = ScriptedBackend([text])

    @sgl.function
    def formed(s: Any) -> None:
        s += sgl.gen("x", **arguments)

    state = formed.run(backend=backend)
    assert (state["x"], state.get_parsed("x")) == (text, value)
    assert backend.params[0].structured_outputs is not None


def test_a_text_that_was_cut_short_is_not_read() -> None:
    @sgl.function
    def formed(s: Any) -> None:
        s += sgl.gen("x", json_schema=City, max_tokens=5)

    state = formed.run(backend=ScriptedBackend(['{"name": "a"}']))
    with pytest.raises(ProgramError, match=r"test_programs\.py:\d+: variable 'x' is '{\"nam', which cannot be read"):
        state.get_parsed("x")


def test_typed_words_are_gens_of_a_type() -> None:
    backend = ScriptedBackend(["7 apples", '"x"'])

    @sgl.function
    def typed(s: Any) -> None:
        s += sgl.gen_int("a") + sgl.gen_string("b")

    state = typed.run(backend=backend)
    assert (state["a"], state.get_parsed("a"), state.get_parsed("b")) == ("7", 7, "x")


def test_a_stop_may_be_an_expression_of_a_gen_or_of_its_run() -> None:
    def program(s: Any) -> None:
        s += sgl.gen("own", stop_regex=r"[.!]\s") + "|" + sgl.gen("run")

    backend = ScriptedBackend(["Yes! No", "7 of 12 apples"])
    state = sgl.function(program).run(stop_regex=["[0-9]{2}", "x"], backend=backend)
    assert (state["own"], state["run"], state.text()) == ("Yes", "7 of ", "Yes|7 of ")
    assert state.get_meta_info("own")["finish_reason"] == {"type": "stop", "matched": r"[.!]\s"}
    assert state.get_meta_info("run")["finish_reason"] == {"type": "stop", "matched": "[0-9]{2}"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: sgl.gen(regex="("),
        lambda: sgl.gen(regex="a", dtype=int),
        lambda: sgl.gen(dtype=list),
        lambda: sgl.gen(stop_regex="("),
        lambda: sgl.gen(stop_regex=[1]),
        lambda: sgl.gen(json_schema=5),
        lambda: sgl.select(choices=[]),
        lambda: sgl.select(choices="ab"),
        lambda: sgl.select(choices=["a", ""]),
        lambda: sgl.select(choices=["a"], temperature=0.5),
        lambda: sgl.select(choices=["a"], choices_method="best"),
        lambda: sgl.tool("f", [1]),
        lambda: sgl.separate_reasoning(sgl.select(choices=["a"]), model_type="qwen3"),
        lambda: sgl.separate_reasoning(sgl.gen("x")),
        lambda: sgl.function(lambda x: None),
        lambda: sgl.function(lambda s: None, num_api_spec_tokens=0),
        lambda: capital.bind(nothing=1),
    ],
)
def test_bad_values_are_refused_where_they_are_written(make: Any) -> None:
    with pytest.raises(InvalidParameterError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: sgl.gen(stop_regex="a$"),
        lambda: capital.run("x", stop_regex="a(?=b)", backend=ScriptedBackend()),
        lambda: sgl.image("x.png"),
        lambda: sgl.video("x.mp4", 3),
        lambda: sgl.LiteLLM("gpt"),
        lambda: sgl.RuntimeEndpoint("http://x", chat_template_name="chatml"),
        lambda: sgl.set_default_backend(5),
        lambda: sgl.separate_reasoning(sgl.gen("x"), model_type="hermes"),
    ],
)
def test_what_is_not_there_is_refused_by_name(make: Any) -> None:
    with pytest.raises(UnsupportedFeatureError):
        make()


def test_without_a_backend_nothing_runs() -> None:
    sgl.set_default_backend(None)
    with pytest.raises(ConfigError, match="set_default_backend"):
        capital.run("France")


def test_a_default_backend_is_used() -> None:
    sgl.set_default_backend(ScriptedBackend(lambda _: "x"))
    try:
        assert capital("France")["city"] == "x"
        assert sgl.get_server_info() == {"model": "scripted"}
        sgl.flush_cache()
    finally:
        sgl.set_default_backend(None)


def test_bind_gives_arguments_and_keeps_the_rest() -> None:
    program = sgl.function(num_api_spec_tokens=9)(capital.func).bind(country="Italy")
    assert program.num_api_spec_tokens == 9
    assert program.run(backend=ScriptedBackend(lambda _: "x")).text().startswith("The capital of Italy is x")


def test_roles_may_be_contexts_and_calls_and_have_ends_of_their_own() -> None:
    @sgl.function
    def talk(s: Any) -> None:
        s.system("be kind")
        with s.user():
            s += "a"
            s += "b"
        s += sgl.assistant_begin() + "c" + sgl.gen("x") + sgl.assistant_end()

    state = talk.run(backend=ScriptedBackend(["d"]))
    assert state.text() == "[system]be kind\n[user]ab\n[assistant]cd\n"
    assert [each["content"] for each in state.messages()] == ["be kind", "ab", "cd"]


def test_a_scope_collects_what_is_said_inside() -> None:
    @sgl.function
    def scoped(s: Any) -> None:
        s += "a"
        with s.var_scope("inside"):
            s += "b" + sgl.gen("x")
        s += "d"

    assert scoped.run(backend=ScriptedBackend(["c"]))["inside"] == "bc"


def test_forks_go_on_side_by_side_and_are_gathered() -> None:
    backend = ScriptedBackend(lambda prompt: prompt[-1].upper())

    @sgl.function
    def tips(s: Any) -> None:
        s["topic"] = "t"
        s += "tips: "
        forks = s.fork(3)
        forks += lambda i: f"{'abc'[i]}"
        forks += sgl.gen("tip")
        forks[1]["extra"] = 5
        forks.join()
        s += "|" + "".join(s["tip"])

    state = tips.run(backend=backend)
    assert (state["tip"], state["extra"], state["topic"]) == (["A", "B", "C"], [5], "t")
    assert state.text() == "tips: |ABC"
    assert sorted(backend.prompts) == ["tips: a", "tips: b", "tips: c"]


def test_forks_may_be_joined_as_text() -> None:
    @sgl.function
    def both(s: Any) -> None:
        s += "x"
        forks = s.fork(2)
        forks += [sgl.gen("a"), "2"]
        forks.join("concate_and_append")
        s += "y"

    assert both.run(backend=ScriptedBackend(["1"])).text() == "x12y"


def test_a_copy_is_a_fork_of_one() -> None:
    @sgl.function
    def copied(s: Any) -> None:
        s += "x"
        with s.copy() as other:
            other.append("y" + sgl.gen("a"))
        s += "z"

    state = copied.run(backend=ScriptedBackend(["1"]))
    assert (state.text(), state["a"]) == ("xz", ["1"])


def test_a_fork_starts_from_where_its_state_stood() -> None:
    @sgl.function
    def early(s: Any) -> None:
        s += "a" + sgl.gen("x")
        [child] = s.fork()
        s += "later"
        child += "!"
        s["child"] = child.text()

    assert early.run(backend=ScriptedBackend(["b"]))["child"] == "ab!"


def test_a_tool_runs_in_its_turn_and_its_result_is_a_variable() -> None:
    seen: list[Any] = []

    def look_up(city: str) -> dict[str, str]:
        seen.append(city)
        return {"river": "Tiber"}

    async def slowly() -> int:
        return 3

    @sgl.function(tools={"look_up": look_up})
    def ask(s: Any) -> None:
        s += sgl.gen("city")
        s += sgl.tool("look_up", {"city": s["city"]})
        s += sgl.tool(slowly, into="number")
        s += "Its river: " + sgl.gen("river", choices=[s["look_up"]["river"], "Po"])

    state = ask.run(backend=ScriptedBackend(["Rome"], score=lambda before, letter: -1.0 if letter in "Tiber" else -2.0))
    assert (state["river"], state["number"], seen) == ("Tiber", 3, ["Rome"])
    assert state.text() == "RomeIts river: Tiber"


@pytest.mark.parametrize("model_type", ["qwen3", "deepseek-r1", "deepseek_r1"])
def test_reasoning_is_kept_apart(model_type: str) -> None:
    begun = "" if model_type != "qwen3" else "<think>"

    @sgl.function
    def think(s: Any) -> None:
        s += sgl.user("sum?")
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("x") + "!", model_type=model_type))

    state = think.run(backend=ScriptedBackend([begun + "one and one</think>two"]))
    assert (state["x"], state["x_reasoning_content"]) == ("two", "one and one")
    assert state.text() == "[user]sum?\n[assistant]two!\n"
    assert "".join(state.text_iter("x")) == "two"
    assert state.messages()[-1] == {"role": "assistant", "content": "two!"}


def test_a_gen_that_fails_loses_its_reasoning_too() -> None:
    @sgl.function
    def think(s: Any) -> None:
        s += sgl.separate_reasoning(sgl.gen("x"), model_type="qwen3")

    with pytest.raises(ProgramError, match="gen 'x' failed"):
        _ = think.run(backend=ScriptedBackend())["x_reasoning_content"]


def test_a_batch_keeps_the_order_of_its_items() -> None:
    backend = ScriptedBackend(lambda prompt: prompt.split()[3])
    items = [{"country": f"c{i}"} for i in range(20)]
    assert [state["city"] for state in capital.run_batch(items, backend=backend)] == [f"c{i}" for i in range(20)]
    tuples = [(f"c{i}", "q") for i in range(3)]
    states = capital.run_batch(tuples, backend=backend, generator_style=True, num_threads=2, progress_bar=True)
    assert [state["city"] for state in states] == ["c0", "c1", "c2"]
    assert capital.run_batch([], backend=backend) == []
    with pytest.raises(InvalidParameterError, match=r"batch_kwargs\[0\]"):
        capital.run_batch(["France"], backend=backend)


def test_a_batch_raises_what_failed_when_all_have_been_run() -> None:
    def answer(prompt: str) -> str:
        if "c1" in prompt:
            raise InvalidParameterError("no c1")
        return "x"

    backend = ScriptedBackend(answer)
    items = [(f"c{i}",) for i in range(4)]
    with pytest.raises(ProgramError, match=r"test_programs\.py:\d+: gen 'city' failed: no c1"):
        capital.run_batch(items, backend=backend)
    states = capital.run_batch(items, backend=backend, return_errors=True)
    assert [state.error() is None for state in states] == [True, False, True, True]


def test_a_stream_yields_text_as_it_comes() -> None:
    state = capital.run("France", backend=ScriptedBackend(["Rome", "Po"], delay_s=0.001), stream=True)
    assert list(state.text_iter("city")) == list("Rome")
    assert "".join(state.text_iter()) == state.text()


async def test_a_program_runs_in_an_event_loop() -> None:
    @sgl.function
    async def program(s: Any) -> str:
        s += "a" + sgl.gen("x")
        return await s.get_var_async("x") + "!"

    state = await program.run_async(backend=ScriptedBackend(["b"]))
    assert state.ret_value == "b!"
    assert await state.text_async() == "ab"
    assert [piece async for piece in state.text_async_iter("x", return_meta_data=True)] == [
        ("b", {"completion_tokens": 1})
    ]
    state = await capital.run_async("France", backend=ScriptedBackend(lambda _: "x"), stream=True, max_new_tokens=3)
    assert "".join([piece async for piece in state.text_async_iter()]) == await state.text_async()
    states = await capital.run_batch_async([("a",), ("b",)], backend=ScriptedBackend(lambda _: "x"), num_programs=1)
    assert [state["city"] for state in states] == ["x", "x"]


def test_inline_execution_is_done_when_it_returns() -> None:
    backend = ScriptedBackend(["b"])

    @sgl.function
    def inline(s: Any) -> int:
        s += "a" + sgl.gen("x")
        return len(backend.prompts)

    assert inline.run(backend=backend, use_thread=False).ret_value == 1


def test_a_feed_is_read_whole_by_late_readers() -> None:
    feed = Feed()
    feed.add("a")
    feed.add("b")
    feed.close()
    assert [list(feed), list(feed)] == [[("a", {}), ("b", {})]] * 2


def test_who_reads_outside_waits_for_what_the_function_has_still_to_append() -> None:
    may_go_on = threading.Event()

    def slow(s: Any) -> str:
        s += "a" + sgl.gen("x")
        assert may_go_on.wait(10)
        s += "b" + sgl.gen("y")
        return "done"

    state = sgl.function(slow).run(backend=ScriptedBackend(["1", "2"]), stream=True)
    assert state["x"] == "1"
    assert "y" not in state
    pool = ThreadPoolExecutor(3)
    readers = [pool.submit(state.text), pool.submit(lambda: state["y"]), pool.submit(lambda: state["z"])]
    time.sleep(0.02)
    assert not any(reader.done() for reader in readers)
    may_go_on.set()
    assert [reader.result(10) for reader in readers[:2]] == ["a1b2", "2"]
    with pytest.raises(KeyError, match="nothing sets the variable 'z'"):
        readers[2].result(10)
    assert state.ret_value == "done"
    pool.shutdown()


async def test_a_coroutine_program_is_not_waited_for_in_its_own_event_loop() -> None:
    async def slow(s: Any) -> None:
        await asyncio.sleep(0.02)
        s += "a" + sgl.gen("x")

    state = await sgl.function(slow).run_async(backend=ScriptedBackend(["1"]), stream=True)
    for read in (state.text, lambda: state["x"], state.sync):
        with pytest.raises(InvalidParameterError, match="read with get_var_async"):
            read()
    assert (await state.get_var_async("x"), await state.text_async()) == ("1", "a1")
    assert [text async for text in state.text_async_iter("x")] == ["1"]


def test_scopes_may_have_one_name_and_end_from_the_inside() -> None:
    def nested(s: Any) -> None:
        with s.var_scope("x"):
            s += "a"
            with s.var_scope("x"):
                s += "b"
            s.set_var("inner", s["x"])

    state = sgl.function(nested).run(backend=ScriptedBackend())
    assert (state["inner"], state["x"]) == ("b", "ab")
