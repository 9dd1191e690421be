"""Remote models asked ahead (`num_api_spec_tokens`): fewer calls, the same variables, no reader that hangs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import trivium.lang as sgl
from support.fake_api import fake_api
from trivium.base.errors import InvalidParameterError, ProgramError, RemoteError

LIMIT_S = 30


def on(api: Any, *, is_chat: bool) -> sgl.OpenAI:
    return sgl.OpenAI("m", is_chat_model=is_chat, base_url=f"{api.url}/v1", api_key="k", max_retries=0)


def within_limit(action: Any) -> Any:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(action).result(LIMIT_S)
    finally:
        pool.shutdown(wait=False)


@sgl.function(num_api_spec_tokens=64)
def character(s: Any) -> None:
    s += (
        "Name:"
        + sgl.gen("name", stop="\n")
        + "\nBorn:"
        + sgl.gen("born", stop="\n")
        + "\nWork:"
        + sgl.gen("work", stop="\n")
    )


@sgl.function(num_api_spec_tokens=64)
def told(s: Any) -> None:
    s += sgl.user("Who?")
    s += sgl.assistant(
        "Name: " + sgl.gen("name", stop="\n") + "\nBorn: " + sgl.gen("born", stop=".") + ". Work: " + sgl.gen("work")
    )


def test_a_completion_model_is_asked_once_while_the_constants_match() -> None:
    with fake_api([" Ada\nBorn: 1815\nWork: notes\nDied: 1852"]) as api:
        backend = on(api, is_chat=False)
        state = character.run(backend=backend)
        assert [state[name] for name in ("name", "born", "work")] == [" Ada", " 1815", " notes"]
        assert state.text() == "Name: Ada\nBorn: 1815\nWork: notes"
        assert "".join(state.text_iter("born")) == " 1815"
        [body] = api.bodies()
        assert ("stop" in body, body["max_tokens"]) == (False, 128)
        assert state.get_meta_info("work")["finish_reason"]["type"] == "stop"
        backend.close()


def test_a_completion_model_is_asked_again_where_it_went_elsewhere_or_ended() -> None:
    with fake_api([" Ada\nDied: 1852", " 1815", " 1815\nWork: notes\n"]) as api:
        backend = on(api, is_chat=False)
        state = character.run(backend=backend, max_new_tokens=8)
        assert [state[name] for name in ("name", "born", "work")] == [" Ada", " 1815", " 1815"]
        assert [body["prompt"] for body in api.bodies()] == [
            "Name:",
            "Name: Ada\nBorn:",
            "Name: Ada\nBorn: 1815\nWork:",
        ]
        assert [body["max_tokens"] for body in api.bodies()] == [64, 64, 64]
        backend.close()


def test_a_gen_without_a_stop_is_asked_by_itself() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=2) + sgl.gen("y", stop=".")

    with fake_api(["bcd", "e.f"]) as api:
        backend = on(api, is_chat=False)
        state = program.run(backend=backend)
        assert (state["x"], state["y"]) == ("bc", "e")
        assert api.bodies()[0]["max_tokens"] == 2
        backend.close()


def test_a_chat_model_writes_the_message_and_its_gens_are_found_in_it() -> None:
    with fake_api(["I think it is Ada", "Name: Ada\nBorn: 1815. Work: notes"]) as api:
        backend = on(api, is_chat=True)
        state = told.run(backend=backend)
        assert [state[name] for name in ("name", "born", "work")] == ["Ada", "1815", "notes"]
        assert state.messages()[-1] == {"role": "assistant", "content": "Name: Ada\nBorn: 1815. Work: notes"}
        first, second = api.bodies()
        assert first == second
        assert (first["max_tokens"], "stop" in first) == (64, False)
        assert first["messages"] == [{"role": "user", "content": "Who?"}]
        backend.close()


def test_what_never_matches_fails_instead_of_being_used() -> None:
    with fake_api(lambda _: "I think it is Ada") as api:
        backend = on(api, is_chat=True)
        state = told.run(backend=backend)
        with pytest.raises(ProgramError, match="asked ahead 3 times, and no answer matched") as caught:
            within_limit(lambda: state["born"])
        assert isinstance(caught.value.__cause__, RemoteError)
        assert len(api.bodies()) == 3
        backend.close()


def test_a_variable_may_be_read_before_its_message_ends() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += sgl.user("Who?")
        with s.assistant():
            s += "Name: " + sgl.gen("name", stop="\n")
            s["seen"] = s["name"].upper()

    with fake_api(["Name: Ada\nBorn: 1815"]) as api:
        backend = on(api, is_chat=True)
        state = within_limit(lambda: program.run(backend=backend))
        assert (state["seen"], state.messages()[-1]["content"]) == ("ADA", "Name: Ada")
        backend.close()


@pytest.mark.parametrize(
    ("gens", "match"),
    [
        (lambda: sgl.gen("x", temperature=0.5, stop=".") + "." + sgl.gen("y"), "must draw alike"),
        (lambda: sgl.gen("x", regex="a"), "take no type, regex"),
        (lambda: sgl.gen("x", n=2), "take no type, regex"),
    ],
)
def test_what_one_message_cannot_hold_is_refused_by_name(gens: Any, match: str) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += sgl.user("?") + sgl.assistant(gens())

    with fake_api(["a.b"]) as api:
        backend = on(api, is_chat=True)
        state = program.run(backend=backend)
        with pytest.raises(ProgramError, match=match) as caught:
            within_limit(lambda: state["x"])
        assert isinstance(caught.value.__cause__, InvalidParameterError)
        assert api.bodies() == []
        backend.close()


def test_a_cancelled_message_fails_the_gens_that_wait_for_its_end() -> None:
    states = []

    @sgl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        states.append(s)
        s += sgl.user("?") + sgl.assistant_begin() + sgl.gen("x")
        s.cancel()

    with fake_api(["a"]) as api:
        backend = on(api, is_chat=True)
        program.run(backend=backend)
        with pytest.raises(ProgramError):
            within_limit(lambda: states[0]["x"])
        backend.close()


def test_a_message_that_was_never_ended_is_asked_for_when_the_program_ends() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: Any) -> None:
        s += sgl.user("?") + sgl.assistant_begin() + sgl.gen("x")

    with fake_api(["a"]) as api:
        backend = on(api, is_chat=True)
        assert within_limit(lambda: program.run(backend=backend)["x"]) == "a"
        backend.close()


def test_models_that_are_not_remote_take_it_and_are_not_asked_ahead() -> None:
    backend = sgl.ScriptedBackend(["Ada", "1815", "notes"])
    state = told.run(backend=backend)
    assert [state[name] for name in ("name", "born", "work")] == ["Ada", "1815", "notes"]
    assert character.bind().num_api_spec_tokens == 64
