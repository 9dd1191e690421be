"""Start, readiness, drain and end of a server process (cases J01 to J04)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.live_server import LiveServer, LivingEngine, live_server
from support.sse import events
from trivium.base.errors import CheckpointError, ConfigError
from trivium.config.options import ServerOptions
from trivium.server.lifetime import PortTakenError, bind_socket, serve

BODY = {"model": "tiny", "prompt": "hi", "max_tokens": 8}


async def stream_text(live: LiveServer) -> str:
    async with httpx.AsyncClient(base_url=live.url, timeout=10) as client:
        return (await client.post("/v1/completions", json={**BODY, "stream": True})).text


async def begin_streams(live: LiveServer, count: int) -> list[asyncio.Task[str]]:
    live.engine.hold_after = 2
    streams = [asyncio.create_task(stream_text(live)) for _ in range(count)]
    async with asyncio.timeout(5):
        while len(live.engine.open_ids) < count:
            await asyncio.sleep(0)
    await live.engine.held.wait()
    return streams


async def until_draining(live: LiveServer) -> None:
    async with asyncio.timeout(5):
        while live.app.state.service.jobs.is_accepting:
            await asyncio.sleep(0)


def tell(number: int) -> None:
    os.kill(os.getpid(), number)


async def test_running_streams_finish_after_sigterm_and_new_requests_get_503() -> None:
    async with live_server() as live:
        streams = await begin_streams(live, 8)
        tell(signal.SIGTERM)
        await until_draining(live)
        async with httpx.AsyncClient(base_url=live.url) as client:
            for response in (await client.post("/v1/completions", json=BODY), await client.get("/health")):
                assert response.status_code == 503
            assert (await client.post("/v1/completions", json=BODY)).headers["retry-after"] == "5"
            assert (await client.get("/live")).status_code == 200
        live.engine.release.set()
        for text in await asyncio.gather(*streams):
            assert events(text)[-1] == "[DONE]"
        assert await asyncio.wait_for(live.ended, 5) == 0
        assert live.engine.life == ["start", "drain", "close"]
        with pytest.raises(ConnectionRefusedError):
            await live.connect()


async def test_queued_requests_are_handed_back_at_once_and_running_ones_finish() -> None:
    async with live_server() as live, httpx.AsyncClient(base_url=live.url, timeout=10) as client:
        running = await begin_streams(live, 2)
        live.engine.hold_after = 0
        known = set(live.engine.open_ids)
        bodies = [{**BODY, "stream": True}, BODY, {**BODY, "prompt": ["one", "two"]}, {**BODY, "prompt": ["a", "b"]}]
        asked = [asyncio.create_task(client.post("/v1/completions", json=body)) for body in bodies]
        async with asyncio.timeout(5):
            while len(live.engine.open_ids) < len(known) + 6:
                await asyncio.sleep(0)
        live.engine.queued = live.engine.open_ids - known
        halves = [each for each in live.engine.open_ids if each.endswith("-1")]
        live.engine.queued.discard(halves[0])  # of one of the two jobs, half has begun
        tell(signal.SIGTERM)
        await until_draining(live)
        async with asyncio.timeout(5):
            while sum(task.done() for task in asked) < 3:
                await asyncio.sleep(0)
        refused = [await task for task in asked if task.done()]
        assert [response.status_code for response in refused] == [503] * 3
        assert {response.json()["error"]["code"] for response in refused} == {"shutting_down"}
        assert {response.headers["retry-after"] for response in refused} == {"5"}
        live.engine.release.set()
        for text in await asyncio.gather(*running):
            assert events(text)[-1] == "[DONE]"
        assert sorted(response.status_code for response in await asyncio.gather(*asked)) == [200, 503, 503, 503]
        assert await asyncio.wait_for(live.ended, 5) == 0


async def test_streams_that_do_not_finish_in_time_end_with_one_error_event() -> None:
    async with live_server(drain_timeout_s=0.05) as live:
        streams = await begin_streams(live, 3)
        tell(signal.SIGTERM)
        for text in await asyncio.wait_for(asyncio.gather(*streams), 5):
            seen = events(text)
            assert [payload for payload in seen if "error" in payload] == [seen[-1]]
            assert seen[-1]["error"]["code"] == "shutting_down"
        assert await asyncio.wait_for(live.ended, 5) == 0
        assert live.engine.open_ids == set()


async def test_a_whole_answer_that_does_not_finish_in_time_is_a_503() -> None:
    async with live_server(drain_timeout_s=0.05) as live:
        live.engine.hold_after = 2
        async with httpx.AsyncClient(base_url=live.url) as client:
            asked = asyncio.create_task(client.post("/v1/completions", json=BODY))
            await asyncio.wait_for(live.engine.held.wait(), 5)
            tell(signal.SIGINT)
            assert (await asyncio.wait_for(asked, 5)).status_code == 503
        assert await asyncio.wait_for(live.ended, 5) == 0


async def test_a_second_signal_ends_at_once() -> None:
    async with live_server(drain_timeout_s=600.0) as live:
        streams = await begin_streams(live, 2)
        tell(signal.SIGTERM)
        await until_draining(live)
        began = time.monotonic()
        tell(signal.SIGTERM)
        assert await asyncio.wait_for(live.ended, 5) == 128 + signal.SIGTERM
        assert time.monotonic() - began < 2
        assert live.engine.life == ["start", "close"]
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def test_an_idle_server_ends_at_once() -> None:
    async with live_server() as live:
        tell(signal.SIGTERM)
        assert await asyncio.wait_for(live.ended, 5) == 0


async def test_nothing_but_liveness_is_green_before_the_model_is_ready() -> None:
    engine = LivingEngine()
    engine.may_be_ready.clear()
    async with live_server(engine) as live, httpx.AsyncClient(base_url=live.url) as client:

        async def statuses() -> list[int]:
            paths = ("/health", "/ready", "/v1/models", "/live")
            seen = [(await client.get(path)).status_code for path in paths]
            return [*seen, (await client.post("/v1/completions", json=BODY)).status_code]

        assert await statuses() == [503, 503, 503, 200, 503]  # possibly before the application is there at all
        await asyncio.wait_for(engine.started.wait(), 5)
        assert await statuses() == [503, 503, 503, 200, 503]
        engine.may_be_ready.set()
        await asyncio.wait_for(live.ready.wait(), 5)
        assert await statuses() == [200, 200, 200, 200, 200]


async def test_an_engine_that_cannot_be_built_ends_the_server_with_its_reason() -> None:
    engine = LivingEngine()
    engine.fault = CheckpointError("model.safetensors is truncated")
    async with live_server(engine) as live:
        with pytest.raises(CheckpointError, match="truncated"):
            await asyncio.wait_for(live.ended, 5)
        assert engine.life == ["start", "close"]


async def test_sigterm_while_the_model_loads_ends_the_server() -> None:
    engine = LivingEngine()
    engine.may_be_ready.clear()
    async with live_server(engine) as live:
        await asyncio.wait_for(engine.started.wait(), 5)
        tell(signal.SIGTERM)
        assert await asyncio.wait_for(live.ended, 5) == 0


async def test_open_streams_end_with_an_error_when_the_engine_dies() -> None:
    async with live_server() as live:
        streams = await begin_streams(live, 4)
        live.engine.die()
        for text in await asyncio.wait_for(asyncio.gather(*streams), 5):
            assert events(text)[-1]["error"]["code"] == "engine_dead"
        async with httpx.AsyncClient(base_url=live.url) as client:
            assert (await client.get("/health")).status_code == 503


async def test_answers_do_not_wait_for_the_acknowledgement_of_their_headers() -> None:
    no_delay: list[int] = []

    async def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        no_delay.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bind_socket(ServerOptions(port=0)) as listener:
        async with await asyncio.start_server(look, sock=listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
    assert no_delay == [1]


def test_a_taken_port_is_named_also_while_its_owner_still_loads() -> None:
    with bind_socket(ServerOptions(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(port)):
            bind_socket(ServerOptions(port=port))


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("203.0.113.7", 8000), ("no such host", 8000)])
def test_an_address_that_cannot_be_had_is_an_error(host: str, port: int) -> None:
    with pytest.raises(PortTakenError, match=str(port)):
        bind_socket(ServerOptions(host=host, port=port))


def test_a_second_server_on_a_port_exits_with_one_before_loading() -> None:
    script = (
        "import sys; from trivium.server import run; from trivium.config.options import *;"
        "options = EngineOptions(model=ModelOptions(model='/does/not/exist'));"
        "sys.exit(run(options, ServerOptions(port=int(sys.argv[1]))))"
    )
    with bind_socket(ServerOptions(port=0)) as first:
        port = str(first.getsockname()[1])
        outcome: Any = subprocess.run(  # noqa: S603  (our own interpreter and script)
            [sys.executable, "-c", script, port], capture_output=True, text=True, timeout=20, check=False
        )
    assert outcome.returncode == 1
    assert port in outcome.stderr
    assert "Traceback" not in outcome.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", int(port)))


def test_tls_files_that_cannot_be_used_end_the_server_before_loading(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for options in (
        ServerOptions(port=0, ssl_certfile=tmp_path / "missing.pem"),
        ServerOptions(port=0, ssl_certfile=tmp_path / "bad.pem"),
        ServerOptions(port=0, ssl_keyfile=tmp_path / "bad.pem"),
    ):
        with bind_socket(options) as listener, pytest.raises(ConfigError, match="ssl_certfile"):
            asyncio.run(serve(pytest.fail, listener, options))


async def test_the_api_is_served_over_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is needed to make a certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    made = await asyncio.create_subprocess_exec(openssl, *request, *names, *files, stderr=asyncio.subprocess.DEVNULL)
    assert await made.wait() == 0
    context = ssl.create_default_context(cafile=str(certificate))
    async with live_server(ssl_certfile=certificate, ssl_keyfile=key) as live:
        url = live.url.replace("http:", "https:")
        client = httpx.AsyncClient(base_url=url, verify=context)
        response = await client.post("/v1/completions", json=BODY)
        await client.aclose()
    assert response.status_code == 200
