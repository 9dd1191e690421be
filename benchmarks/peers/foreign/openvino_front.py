"""OpenAI's /v1/completions over the continuous batching of OpenVINO GenAI; run by the Python that has it.

Needs openvino-genai, aiohttp and tokenizers, and nothing of this repository. Greedy only, `ignore_eos` is honoured,
anything but streams of token ids or a text is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
import openvino_genai
from aiohttp import web
from tokenizers import Tokenizer

Put = Callable[[list[int], bool], None]
"""Told of new tokens, and whether they are the last."""
_KNOWN = {"model", "prompt", "max_tokens", "temperature", "ignore_eos", "stream", "stream_options"}


class Pipeline(threading.Thread):
    """The engine's steps, in a thread of their own; waits while there is nothing to do."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        schedule = openvino_genai.SchedulerConfig()
        schedule.cache_size = options.kv_gb
        schedule.max_num_batched_tokens = options.max_num_batched_tokens
        schedule.max_num_seqs = options.max_num_seqs
        schedule.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": options.threads}
        self._engine = openvino_genai.ContinuousBatchingPipeline(options.model, schedule, "CPU", properties)
        self._arrived = threading.Condition()
        self._new: list[tuple[list[int], Any, Put]] = []
        self._num_requests = 0

    def submit(self, ids: list[int], config: Any, put: Put) -> None:
        """Queue a prompt; `put` is called in this object's thread."""
        with self._arrived:
            self._new.append((ids, config, put))
            self._arrived.notify()

    def run(self) -> None:
        """Step for ever."""
        live: list[tuple[Any, Put]] = []
        while True:
            with self._arrived:
                while not self._new and not live:
                    self._arrived.wait()
                new, self._new = self._new, []
            live += [self._begin(ids, config, put) for ids, config, put in new]
            self._engine.step()
            live = [(handle, put) for handle, put in live if not self._pass_on(handle, put)]

    def _begin(self, ids: list[int], config: Any, put: Put) -> tuple[Any, Put]:
        self._num_requests += 1
        tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
        return self._engine.add_request(self._num_requests, tensor, config), put

    @staticmethod
    def _pass_on(handle: Any, put: Put) -> bool:
        """Hand over what is new; returns whether the request has ended."""
        tokens: list[int] = []
        while handle.can_read():
            for output in handle.read().values():
                tokens += list(output.generated_ids)
        has_ended = bool(handle.get_status() != openvino_genai.GenerationStatus.RUNNING)
        if tokens or has_ended:
            put(tokens, has_ended)
        return has_ended


class Front:
    """The HTTP side."""

    def __init__(self, pipeline: Pipeline, tokenizer: Tokenizer) -> None:
        self._pipeline = pipeline
        self._tokenizer = tokenizer

    async def models(self, request: web.Request) -> web.Response:
        """Name the model."""
        return web.json_response({"object": "list", "data": [{"id": "openvino", "object": "model"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer a prompt as a stream, or whole."""
        body = await request.json()
        if unknown := sorted(set(body) - _KNOWN) or (["temperature"] if body.get("temperature") else []):
            raise web.HTTPBadRequest(text=f"{unknown[0]} is not supported")
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else self._tokenizer.encode(prompt, add_special_tokens=False).ids
        loop, news = asyncio.get_running_loop(), asyncio.Queue[tuple[list[int], bool]]()

        def put(tokens: list[int], has_ended: bool) -> None:  # noqa: FBT001  (the thread's callback)
            loop.call_soon_threadsafe(news.put_nowait, (tokens, has_ended))

        self._pipeline.submit(ids, _config(body), put)
        if body.get("stream"):
            return await self._stream(request, len(ids), news)
        out: list[int] = []
        has_ended = False
        while not has_ended:
            tokens, has_ended = await news.get()
            out += tokens
        choice = {"index": 0, "text": self._tokenizer.decode(out), "finish_reason": "length"}
        return web.json_response({"choices": [choice], "usage": _usage(len(ids), len(out))})

    async def _stream(
        self, request: web.Request, prompt_len: int, news: asyncio.Queue[tuple[list[int], bool]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        out: list[int] = []
        num_sent = 0
        has_ended = False
        while not has_ended:
            tokens, has_ended = await news.get()
            out += tokens
            text = self._tokenizer.decode(out[num_sent:])
            if (text and not text.endswith("\ufffd")) or has_ended:  # half a character waits for its rest
                num_sent = len(out)
                choice = {"index": 0, "text": text, "finish_reason": "length" if has_ended else None}
                await response.write(_event({"choices": [choice]}))
        await response.write(_event({"choices": [], "usage": _usage(prompt_len, len(out))}) + b"data: [DONE]\n\n")
        return response


def _config(body: dict[str, Any]) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = body.get("max_tokens", 16)
    config.do_sample = False
    if body.get("ignore_eos"):
        config.ignore_eos = True
        config.min_new_tokens = config.max_new_tokens
    return config


def _usage(prompt_len: int, output_len: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_len,
        "completion_tokens": output_len,
        "total_tokens": prompt_len + output_len,
    }


def _event(record: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(record).encode() + b"\n\n"


def main() -> None:
    """Serve until stopped."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--model", required=True, help="folder that optimum-cli exported")
    made.add_argument("--tokenizer", required=True, help="tokenizer.json")
    made.add_argument("--port", type=int, default=8083)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--kv-gb", type=int, default=2)
    made.add_argument("--max-num-seqs", type=int, default=64)
    made.add_argument("--max-num-batched-tokens", type=int, default=512)
    options = made.parse_args()
    pipeline = Pipeline(options)
    pipeline.start()
    front = Front(pipeline, Tokenizer.from_file(options.tokenizer))
    app = web.Application()
    app.add_routes([web.get("/v1/models", front.models), web.post("/v1/completions", front.completions)])
    web.run_app(app, host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
