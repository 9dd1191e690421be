"""The log: both forms, request ids, blanked secrets, set up twice."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trivium.base import log


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger(log.ROOT)
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def lines_of(**options: Any) -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    log.set_up(stream=stream, **options)
    return logging.getLogger("trivium.engine.loop"), stream


def test_text_names_level_module_request_and_message() -> None:
    logger, stream = lines_of()
    with log.about_request("req-1"):
        logger.warning("pool holds %d", 7)
    logger.info("idle")
    first, second = stream.getvalue().splitlines()
    assert first.endswith(" WARNING engine.loop [req-1] pool holds 7")
    assert second.endswith(" INFO engine.loop idle")


def test_json_is_one_object_a_line_with_request_and_error() -> None:
    logger, stream = lines_of(form="json")
    try:
        int("two\nlines")
    except ValueError:
        logger.exception("broken", extra={"request_id": "req-2"})
    [entry] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert entry["level"] == "error"
    assert entry["message"] == "broken"
    assert entry["request_id"] == "req-2"
    assert "ValueError" in entry["error"]


def test_json_names_the_trace_inside_the_block_and_not_behind_it() -> None:
    logger, stream = lines_of(form="json")
    with log.about_request("req-1", "ab" * 16):
        logger.info("in")
        log.join_trace("cd" * 16)
        logger.info("joined")
    logger.info("out")
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [entry.get("trace_id") for entry in entries] == ["ab" * 16, "cd" * 16, None]


def test_further_fields_are_keys_of_the_json_form_and_replace_none_of_its_own() -> None:
    logger, stream = lines_of(form="json")
    logger.info("done", extra={"status": 200, "ms": None, "level": "loud", "where": Path("x")})
    entry = json.loads(stream.getvalue())
    assert (entry["status"], entry["ms"], entry["where"]) == (200, None, "x")
    assert (entry["level"], entry["message"]) == ("info", "done")
    assert set(entry) == {"time", "level", "logger", "message", "status", "ms", "where"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_never_appear(form: Any) -> None:
    logger, stream = lines_of(form=form, secrets=["s3cret", "name=s3cret", ""])
    logger.warning("started with %s", {"api_key": "name=s3cret"})
    assert "s3cret" not in stream.getvalue()
    assert log.BLANK in stream.getvalue()


def test_less_important_levels_are_left_out() -> None:
    logger, stream = lines_of(level="warning")
    logger.info("no")
    logger.warning("yes")
    assert stream.getvalue().count("\n") == 1


def test_setting_up_again_replaces_what_was_set_up() -> None:
    lines_of()
    logger, stream = lines_of()
    logger.warning("once")
    assert stream.getvalue().count("once") == 1
    assert sum(isinstance(h.formatter, log.PlainLines) for h in logging.getLogger(log.ROOT).handlers) == 1
