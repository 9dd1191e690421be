"""Keys on every route, request ids, CORS, and what the log says (cases I04, I05)."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from support.fake_engine import FakeEngine, JoiningTemplate
from support.server_site import MakeSite, Site
from trivium.base.errors import ConfigError
from trivium.base.log import ROOT, JsonLines, PlainLines
from trivium.server.auth import OPEN_PATHS, KeyRing

KEY = "s3cret-key-0123456789"


def bearer(key: str | bytes) -> dict[str, str | bytes]:
    return {"authorization": b"Bearer " + (key if isinstance(key, bytes) else key.encode())}


@pytest.fixture
def locked(make_site: MakeSite) -> Site:
    return make_site(api_key=(f"alice={KEY}", "bare-key"), admin_key=("root=admin-key",))


async def test_every_registered_route_but_the_open_list_wants_a_key(locked: Site) -> None:
    paths = [route.path for route in locked.app.routes if isinstance(route, Route)]
    assert set(paths) > OPEN_PATHS
    for path in [*paths, "/v1/models/tiny", "/nope", "/"]:
        for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"):
            response = await locked.client.request(method, path)
            is_open = path in OPEN_PATHS
            assert (response.status_code == 401) != is_open, (method, path)
            if not is_open:
                assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/V1/models", "/v1/models/", "/v1//models", "/v1/./models", "/%761/models", "/health/", "//health",
     "/HEALTH", "/live/../v1/models", "/health/..%2fv1/models", "/v1/models?x=/health", "/v1/models%00/health",
     "/v1/models;/health"],
)  # fmt: skip
async def test_no_spelling_of_a_path_slips_through(locked: Site, path: str) -> None:
    url = httpx.URL("http://trivium.test").copy_with(raw_path=path.encode())
    assert (await locked.client.get(url)).status_code == 401
    assert (await locked.client.get(url, headers=bearer(KEY))).status_code in {200, 404}


@pytest.mark.parametrize("key", [KEY, "bare-key"])
async def test_a_right_key_opens_the_api(locked: Site, key: str) -> None:
    assert (await locked.client.get("/v1/models", headers=bearer(key))).status_code == 200
    assert (await locked.client.get("/v1/models", headers={"authorization": f"bearer  {key}"})).status_code == 200


@pytest.mark.parametrize(
    "value",
    [b"", b"Bearer", b"Bearer ", KEY.encode(), b"Basic " + KEY.encode(), b"Bearer " + KEY[:-1].encode(),
     b"Bearer " + KEY.encode() + b"x", b"Bearer alice=" + KEY.encode(), b"Bearer \xff\xfe\xc3\x28",
     "Bearer schlüssel".encode(), b"Bearer admin-key", b"Bearer " + b"x" * 4000, b"Bearer " + KEY.upper().encode()],
)  # fmt: skip
async def test_a_wrong_key_is_a_401_and_never_a_500(locked: Site, value: bytes) -> None:
    response = await locked.client.get("/v1/models", headers={"authorization": value})
    assert response.status_code == 401
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
    assert KEY not in response.text


async def test_two_keys_at_once_are_refused(locked: Site) -> None:
    headers = [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer wrong")]
    assert (await locked.client.get("/v1/models", headers=headers)).status_code == 401


async def test_admin_routes_want_an_admin_key(locked: Site) -> None:
    assert (await locked.client.post("/v1/cache/flush", headers=bearer(KEY))).status_code == 401
    assert (await locked.client.get("/v1/cache/check", headers=bearer(KEY))).status_code == 401
    assert locked.engine.calls == []
    response = await locked.client.post("/v1/cache/flush", headers=bearer("admin-key"))
    assert (response.status_code, response.json()) == (200, {"flushed": True})
    assert locked.engine.calls == ["flush"]


async def test_admin_routes_are_off_without_an_admin_key(make_site: MakeSite) -> None:
    open_site, locked_site = make_site(), make_site(api_key=(KEY,))
    assert (await open_site.client.post("/v1/cache/flush")).status_code == 403
    assert (await locked_site.client.post("/v1/cache/flush")).status_code == 401
    assert (await locked_site.client.post("/v1/cache/flush", headers=bearer(KEY))).status_code == 403
    assert open_site.engine.calls == locked_site.engine.calls == []


async def test_keys_come_from_a_file_too(make_site: MakeSite, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# team\n\nalice={KEY}\nother-key\n")
    site = make_site(api_key_file=file)
    assert (await site.client.get("/v1/models")).status_code == 401
    for key in (KEY, "other-key"):
        assert (await site.client.get("/v1/models", headers=bearer(key))).status_code == 200


def test_a_key_file_that_protects_nothing_is_an_error(make_site: MakeSite, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    for name in ("empty", "missing"):
        with pytest.raises(ConfigError, match=name):
            make_site(api_key_file=tmp_path / name)


@pytest.mark.parametrize("entry", ["", "alice=", "c2VjcmV0==", "=", "alice=a b", "a\tb", "alice=x\n"])
def test_keys_that_no_header_can_carry_or_two_readings_fit_are_refused(entry: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KeyRing([entry])
    assert "a b" not in str(caught.value)
    assert "c2V" not in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "names"),
    [(["alice=short12"], ["'alice'"]), (["short12"], ["'key0'"]),
     ([f"alice={KEY}", f"bob={KEY}"], ["'alice'", "'bob'"]), ([KEY, KEY], ["'key0'", "'key1'"])],
)  # fmt: skip
def test_short_keys_and_keys_under_two_names_are_refused_by_name(entries: list[str], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        KeyRing(entries)
    assert all(name in str(caught.value) for name in names)
    assert KEY not in str(caught.value)
    assert "short12" not in str(caught.value)


def test_a_key_may_hold_equal_signs_when_it_is_named() -> None:
    ring = KeyRing(["alice=c2VjcmV0==", "bare-key"])
    assert ring.name_of(b"c2VjcmV0==") == "alice"
    assert ring.name_of(b"bare-key") == "key1"
    assert ring.name_of(b"c2VjcmV0") is None
    assert ring.name_of(b"=") is None


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [("abc-1_2.3:4", True), ("x" * 128, True), ("x" * 129, False), ("", False), ("a b", False), ("a\tb", False),
     ("<script>", False), ("ü", False)],
)  # fmt: skip
async def test_request_ids_are_echoed_when_they_are_harmless(site: Site, given: str, is_kept: bool) -> None:
    response = await site.client.get("/version", headers={"x-request-id": given.encode()})
    assert (response.headers["x-request-id"] == given) == is_kept
    assert response.headers["x-request-id"]


async def test_request_ids_are_on_every_kind_of_answer(locked: Site) -> None:
    headers = {"x-request-id": "r-1"}
    for response in (
        await locked.client.get("/v1/models", headers=headers),
        await locked.client.get("/health", headers=headers),
        await locked.client.get("/nope", headers={**headers, **bearer(KEY)}),
    ):
        assert response.headers.get_list("x-request-id") == ["r-1"]


async def test_browsers_are_let_in_only_from_named_origins(make_site: MakeSite) -> None:
    ask = {"origin": "http://app.example", "access-control-request-method": "POST"}
    closed, opened = make_site(), make_site(cors_origin=("http://app.example",), api_key=(KEY,))
    refused = await closed.client.options("/v1/completions", headers=ask)
    assert refused.status_code == 405
    assert "access-control-allow-origin" not in refused.headers
    allowed = await opened.client.options("/v1/completions", headers=ask)
    assert allowed.headers["access-control-allow-origin"] == "http://app.example"
    other = await opened.client.options("/v1/completions", headers={**ask, "origin": "http://evil.example"})
    assert "access-control-allow-origin" not in other.headers


async def test_logs_metrics_and_errors_hold_no_secret_and_no_prompt(make_site: MakeSite, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    site = make_site(
        FakeEngine(), template=JoiningTemplate(), api_key=("alice=SENTINEL-KEY",), admin_key=("SENTINEL-ADMIN",)
    )
    headers = bearer("SENTINEL-KEY")
    secret = {"model": "tiny", "prompt": "SENTINEL-PROMPT"}
    bodies: list[dict[str, Any]] = [
        secret,
        {**secret, "stream": True},
        {**secret, "n": 0},
        {**secret, "user": "SENTINEL-USER", "cache_salt": "SENTINEL-SALT"},
    ]
    answers = [await site.client.post("/v1/completions", json=body, headers=headers) for body in bodies]
    site.engine.fail_after = 1
    answers.append(await site.client.post("/v1/completions", json=secret, headers=headers))
    paths = ("/metrics", "/v1/models", "/version", "/openapi.json", "/SENTINEL-PATH?key=SENTINEL-QUERY")
    answers += [await site.client.get(path, headers=headers) for path in paths]
    await site.client.get("/v1/models", headers=bearer("SENTINEL-WRONG"))
    assert not any("SENTINEL" in answer.text for answer in answers)
    server_log = [r.getMessage() for r in caplog.records if r.name.startswith("trivium")]
    assert server_log
    assert not any("SENTINEL" in line for line in server_log)


async def test_the_access_log_has_one_line_with_counts_and_times(site: Site, caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="trivium.access")
    await site.client.post(
        "/v1/completions", json={"model": "tiny", "prompt": "abc", "max_tokens": 4}, headers={"x-request-id": "r-7"}
    )
    [record] = [record for record in caplog.records if record.name == "trivium.access"]
    line = PlainLines().format(record)
    assert " INFO access [r-7] POST /v1/completions 200 caller=- answer=cmpl-" in line
    assert " prompt=3 completion=4 cached=0 queue_ms=- ttft_ms=" in line
    assert line.endswith(" error=-")
    assert "\n" not in line


async def test_the_access_record_has_a_field_for_everything_in_its_line(locked: Site, caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="trivium.access")
    headers = {"x-request-id": "r-8", **bearer(KEY)}
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 4}
    answer = await locked.client.post("/v1/completions", json=body, headers=headers)
    await locked.client.post("/v1/completions", json={**body, "n": 0}, headers=headers)
    whole, refused = [json.loads(JsonLines().format(r)) for r in caplog.records if r.name == "trivium.access"]
    assert isinstance(whole.pop("ms"), float)
    assert isinstance(whole.pop("ttft_ms"), float)
    assert {name: whole[name] for name in list(whole)[4:]} == {
        "request_id": "r-8", "method": "POST", "route": "/v1/completions", "status": 200, "caller": "alice",
        "answer_id": answer.json()["id"], "prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 0, "error": None,
        "queue_ms": None, "finish": None, "trace_id": None,
    }  # fmt: skip
    assert (refused["request_id"], refused["status"], refused["error"]) == ("r-8", 400, "invalid_value")
    assert refused["completion_tokens"] is refused["ttft_ms"] is None


async def test_whatever_is_logged_about_a_request_has_its_id(make_site: MakeSite) -> None:
    def fail(*_: Any) -> list[int]:
        logging.getLogger("trivium.tokens").warning("odd")
        raise ValueError

    site, said = make_site(FakeEngine(fail)), io.StringIO()
    logger = logging.getLogger(ROOT)
    collecting = logging.StreamHandler(said)
    collecting.setFormatter(JsonLines())
    logger.addHandler(collecting)
    try:
        for is_stream in (False, True):
            body = {"model": "tiny", "prompt": "abc", "stream": is_stream}
            await site.client.post("/v1/completions", json=body, headers={"x-request-id": "r-9"})
    finally:
        logger.removeHandler(collecting)
    entries = [json.loads(line) for line in said.getvalue().splitlines()]
    assert {entry["logger"] for entry in entries} >= {"trivium.tokens", "trivium.server.gate"}
    assert {entry.get("request_id") for entry in entries} == {"r-9"}


async def test_the_access_log_names_the_key_and_not_the_path(locked: Site, caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="trivium.access")
    await locked.client.get("/v1/models/private-name", headers=bearer(KEY))
    await locked.client.get("/private/path", headers=bearer(KEY))
    lines = [record.getMessage() for record in caplog.records if record.name == "trivium.access"]
    assert " /v1/models/{id} 404 caller=alice " in lines[0]
    assert " unmatched 404 caller=alice " in lines[1]
    assert "private" not in "".join(lines)
