"""Programs inside the server, on the tiny model: what a run answers, tells, refuses, suspends and frees."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import trivium.lang as sgl
from support.server_process import ServerProcess
from support.tiny_engine import tiny_model
from trivium.base.errors import RemoteError

ADMIN = {"authorization": "Bearer boss-admin-key"}
LIMIT_S = 30
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]"
    "{% endif %}"
)
FLAGS = (
    "--kv-cache-memory", "1MiB", "--threads", "1", "--served-model-name", "tiny", "--admin-key", "boss-admin-key",
    "--chat-template", TEMPLATE, "--max-program-steps", "60", "--max-program-branches", "8",
    "--max-program-tokens", "300", "--max-program-tool-s", "3",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs") / "published"


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with (
        ServerProcess(tiny_model(), *FLAGS, "--programs-dir", str(folder)) as running,
        httpx.Client(base_url=running.url, timeout=LIMIT_S) as own,
    ):
        yield own
        assert own.get("/v1/cache/check", headers=ADMIN).json() == {"differences": []}


def gen(name: str, **options: Any) -> dict[str, Any]:
    return {"kind": "gen", "name": name, "options": {"max_tokens": 5, "temperature": 0, "ignore_eos": True, **options}}


def program(*body: Any, params: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    said = [{"kind": "say", "text": each} if isinstance(each, str) else each for each in body]
    return {"version": 1, "name": "p", "params": [{"name": name} for name in params], "body": said, **fields}


def run(client: httpx.Client, *body: Any, **fields: Any) -> httpx.Response:
    made = program(*body, params=tuple(fields.get("arguments", {})))
    return client.post("/v1/programs", json={"model": "tiny", "program": made, **fields})


def events_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def error_of(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    return found


SEARCH = {"kind": "tool", "tool": "search", "args": {"query": {"$var": "x"}}, "into": "found"}


def test_a_run_answers_with_its_variables_and_text(client: httpx.Client) -> None:
    plain = client.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": "hello Ada", "max_tokens": 5, "temperature": 0, "ignore_eos": True},
    )
    answer = run(
        client, {"kind": "say", "text": {"$text": ["hello ", {"$arg": "who"}]}}, gen("x"), arguments={"who": "Ada"}
    )
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["variables"] == {"x": plain.json()["choices"][0]["text"]}
    assert found["text"] == "hello Ada" + found["variables"]["x"]
    assert found["usage"]["completion_tokens"] == 5
    assert found["program"] == "p"


def test_a_stream_tells_of_every_variable(client: httpx.Client) -> None:
    fork = {"kind": "fork", "name": "f", "branches": [[gen("a")], [gen("b")]]}
    with client.stream(
        "POST",
        "/v1/programs",
        json={"program": program("hi", gen("x"), fork, {"kind": "join", "fork": "f"}), "stream": True},
    ) as response:
        events = list(events_of(response))
    assert events[0]["type"] == "run.started"
    ended = events[-1]
    assert ended["type"] == "run.ended"
    for name in ("x", "a", "b"):
        own = [each for each in events if each.get("name") == name]
        kinds = [each["type"] for each in own if not isinstance(each.get("value"), list)]
        text = "".join(each["text"] for each in own if each["type"] == "variable.delta")
        assert kinds[0] == "variable.started"
        values = [each["value"] for each in own if each["type"] == "variable.value" and isinstance(each["value"], str)]
        assert values == [text]
    assert ended["variables"]["x"] == "".join(
        each["text"] for each in events if each["type"] == "variable.delta" and each["name"] == "x"
    )
    assert isinstance(ended["variables"]["a"], list)


def test_a_tool_suspends_the_program_until_its_result_is_posted(client: httpx.Client) -> None:
    body = {
        "program": program("hi", gen("x"), SEARCH, {"kind": "say", "text": {"$var": "found"}}, gen("y")),
        "stream": True,
    }
    with client.stream("POST", "/v1/programs", json=body) as response:
        events = events_of(response)
        run_id = next(events)["run_id"]
        call = next(each for each in events if each["type"] == "tool.call")
        assert (call["tool"], list(call["args"]), call["expires_in_s"]) == ("search", ["query"], 3.0)
        where = f"/v1/programs/runs/{run_id}/tools/{call['call_id']}"
        assert client.post(where, json={"result": " a fox"}).json()["resumed"] is True
        assert client.post(where, json={"result": "again"}).status_code == 404
        ended = list(events)[-1]
    assert ended["type"] == "run.ended"
    assert " a fox" in ended["text"]
    assert client.post(where, json={"result": 1}).status_code == 404


def test_a_tool_that_fails_or_is_not_answered_ends_the_program_by_name(client: httpx.Client) -> None:
    body = {"program": program("hi", gen("x"), SEARCH), "stream": True}
    for answer, told in (({"error": "no network"}, "no network"), (None, "max_program_tool_s")):
        with client.stream("POST", "/v1/programs", json=body) as response:
            events = events_of(response)
            run_id = next(events)["run_id"]
            call = next(each for each in events if each["type"] == "tool.call")
            if answer:
                client.post(f"/v1/programs/runs/{run_id}/tools/{call['call_id']}", json=answer)
            failed = list(events)[-1]
        assert failed["type"] == "run.error"
        assert told in failed["error"]["message"]


def test_tools_need_a_stream(client: httpx.Client) -> None:
    answer = run(client, "hi", gen("x"), SEARCH)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "stream"


LOOP = {"$op": "==", "of": [1, 1]}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (["hi", {"kind": "while", "condition": LOOP, "max_steps": 1000, "body": [{"kind": "say", "text": "x"}]}],
         "max_program_steps"),
        (["hi", {"kind": "fork", "name": "f", "branches": [[gen("a")]] * 9}], "max_program_branches"),
        (["hi", gen("x", max_tokens=400)], "max_program_tokens"),
        ([{"kind": "set", "name": "v", "value": "a" * 1000},
          {"kind": "while", "condition": LOOP, "max_steps": 50, "body": [
              {"kind": "set", "name": "v", "value": {"$text": [{"$var": "v"}, {"$var": "v"}]}}]}], "more text"),
        ([{"kind": "set", "name": "v", "value": [1]},
          {"kind": "while", "condition": LOOP, "max_steps": 50, "body": [
              {"kind": "set", "name": "v", "value": [{"$var": "v"}, {"$var": "v"}]}]}], "more text"),
    ],
    ids=["steps", "branches", "tokens", "a text that doubles", "a list that doubles"],
)  # fmt: skip
def test_what_a_program_may_do_is_limited_by_name(client: httpx.Client, body: list[Any], told: str) -> None:
    answer = run(client, *body)
    assert answer.status_code == 400, answer.text
    assert told in error_of(answer)["message"]


@pytest.mark.parametrize(
    "hostile",
    [
        None, 5, [], {}, {"version": 1, "name": "p"}, {"version": 2, "name": "p", "body": []},
        program({"kind": "exec", "code": "import os"}), program({"kind": "say", "text": {"$var": "unset"}}),
        program({"kind": "say"}), program(gen("x", max_tokens="many")), program(gen("x", top_k={"$arg": "none"})),
        program(gen("x", n="x")), program(gen("x", stop=5)), program(gen("x", json_schema=5)), program(gen("x", n=-1)),
        program({"kind": "select", "name": "s", "choices": [{"$text": []}]}),
        program(gen("x", stop_token_ids={"a": 1})),
        program(gen("x", dtype="int", temperature=[])), program(gen("x", structural_tag="{")),
        program(gen("x", regex="(" * 50)), program({"kind": "tool", "tool": "", "into": "x"}),
        program({"kind": "say", "text": {"$text": [{"$var": "__class__"}]}}),
        {"version": 1, "name": "p", "body": [], "result": {"$op": "eval", "of": ["1"]}},
    ],
)  # fmt: skip
def test_what_is_no_program_is_a_400(client: httpx.Client, hostile: Any) -> None:
    answer = client.post("/v1/programs", json={"program": hostile})
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["message"]


def test_deep_nesting_is_a_400(client: httpx.Client) -> None:
    deep: Any = {"kind": "say", "text": "x"}
    for _ in range(200):
        deep = {"kind": "role", "role": "user", "body": [deep]}
    assert run(client, deep).status_code == 400


@pytest.mark.parametrize("arguments", [{}, {"who": "a", "else": 1}, [], "who"])
def test_arguments_must_fit(client: httpx.Client, arguments: Any) -> None:
    made = program({"kind": "say", "text": {"$arg": "who"}}, params=("who",))
    answer = client.post("/v1/programs", json={"program": made, "arguments": arguments})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "arguments"


def test_an_error_of_a_gen_is_told_with_its_place(client: httpx.Client) -> None:
    answer = run(client, "hi", gen("x", temperature=-1))
    assert answer.status_code == 400
    assert "p:body[1]" in error_of(answer)["message"]


def wait_until_idle(client: httpx.Client) -> None:
    end_s = time.monotonic() + LIMIT_S
    while client.get("/v1/requests", headers=ADMIN).json().get("data"):
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_who_goes_away_or_cancels_frees_everything(client: httpx.Client) -> None:
    body = {"program": program("hi", gen("x"), SEARCH), "stream": True}
    with client.stream("POST", "/v1/programs", json=body) as response:
        events = events_of(response)
        run_id = next(events)["run_id"]
        next(each for each in events if each["type"] == "tool.call")
        assert client.delete(f"/v1/programs/runs/{run_id}").json()["cancelled"] is True
        failed = list(events)[-1]
    assert failed["type"] == "run.error"
    assert "cancelled" in failed["error"]["message"]
    with client.stream("POST", "/v1/programs", json=body) as response:
        run_id = next(events_of(response))["run_id"]
    end_s = time.monotonic() + LIMIT_S
    while client.delete(f"/v1/programs/runs/{run_id}").status_code != 404:
        assert time.monotonic() < end_s
        time.sleep(0.02)
    wait_until_idle(client)


def test_many_programs_run_side_by_side(client: httpx.Client) -> None:
    answers: list[int] = []

    def one() -> None:
        answers.append(run(client, "hello", gen("x"), gen("y")).status_code)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert answers == [200] * 8


def test_publishing_needs_the_admin_key(client: httpx.Client) -> None:
    body = {"program": program("hi", gen("x"))}
    assert client.put("/v1/programs/greet", json=body).status_code == 401
    assert client.delete("/v1/programs/greet").status_code == 401


def test_a_published_program_has_versions_and_runs_by_name(client: httpx.Client, folder: Path) -> None:
    first = program("hi ", {"kind": "say", "text": {"$arg": "who"}}, gen("x"), params=("who",))
    second = program("bye ", {"kind": "say", "text": {"$arg": "who"}}, gen("x"), params=("who",))
    made = client.put("/v1/programs/greet", json={"program": first}, headers=ADMIN)
    assert (made.status_code, made.json()["version"]) == (201, 1)
    assert client.put("/v1/programs/greet", json={"program": first}, headers=ADMIN).status_code == 200
    assert client.put("/v1/programs/greet", json={"program": second}, headers=ADMIN).json()["version"] == 2
    assert client.get("/v1/programs").json()["data"][0]["versions"] == [1, 2]
    shown = client.get("/v1/programs/greet", params={"version": 1}).json()
    assert shown["program"] == first
    assert shown["arguments"]["required"] == ["who"]
    assert shown["variables"]["properties"] == {"x": {"type": "string"}}
    newest = client.post("/v1/programs/greet", json={"arguments": {"who": "Ada"}}).json()
    oldest = client.post("/v1/programs/greet", json={"arguments": {"who": "Ada"}, "version": 1}).json()
    assert newest["text"].startswith("bye Ada")
    assert oldest["text"].startswith("hi Ada")
    assert client.post("/v1/programs/greet", json={"version": 3}).status_code == 404
    path = client.get("/openapi.json").json()["paths"]["/v1/programs/greet"]["post"]
    schema = path["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["arguments"]["required"] == ["who"]
    files = list(folder.iterdir())
    assert [(each.name, each.stat().st_mode & 0o777) for each in files] == [("greet.json", 0o600)]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert client.delete("/v1/programs/greet", params={"version": 2}, headers=ADMIN).status_code == 200
    assert client.get("/v1/programs/greet").json()["versions"] == [1]


def test_names_that_are_none_are_refused(client: httpx.Client) -> None:
    for name in ("..", "a.b", "-x", "x" * 65, "%2e%2e%2fx"):
        answer = client.put(f"/v1/programs/{name}", json={"program": program("hi")}, headers=ADMIN)
        assert answer.status_code in {400, 404, 405}, name


def test_defaults_hold_for_gens_that_do_not_say_otherwise(client: httpx.Client) -> None:
    plain = {"kind": "gen", "name": "x"}
    long, short = (
        run(client, "hi", plain, temperature=0, ignore_eos=True, max_tokens=count).json()["variables"]["x"]
        for count in (9, 3)
    )
    assert long.startswith(short)
    assert len(long) > len(short)
    stopped = run(client, "hi", plain, temperature=0, ignore_eos=True, max_tokens=9, stop=long[0]).json()
    assert stopped["variables"]["x"] == ""
    drawn = {run(client, "hi", plain, temperature=5, ignore_eos=True, max_tokens=9).json()["text"] for _ in range(3)}
    assert len(drawn) > 1


def test_salts_are_apart_and_a_run_finds_its_own_path(client: httpx.Client) -> None:
    def cached(salt: str) -> int:
        answer = run(client, "a sentence of some length", gen("x", max_tokens=1), cache_salt=salt)
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached("one"), cached("one") > 0, cached("two")] == [0, True, 0]


def test_only_whose_run_it_is_may_resume_or_end_it() -> None:
    keys = {name: {"authorization": f"Bearer {name}-secret-key"} for name in ("ann", "bob")}
    flags = [word for name in keys for word in ("--api-key", f"{name}={name}-secret-key")]
    with (
        ServerProcess(tiny_model(), *FLAGS, *flags) as running,
        httpx.Client(base_url=running.url, timeout=LIMIT_S) as own,
    ):
        body = {"program": program("hi", gen("x"), SEARCH), "stream": True}
        assert own.post("/v1/programs", json=body).status_code == 401
        with own.stream("POST", "/v1/programs", json=body, headers=keys["ann"]) as response:
            events = events_of(response)
            run_id = next(events)["run_id"]
            call = next(each for each in events if each["type"] == "tool.call")
            where = f"/v1/programs/runs/{run_id}/tools/{call['call_id']}"
            for headers, status in (({}, 401), (keys["bob"], 404)):
                assert own.post(where, json={"result": 1}, headers=headers).status_code == status
                assert own.delete(f"/v1/programs/runs/{run_id}", headers=headers).status_code == status
            assert own.post(where, json={"result": 1}, headers=ADMIN).status_code == 200
            assert list(events)[-1]["type"] == "run.ended"
        put = own.put("/v1/programs/greet", json={"program": program("hi")}, headers=keys["ann"])
        assert put.status_code == 401
        refused = own.put("/v1/programs/greet", json={"program": program("hi")}, headers=ADMIN)
        assert refused.status_code == 409
        assert "--programs-dir" in error_of(refused)["message"]


def test_a_trace_publishes_itself(client: httpx.Client) -> None:
    @sgl.function
    def hail(s: Any, who: str) -> None:
        s += "hail " + who + sgl.gen("x", max_tokens=2)

    trace = hail.trace()
    assert trace.publish(str(client.base_url), admin_key="boss-admin-key") == 1
    assert trace.publish(str(client.base_url), admin_key="boss-admin-key") == 1
    answer = client.post("/v1/programs/hail", json={"arguments": {"who": "Ada"}}).json()
    assert answer["text"].startswith("hail Ada")
    for url, key, told in (
        (str(client.base_url), "wrong-key", "401"),
        ("http://127.0.0.1:1", "any-key", "127.0.0.1:1"),
    ):
        with pytest.raises(RemoteError, match=told):
            trace.publish(url, admin_key=key)
    assert client.delete("/v1/programs/hail", headers=ADMIN).status_code == 200
