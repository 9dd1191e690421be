"""`/v1/chat/completions`: messages, templates, shapes (cases A06, C04 to C06, I03)."""

from __future__ import annotations

from typing import Any

import pytest

from support.fake_engine import BOS_ID, IM_START_ID, ByteTokenizer, FakeEngine, JoiningTemplate, say
from support.server_site import MakeSite, Site
from support.sse import chunks, texts_by_index


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def test_the_whole_answer_has_openais_shape(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(say("Hi")))
    body = (await site.chat()).json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert "tool_calls" not in body["choices"][0]["message"]
    assert body["usage"]["completion_tokens"] == 3


async def test_a_stream_opens_with_the_role_and_closes_with_the_reason(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(say("Hi")))
    seen = chunks((await site.chat(stream=True)).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in seen]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "H"}, {"content": "i"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in seen] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in seen} == {"chat.completion.chunk"}


async def test_choices_of_a_stream_are_told_apart(site: Site) -> None:
    seen = chunks((await site.chat(stream=True, n=3, max_tokens=2)).text)
    assert texts_by_index(seen) == {0: "ab", 1: "bc", 2: "cd"}


@pytest.mark.parametrize(("fields", "num_top"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 2}, 2)])
async def test_logprobs_have_one_entry_per_token_and_exact_bytes(
    make_site: MakeSite, fields: dict[str, Any], num_top: int
) -> None:
    site = make_site(FakeEngine(lambda *_: [0x80, 97]))
    body = (await site.chat(logprobs=True, max_tokens=2, **fields)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["bytes"]) for entry in content] == [("\ufffd", [0x80]), ("a", [97])]
    assert [len(entry["top_logprobs"]) for entry in content] == [num_top] * 2
    seen = chunks((await site.chat(logprobs=True, max_tokens=2, stream=True, **fields)).text)
    streamed = [entry for c in seen for entry in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        {},
        "hi",
        ["hi"],
        [{}],
        [{"content": "x"}],
        [{"role": "king", "content": "x"}],
        [{"role": 5, "content": "x"}],
        [{"role": "user"}],
        [user(None)],
        [user(5)],
        [user({"type": "text", "text": "x"})],
        [user([5])],
        [user([{"text": "x"}])],
        [user([{"type": "text"}])],
        [user([{"type": "text", "text": 5}])],
        [{**user("x"), "nmae": "y"}],
        [{**user("x"), "name": 5}],
        [{**user("x"), "tool_calls": [{"function": {"name": "f"}}]}],
        [{"role": "assistant", "tool_calls": "f"}],
        [{"role": "assistant", "tool_calls": [{"function": "f"}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
        [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}],
    ],
)
async def test_messages_of_a_wrong_shape_are_refused(site: Site, messages: Any) -> None:
    response = await site.chat(messages=messages)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "video_url", "video_url": {"url": "http://127.0.0.1:1/"}},
    ],
)
async def test_parts_that_are_no_text_are_refused_and_never_fetched(site: Site, part: dict[str, Any]) -> None:
    response = await site.chat(messages=[user([{"type": "text", "text": "what is this?"}, part])])
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "messages")
    assert "messages[0].content[1]" in error["message"]


async def test_an_assistant_turn_without_content_is_the_empty_text(site: Site) -> None:
    counts = set()
    for turn in ({"content": ""}, {"content": None}, {}, {"content": []}, {"content": None, "refusal": None}):
        messages = [user("a"), {"role": "assistant", **turn}, user("b")]
        body = (await site.chat(messages=messages)).json()
        counts.add(body["usage"]["prompt_tokens"])
    assert len(counts) == 1
    assert site.template.seen[1]["content"] == ""


async def test_text_parts_are_joined(site: Site) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert (await site.chat(messages=[user(parts)])).status_code == 200
    assert site.template.seen[0]["content"] == "a\nb"


@pytest.mark.parametrize(("arguments", "parsed"), [("{", "{"), ('{"x": 1}', {"x": 1}), ("[1]", "[1]"), ("", {})])
async def test_replayed_tool_turns_reach_the_template(site: Site, arguments: str, parsed: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        user("a"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "unknown", "content": [{"type": "text", "text": "42"}]},
    ]
    assert (await site.chat(messages=messages)).status_code == 200
    assert site.template.seen[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": parsed}
    assert site.template.seen[2] == {"role": "tool", "content": "42", "tool_call_id": "unknown"}


async def test_an_answer_can_be_sent_back_as_the_client_library_writes_it(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(say("Hi")))
    answer = (await site.chat()).json()["choices"][0]["message"]
    written = {**answer, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    response = await site.chat(messages=[user("a"), written, user("b")])
    assert response.status_code == 200


async def test_the_developers_turn_is_the_systems(site: Site) -> None:
    await site.chat(messages=[{"role": "developer", "content": "be brief"}, user("a")])
    assert site.template.seen[0]["role"] == "system"


async def test_several_system_turns_all_count(site: Site) -> None:
    one = (await site.chat(messages=[{"role": "system", "content": "x"}, user("a")])).json()["usage"]
    two = (await site.chat(messages=[{"role": "system", "content": "x"}] * 2 + [user("a")])).json()["usage"]
    assert two["prompt_tokens"] > one["prompt_tokens"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_what_the_template_refuses_is_a_400_in_its_own_words(make_site: MakeSite, is_stream: bool) -> None:
    site = make_site(template=JoiningTemplate(refuses="System role not supported"))
    response = await site.chat(stream=is_stream)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("template_error", "messages")
    assert "System role not supported" in error["message"]


async def test_a_model_without_a_template_refuses_chat_and_says_so(site: Site) -> None:
    site.app.state.service.chat_template = None
    response = await site.chat()
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]


async def test_the_prompt_has_the_templates_special_tokens_and_no_others(make_site: MakeSite) -> None:
    site = make_site(tokenizer=ByteTokenizer(adds_bos=True))
    body = (await site.chat()).json()
    ids = site.engine.submitted[0].prompt_ids
    assert ids[0] == IM_START_ID
    assert BOS_ID not in ids
    assert body["usage"]["prompt_tokens"] == len(ids)
    await site.chat(add_special_tokens=True)
    assert site.engine.submitted[1].prompt_ids == [BOS_ID, *ids]


async def test_the_final_message_can_be_continued(site: Site) -> None:
    messages = [user("a"), {"role": "assistant", "content": "The answer is "}]
    await site.chat(messages=messages, continue_final_message=True)
    text = ByteTokenizer().decode(site.engine.submitted[0].prompt_ids, skip_special_tokens=False)
    assert text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nThe answer is "


async def test_template_fields_are_passed_on_or_refused(site: Site) -> None:
    assert (await site.chat(add_generation_prompt=False, chat_template_kwargs={"suffix": "!"})).status_code == 200
    text = ByteTokenizer().decode(site.engine.submitted[0].prompt_ids, skip_special_tokens=False)
    assert text.endswith("<|im_end|>\n!")
    for fields in (
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"self": 1}},
        {"chat_template_kwargs": []},
        {"continue_final_message": True, "add_generation_prompt": True},
    ):
        assert (await site.chat(**fields)).status_code == 400


async def test_chat_that_does_not_fit_is_refused_with_limit_and_count(site: Site) -> None:
    response = await site.chat(messages=[user("x" * 1000)], stream=True)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "512" in error["message"]
    assert "1019" in error["message"]


async def test_max_completion_tokens_and_max_tokens_mean_the_same(site: Site) -> None:
    await site.chat(max_completion_tokens=7)
    await site.chat(max_tokens=7, max_completion_tokens=7)
    assert [request.params.max_tokens for request in site.engine.submitted] == [7, 7]


async def test_prompt_logprobs_and_ids_are_at_the_top(site: Site) -> None:
    body = (await site.chat(prompt_logprobs=0, return_token_ids=True, max_tokens=2)).json()
    ids = site.engine.submitted[0].prompt_ids
    assert body["prompt_token_ids"] == ids
    assert len(body["prompt_logprobs"]) == len(ids)
    assert body["choices"][0]["token_ids"] == [97, 98]
    seen = chunks((await site.chat(return_token_ids=True, max_tokens=2, stream=True)).text)
    assert seen[0]["prompt_token_ids"] == ids
