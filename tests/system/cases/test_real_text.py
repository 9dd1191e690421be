"""Cases that need real text or a real context, on SmolLM2 (A01 A03 A04 A05 A06 A10 A13 A15 A16, E02, I02).

What generates more than a few tokens is marked slow.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from support.case_checks import assert_refused, raw_body, resident_bytes, smollm2_server
from support.sse import chunks
from support.tiny_server import TinyServer

CONTEXT = 8192
BYTE_80 = 218
"""The token of SmolLM2 that is the lone byte 0x80."""
ALPHABET: dict[str, Any] = {"prompt": "Here is the English alphabet: ABC", "max_tokens": 64, "ignore_eos": True}
NEAR = 1e-3


@pytest.fixture(scope="module")
def running() -> Iterator[TinyServer]:
    with smollm2_server("--kv-cache-memory", "600MiB") as server:
        yield server


@pytest.fixture(scope="module")
def alphabet(running: TinyServer) -> str:
    text = running.text(**ALPHABET)
    assert "DEFGHIJ" in text
    return text


def stops_of(text: str, count: int) -> list[str]:
    """Draw parts of a text that occur in it first where they were cut."""
    drawn, stops = random.Random(1), []  # noqa: S311
    while len(stops) < count:
        start = drawn.randrange(len(text) - 2)
        stop = text[start : start + drawn.randint(2, 12)]
        if text.index(stop) == start:
            stops.append(stop)
    return stops


def try_stop(server: TinyServer, text: str, stop: str) -> None:
    start = text.index(stop)
    whole = server.complete(**ALPHABET, stop=[stop]).json()["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == (text[:start], "stop")
    received = ""
    for chunk in chunks(server.complete(**ALPHABET, stop=[stop], stream=True).text):
        received += chunk["choices"][0]["text"]
        assert len(received) <= start
    assert received == text[:start]
    assert server.text(**ALPHABET, stop=[stop], include_stop_str_in_output=True) == text[: start + len(stop)]


@pytest.mark.slow
def test_a01_a_stop_text_across_tokens_neither_leaks_nor_is_missed(server: TinyServer, alphabet: str) -> None:
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda stop: try_stop(server, alphabet, stop), stops_of(alphabet, 30)))


@pytest.mark.slow
def test_a01_a_stop_text_that_never_completes_holds_nothing_back(server: TinyServer, alphabet: str) -> None:
    for begun in (alphabet[3:9], alphabet[-4:], alphabet[-1:]):
        for is_stream in (False, True):
            assert server.text(**ALPHABET, stop=[begun + "\u0007"], stream=is_stream) == alphabet
        ended = server.complete(**ALPHABET, stop=[begun + "\u0007"]).json()["choices"][0]
        assert ended["finish_reason"] == "length"


def test_a03_a_lone_byte_is_replaced_and_its_logprob_says_which(server: TinyServer) -> None:
    fields: dict[str, Any] = {"logit_bias": {str(BYTE_80): 100}, "max_tokens": 5}
    body = server.complete(**fields, logprobs=1).json()
    assert body["choices"][0]["text"] == "\ufffd" * 5
    assert body["choices"][0]["logprobs"]["tokens"] == ["bytes:\\x80"] * 5
    assert body["usage"]["completion_tokens"] == 5
    assert server.text(**fields, stream=True) == "\ufffd" * 5
    whole = server.chat(**fields, logprobs=True, top_logprobs=0).json()["choices"][0]
    streamed = [c["choices"][0] for c in chunks(server.chat(**fields, logprobs=True, stream=True).text)]
    assert whole["message"]["content"] == "".join(c["delta"].get("content") or "" for c in streamed) == "\ufffd" * 5
    entries = [entry for c in streamed if c.get("logprobs") for entry in c["logprobs"]["content"]]
    for shown in (whole["logprobs"]["content"], entries):
        assert [entry["bytes"] for entry in shown] == [[0x80]] * 5


def test_a04_echo_without_new_tokens_scores_the_prompt(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": "Your answer: Yes", "echo": True}
    plain = server.complete(**fields, max_tokens=0).json()
    assert (plain["choices"][0]["text"], plain["choices"][0]["logprobs"]) == ("Your answer: Yes", None)
    body = server.complete(**fields, max_tokens=0, logprobs=1).json()
    scores = body["choices"][0]["logprobs"]["token_logprobs"]
    assert body["choices"][0]["text"] == "Your answer: Yes"
    assert body["usage"]["completion_tokens"] == 0
    assert len(scores) == body["usage"]["prompt_tokens"]
    assert scores[0] is None
    assert all(math.isfinite(score) and score <= 0 for score in scores[1:])
    longer = server.complete(**fields, max_tokens=1, logprobs=1).json()["choices"][0]["logprobs"]["token_logprobs"]
    assert longer[1 : len(scores)] == pytest.approx(scores[1:], abs=NEAR)


def test_a05_sampling_filters_do_not_reach_the_prompts_scores(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": "correct horse battery staple", "echo": True, "logprobs": 1, "max_tokens": 1}
    plain = server.complete(**fields).json()
    num_prompt = plain["usage"]["prompt_tokens"]
    expected = plain["choices"][0]["logprobs"]["token_logprobs"][1:num_prompt]
    for filters in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1}, {"repetition_penalty": 2, "presence_penalty": 2}):
        seen = server.complete(**{**fields, "temperature": 1, **filters}).json()["choices"][0]["logprobs"]
        assert seen["token_logprobs"][1:num_prompt] == pytest.approx(expected, abs=NEAR)
        assert all(math.isfinite(score) for score in seen["token_logprobs"][1:])


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-9])
def test_a10_a_very_small_temperature_is_greedy(server: TinyServer, temperature: float) -> None:
    fields: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 32, "ignore_eos": True}
    fields["return_token_ids"] = True
    cold = server.complete(**fields).json()["choices"][0]
    assert server.complete(**fields, temperature=temperature, seed=1).json()["choices"][0] == cold
    assert cold["text"]


def test_a13_a_prompt_longer_than_the_context_is_refused_with_both_numbers(server: TinyServer) -> None:
    for body in (
        {"messages": [{"role": "user", "content": "word " * (CONTEXT + 500)}]},
        {"messages": [{"role": "user", "content": "word " * (CONTEXT + 500)}], "stream": True},
    ):
        payload = {"model": "tiny", **body}
        error = assert_refused(server, "/v1/chat/completions", json.dumps(payload).encode(), names=f"{CONTEXT}")
        assert (error["code"], "-" in error["message"]) == ("context_length_exceeded", False)
    fields = {"model": '"tiny"', "prompt": json.dumps([70] * (CONTEXT - 8)), "max_tokens": "9"}
    error = assert_refused(server, "/v1/completions", raw_body(fields), names=f"{CONTEXT - 8}")
    assert error["code"] == "context_length_exceeded"


@pytest.mark.slow
def test_a13_an_answer_that_ends_with_the_context_ends_by_length(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": [70] * (CONTEXT - 8), "ignore_eos": True}
    for max_tokens in (8, None):
        body = server.complete(**fields, max_tokens=max_tokens).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["total_tokens"] == CONTEXT


REPEATED = ["Paris", "the cat", "yes", "one two", "la", "go", "red blue", "tick", "a b c", "no"]


def test_a15_penalties_of_the_answer_do_not_see_the_prompt(server: TinyServer) -> None:
    prompts = [" ".join([word] * count) for word in REPEATED for count in (4, 9)]
    fields: dict[str, Any] = {"prompt": prompts, "max_tokens": 1, "logprobs": 5}

    def chosen(**penalty: float) -> list[str]:
        choices = server.complete(**fields, **penalty).json()["choices"]
        return [choice["logprobs"]["tokens"][0] for choice in choices]

    plain = chosen()
    assert len(plain) == 20
    assert chosen(presence_penalty=2) == chosen(frequency_penalty=2) == plain
    assert chosen(repetition_penalty=1.5) != plain


@pytest.mark.slow
def test_a16_min_tokens_holds_back_every_end(server: TinyServer) -> None:
    dots = server.ids(".")
    assert len(dots) == 1
    ends = {0, 2, *dots}
    fields: dict[str, Any] = {"min_tokens": 20, "max_tokens": 40, "return_token_ids": True}
    fields |= {"stop_token_ids": [0, *dots], "stop": ["."]}
    body = server.chat("Reply with the single word ok.", **fields).json()
    assert body["usage"]["completion_tokens"] >= 20
    assert not ends & set(body["choices"][0]["token_ids"][:20])


class TimedStream(threading.Thread):
    """A stream read in a thread of its own, with the time of every token."""

    def __init__(self, server: TinyServer, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._server, self._fields = server, fields
        self.times_s: list[float] = []
        self.has_begun = threading.Event()

    def run(self) -> None:
        body = {"model": "tiny", "temperature": 0, "ignore_eos": True, "stream": True, **self._fields}
        with self._server.client.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.times_s.append(time.monotonic())
                    self.has_begun.set()


@pytest.mark.slow
def test_e02_a_short_request_overtakes_a_long_prefill_and_streams_go_on(server: TinyServer) -> None:
    drawn = random.Random(2)  # noqa: S311
    letters = {str(id_): 50.0 for id_ in server.ids("e")}
    decoding = TimedStream(server, prompt="Count:", max_tokens=400, logit_bias=letters)
    decoding.start()
    assert decoding.has_begun.wait(30)
    long = TimedStream(server, prompt=[drawn.randrange(300, 40000) for _ in range(7000)], max_tokens=1)
    began_s = time.monotonic()
    long.start()
    time.sleep(0.2)
    short = TimedStream(server, prompt=[drawn.randrange(300, 40000) for _ in range(20)], max_tokens=4)
    sent_s = time.monotonic()
    short.start()
    long.join(300)
    short.join(60)
    ended_s = long.times_s[0]
    assert short.times_s[0] - sent_s < (ended_s - sent_s) / 4
    during = [seen_s for seen_s in decoding.times_s if began_s < seen_s < ended_s]
    assert len(during) > 7
    gaps = [later - earlier for earlier, later in zip([began_s, *during], [*during, ended_s], strict=True)]
    assert max(gaps) < (ended_s - began_s) / 4
    decoding.join(120)


@pytest.mark.slow
def test_i02_scoring_a_long_prompt_never_holds_prompt_times_vocabulary(server: TinyServer) -> None:
    drawn = random.Random(4)  # noqa: S311
    processes = (psutil.Process(server.process.pid), server.engine)
    server.complete(prompt=[70] * 600, max_tokens=1, prompt_logprobs=1)
    before, peak, is_over = resident_bytes(*processes), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            peak[0] = max(peak[0], resident_bytes(*processes))

    watcher = threading.Thread(target=watch)
    watcher.start()
    prompt = [drawn.randrange(300, 40000) for _ in range(4000)]
    body = server.complete(prompt=prompt, max_tokens=1, prompt_logprobs=20).json()
    is_over.set()
    watcher.join()
    assert len(body["choices"][0]["prompt_logprobs"]) == 4000
    assert peak[0] - before < 300 << 20
