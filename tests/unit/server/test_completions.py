"""`/v1/completions`: prompts, shapes, streams (cases A03 to A08, A12, A13, A17)."""

from __future__ import annotations

from typing import Any

import pytest

from support.fake_engine import BOS_ID, MODEL_VOCAB, ByteTokenizer, FakeEngine, say
from support.server_site import MakeSite, Site
from support.sse import chunks, texts_by_index


def stop_words(prompt_ids: Any, choice: int, params: Any) -> list[int]:
    """Say a text that tells prompt and choice apart."""
    return list(f"<{len(prompt_ids)}.{choice}>".encode())


@pytest.mark.parametrize(
    "prompt", ["", [""], [], [[]], ["ok", ""], [[1], []], None, 5, {}, [1.5], [True], ["a", 1], [1, "a"], [[1], "a"],
               ["a", ["b"]], [[1.5]], [[True]], [None], [-1], [MODEL_VOCAB], [9223372036854775808], [1 << 70],
               [[1], [MODEL_VOCAB]]],
)  # fmt: skip
@pytest.mark.parametrize("is_stream", [False, True])
async def test_prompts_that_are_none_are_refused(site: Site, prompt: Any, is_stream: bool) -> None:
    response = await site.complete(prompt=prompt, stream=is_stream)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert site.engine.submitted == []


async def test_a_missing_prompt_is_refused(site: Site) -> None:
    response = await site.client.post("/v1/completions", json={"model": "tiny"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


async def test_the_last_id_of_the_vocabulary_is_a_prompt(site: Site) -> None:
    assert (await site.complete(prompt=[MODEL_VOCAB - 1])).status_code == 200
    assert (await site.complete(prompt=[MODEL_VOCAB - 1], echo=True, logprobs=1)).status_code == 200


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
async def test_all_forms_of_a_prompt_reach_the_engine(site: Site, prompt: Any, ids: list[list[int]]) -> None:
    response = await site.complete(prompt=prompt)
    assert [request.prompt_ids for request in site.engine.submitted] == ids
    assert response.json()["usage"]["prompt_tokens"] == sum(map(len, ids))


async def test_a_start_token_is_added_unless_it_is_not_wanted(make_site: MakeSite) -> None:
    site = make_site(tokenizer=ByteTokenizer(adds_bos=True))
    await site.complete(prompt="a")
    await site.complete(prompt="a", add_special_tokens=False)
    assert [request.prompt_ids for request in site.engine.submitted] == [[BOS_ID, 97], [97]]


async def test_the_whole_answer_has_openais_shape(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(say("Hé"), cached_len=1))
    body = (await site.complete(prompt="ab")).json()
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body.pop("system_fingerprint").startswith("trivium-")
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": "Hé", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


@pytest.mark.parametrize("slow", [0, 1, 2])
async def test_news_that_come_before_every_prompt_is_accepted_are_kept(make_site: MakeSite, slow: int) -> None:
    site = make_site(FakeEngine(stop_words))
    site.engine.slow_submissions = {slow}
    seen = chunks((await site.complete(prompt=["a", "bc", "def"], stream=True)).text)
    assert texts_by_index(seen) == {0: "<1.0>", 1: "<2.0>", 2: "<3.0>"}


async def test_cached_tokens_are_what_the_prompt_found_not_what_its_choices_share(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(stop_words, cached_len=1))
    for is_stream in (False, True):
        fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
        response = await site.complete(prompt=["abcd", "efgh"], n=3, **fields)
        usage = chunks(response.text)[-1]["usage"] if is_stream else response.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 2


@pytest.mark.parametrize("fields", [{}, {"logprobs": 0}, {"echo": True}, {"echo": True, "logprobs": 1}])
async def test_choices_of_several_prompts_come_in_order_and_are_counted(
    make_site: MakeSite, fields: dict[str, Any]
) -> None:
    site = make_site(FakeEngine(stop_words))
    request = {"prompt": ["red", "green", "b"], "n": 2, "seed": 1, **fields}
    body = (await site.complete(**request)).json()
    echoed = ["red", "red", "green", "green", "b", "b"] if fields.get("echo") else [""] * 6
    answers = ["<3.0>", "<3.1>", "<5.0>", "<5.1>", "<1.0>", "<1.1>"]
    expected = [echo + answer for echo, answer in zip(echoed, answers, strict=True)]
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [choice["text"] for choice in body["choices"]] == expected
    assert body["usage"]["prompt_tokens"] == 9
    assert body["usage"]["completion_tokens"] == 30

    streamed = chunks((await site.complete(**request, stream=True, stream_options={"include_usage": True})).text)
    assert texts_by_index(streamed) == dict(enumerate(expected))
    assert streamed[-1]["usage"] == body["usage"]
    finished = [c["index"] for chunk in streamed for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(finished) == list(range(6))


async def test_streamed_logprobs_join_to_the_whole_ones(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(say("Hé!")))
    request = {"prompt": ["ab", "c"], "n": 2, "echo": True, "logprobs": 2}
    whole = [choice["logprobs"] for choice in (await site.complete(**request)).json()["choices"]]
    joined: dict[int, dict[str, list[Any]]] = {}
    for chunk in chunks((await site.complete(**request, stream=True)).text):
        for choice in chunk["choices"]:
            for key, entries in choice["logprobs"].items():
                joined.setdefault(choice["index"], {}).setdefault(key, []).extend(entries)
    assert [joined[index] for index in range(4)] == whole


async def test_echo_without_new_tokens_scores_the_prompt(site: Site) -> None:
    body = (await site.complete(prompt="Yes", echo=True, max_tokens=0, logprobs=1)).json()
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Yes", "length")
    assert choice["logprobs"]["tokens"] == ["Y", "e", "s"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25]
    assert choice["logprobs"]["top_logprobs"] == [None, {"e": -0.25}, {"s": -0.25}]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 0,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_offsets_point_into_the_echoed_text_where_a_start_token_was_added(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(say("é!")), tokenizer=ByteTokenizer(adds_bos=True))
    choice = (await site.complete(prompt="a<|im_end|>é", echo=True, logprobs=0)).json()["choices"][0]
    assert choice["text"] == "a<|im_end|>éé!"
    assert choice["logprobs"]["tokens"][:4] == ["<s>", "a", "<|im_end|>", "bytes:\\xc3"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 11, 11, 12, 12, 13, 14]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_echo_without_new_tokens_and_scores_is_the_prompt(site: Site, is_stream: bool) -> None:
    response = await site.complete(prompt=["Yes", "No"], echo=True, max_tokens=0, stream=is_stream)
    if is_stream:
        assert texts_by_index(chunks(response.text)) == {0: "Yes", 1: "No"}
    else:
        assert [choice["text"] for choice in response.json()["choices"]] == ["Yes", "No"]


async def test_prompt_scores_do_not_depend_on_new_tokens(site: Site) -> None:
    without = (await site.complete(prompt="Yes", echo=True, max_tokens=0, logprobs=1)).json()
    one = (await site.complete(prompt="Yes", echo=True, max_tokens=1, logprobs=1)).json()
    for key, entries in without["choices"][0]["logprobs"].items():
        assert one["choices"][0]["logprobs"][key][:3] == entries


@pytest.mark.parametrize("count", [0, 1, 5])
async def test_logprobs_have_one_entry_per_token(site: Site, count: int) -> None:
    body = (await site.complete(logprobs=count, max_tokens=4)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert [len(entries) for entries in logprobs.values()] == [4] * 4
    assert [len(top) for top in logprobs["top_logprobs"]] == [max(1, count)] * 4


@pytest.mark.parametrize("is_stream", [False, True])
async def test_output_that_is_no_utf8_is_replaced_and_its_bytes_are_exact(make_site: MakeSite, is_stream: bool) -> None:
    site = make_site(FakeEngine(lambda *_: [0x80] * 5))
    response = await site.complete(max_tokens=5, logprobs=1, stream=is_stream)
    if is_stream:
        seen = chunks(response.text)
        assert texts_by_index(seen) == {0: "\ufffd" * 5}
        tokens = [token for chunk in seen for token in chunk["choices"][0]["logprobs"]["tokens"]]
    else:
        body = response.json()
        assert body["choices"][0]["text"] == "\ufffd" * 5
        assert body["usage"]["completion_tokens"] == 5
        tokens = body["choices"][0]["logprobs"]["tokens"]
    assert tokens == ["bytes:\\x80"] * 5


async def test_characters_are_never_cut_between_events(make_site: MakeSite) -> None:
    text = "🐱 日本語 é 👩‍👩‍👧"
    site = make_site(FakeEngine(say(text)))
    seen = chunks((await site.complete(stream=True, max_tokens=100)).text)
    assert texts_by_index(seen) == {0: text}
    assert all("\ufffd" not in choice["text"] for chunk in seen for choice in chunk["choices"])


async def test_the_usage_chunk_is_last_single_and_only_on_request(site: Site) -> None:
    plain = chunks((await site.complete(stream=True)).text)
    assert all("usage" not in chunk for chunk in plain)
    counted = chunks((await site.complete(stream=True, stream_options={"include_usage": True})).text)
    assert [chunk["choices"] for chunk in counted if "usage" in chunk] == [[]]
    assert "usage" in counted[-1]
    whole = (await site.complete()).json()["usage"]
    assert counted[-1]["usage"] == whole


async def test_every_chunk_carries_the_same_identity(site: Site) -> None:
    seen = chunks((await site.complete(stream=True, n=2)).text)
    identities = {(c["id"], c["object"], c["created"], c["model"], c["system_fingerprint"]) for c in seen}
    assert len(identities) == 1


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "status"),
    [(504, 8, 200), (504, 9, 400), (504, None, 200), (511, None, 200), (512, None, 400), (512, 1, 400), (512, 0, 200),
     (513, 0, 400), (600, 16, 400), (3, 510, 400)],
)  # fmt: skip
async def test_prompt_and_answer_must_fit_the_context(
    site: Site, prompt_len: int, max_tokens: int | None, status: int, is_stream: bool
) -> None:
    response = await site.complete(prompt=[1] * prompt_len, max_tokens=max_tokens, ignore_eos=True, stream=is_stream)
    assert response.status_code == status
    if status == 400:
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "512" in error["message"]
        assert str(prompt_len) in error["message"]
        assert "-" not in error["message"]
    elif not is_stream:
        body = response.json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["total_tokens"] <= 512


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "words", "param"),
    [
        (
            500,
            30,
            "too long for the answer that was asked for: 500 tokens of prompt and 30 of answer are 530",
            "max_tokens",
        ),
        (513, 30, "too long: it has 513 tokens. Please shorten the prompt.", "prompt"),
        (513, 0, "too long: it has 513 tokens. Please shorten the prompt.", "prompt"),
        (
            512,
            None,
            "too long: it has 512 tokens and the answer needs at least 1.",
            "prompt",
        ),
    ],
)
async def test_what_does_not_fit_is_said_in_the_words_that_clients_look_for(
    site: Site, prompt_len: int, max_tokens: int | None, words: str, param: str
) -> None:
    error = (await site.complete(prompt=[1] * prompt_len, max_tokens=max_tokens)).json()["error"]
    assert words in error["message"]
    assert error["param"] == param
    assert "maximum context length is 512 tokens" in error["message"]
    assert "prompt is too long" in error["message"]


async def test_the_engines_own_context_limit_wins(make_site: MakeSite) -> None:
    site = make_site()
    site.engine.condition.info = {"max_model_len": 100}
    response = await site.complete(prompt=[1] * 99, max_tokens=2)
    assert response.status_code == 400
    assert "100" in response.json()["error"]["message"]


async def test_the_most_likely_answers_of_best_of_are_returned_best_first(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(stop_words))
    body = (await site.complete(prompt="ab", best_of=3, n=2)).json()
    # The fake engine makes choice 0 the least likely one.
    assert [choice["text"] for choice in body["choices"]] == ["<2.1>", "<2.2>"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 15
    assert site.engine.submitted[0].params.num_draws == 3


async def test_prompt_logprobs_have_vllms_shape(site: Site) -> None:
    body = (await site.complete(prompt="ab", prompt_logprobs=1)).json()
    entry = {"logprob": -0.25, "rank": 1, "decoded_token": "b"}
    assert body["choices"][0]["prompt_logprobs"] == [None, {"98": entry}]
    late = (await site.complete(prompt="abc", prompt_logprobs=0, prompt_logprob_start=2)).json()
    assert [list(entry) for entry in late["choices"][0]["prompt_logprobs"]] == [["99"]]


async def test_token_ids_are_returned_on_request(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(say("ab")))
    choice = (await site.complete(prompt="x", return_token_ids=True)).json()["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([120], [97, 98, 257])
    seen = chunks((await site.complete(prompt="x", return_token_ids=True, stream=True)).text)
    assert [id_ for chunk in seen for id_ in chunk["choices"][0]["token_ids"]] == [97, 98, 257]
    assert [chunk["choices"][0].get("prompt_token_ids") for chunk in seen] == [[120], None, None]
