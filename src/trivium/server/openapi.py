"""`/openapi.json`: drawn from the field tables and the answer records, so that it cannot fall behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from trivium import __version__
from trivium.server.auth import ADMIN_PATHS, OPEN_PATHS
from trivium.server.program_schema import published_operation
from trivium.server.program_shapes import ProgramAnswer, ProgramCard, ProgramList
from trivium.server.program_tables import PROGRAM_RUN, PUBLISH, PUBLISHED_RUN, TOOL_RESULT
from trivium.server.sglang_shapes import GenerateAnswer, ModelDescription, TokenizerAnswer
from trivium.server.sglang_tables import CONCATENATE, GENERATE
from trivium.server.shapes import (
    CacheState,
    Changes,
    ChatCompletion,
    Completion,
    Condition,
    ErrorAnswer,
    ModelCard,
    ModelList,
    PinMade,
    PinRemoved,
    Text,
    Tokens,
)
from trivium.server.tables import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    LOAD_ADAPTER,
    PIN,
    TOKENIZE,
    UNLOAD_ADAPTER,
    UNPIN,
)
from trivium.server.timeline_shapes import RequestList, RequestTimeline

if TYPE_CHECKING:
    from trivium.server.program_store import Published

_RECORDS = (
    Completion,
    ChatCompletion,
    ModelList,
    Changes,
    ModelCard,
    Tokens,
    Text,
    Condition,
    CacheState,
    PinMade,
    PinRemoved,
    RequestList,
    RequestTimeline,
    GenerateAnswer,
    ModelDescription,
    TokenizerAnswer,
    ProgramAnswer,
    ProgramCard,
    ProgramList,
    ErrorAnswer,
)
_REF = "#/components/schemas/{name}"


def openapi_document(programs: Iterable[Published] = ()) -> dict[str, Any]:
    """Write the OpenAPI 3.1 document of the whole surface, the published programs with it."""
    _, schemas = msgspec.json.schema_components(_RECORDS, ref_template=_REF)
    requests = {
        "CompletionRequest": COMPLETIONS.schema(required=("model", "prompt")),
        "ChatCompletionRequest": CHAT.schema(required=("model", "messages")),
        "GenerateRequest": GENERATE.schema(),
        "ConcatenateRequest": CONCATENATE.schema(),
        "TokenizeRequest": TOKENIZE.schema(),
        "DetokenizeRequest": DETOKENIZE.schema(required=("tokens",)),
        "PinRequest": PIN.schema(),
        "UnpinRequest": UNPIN.schema(required=("pin_id",)),
        "LoadAdapterRequest": LOAD_ADAPTER.schema(required=("lora_name", "lora_path")),
        "UnloadAdapterRequest": UNLOAD_ADAPTER.schema(required=("lora_name",)),
        "ProgramRequest": PROGRAM_RUN.schema(required=("program",)),
        "PublishedProgramRequest": PUBLISHED_RUN.schema(),
        "PublishRequest": PUBLISH.schema(required=("program",)),
        "ToolResult": TOOL_RESULT.schema(),
    }
    paths = _paths() | {
        f"/v1/programs/{each.name}": published_operation(each.newest.program, PUBLISHED_RUN, _responses(None))
        for each in programs
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Trivium", "version": __version__},
        "paths": {path: _secured(path, operations) for path, operations in paths.items()},
        "components": {
            "schemas": {**requests, **schemas},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> dict[str, dict[str, Any]]:
    return {
        "/v1/completions": _post("Complete prompts", "CompletionRequest", "Completion", streams=True),
        "/v1/chat/completions": _post("Answer a chat", "ChatCompletionRequest", "ChatCompletion", streams=True),
        "/v1/models": _get("List served models", "ModelList"),
        "/v1/models/{model_id}": _with_id("model_id", _get("Describe a served model", "ModelCard")),
        "/tokenize": _post("Text or chat to token ids", "TokenizeRequest", "Tokens"),
        "/detokenize": _post("Token ids to text", "DetokenizeRequest", "Text"),
        "/health": _get("Whether an answer can be given now", "Condition"),
        "/ready": _get("Whether an answer can be given now", "Condition"),
        "/live": _get("Whether the HTTP side runs", "Condition"),
        "/version": _get("Version of the server", None),
        "/metrics": _get("Metrics for Prometheus", None),
        "/v1/requests": _get("List requests under way", "RequestList"),
        "/v1/requests/{answer_id}": _with_id(
            "answer_id",
            _get("Show what happened to a request, to its sender or an admin", "RequestTimeline"),
        ),
        "/v1/cache": _get("Describe what the prefix cache holds", "CacheState"),
        "/v1/cache/pin": _post("Compute a prompt unless it is cached, and keep it cached", "PinRequest", "PinMade"),
        "/v1/cache/unpin": _post("Let a pinned prompt go", "UnpinRequest", "PinRemoved"),
        "/v1/cache/check": _get("Derive anew who owns every page of KV memory; list the differences", None),
        "/v1/cache/events": _events("Follow what the prefix cache comes to hold and loses; needs --kv-events"),
        "/v1/cache/flush": {"post": {"summary": "Forget unused cached prefixes", "responses": _responses(None)}},
        "/v1/load_lora_adapter": _post_for_text(
            "Load a LoRA adapter from a folder below --lora-root", "LoadAdapterRequest"
        ),
        "/v1/unload_lora_adapter": _post_for_text("Unload a LoRA adapter", "UnloadAdapterRequest"),
        "/v1/config/reload": {
            "post": {"summary": "Read the options again, as SIGHUP does", "responses": _responses("Changes")}
        },
        "/openapi.json": _get("This document", None),
        **_program_paths(),
        **_sglang_paths(),
    }


def _program_paths() -> dict[str, dict[str, Any]]:
    version: dict[str, Any] = {"name": "version", "in": "query", "schema": {"type": "integer"}}
    show, run = (
        _get("Show a published program", "ProgramCard"),
        _post("Run a published program", "PublishedProgramRequest", "ProgramAnswer", streams=True),
    )
    publish = {"put": _post("Publish a program, or a new version of it", "PublishRequest", "ProgramCard")["post"]}
    delete: dict[str, Any] = {
        "delete": {"summary": "Remove a published program, or a version", "responses": _responses(None)}
    }
    show["get"]["parameters"] = [version]
    delete["delete"]["parameters"] = [version]
    cancel = {"delete": {"summary": "End a run", "responses": _responses(None)}}
    resume = _post("Go on with the result of a tool", "ToolResult", None)
    run_id, call_id = ({"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                       for name in ("run_id", "call_id"))  # fmt: skip
    return {
        "/v1/programs": {
            **_get("List published programs", "ProgramList"),
            **_post("Run a program inside the server", "ProgramRequest", "ProgramAnswer", streams=True),
        },
        "/v1/programs/{name}": _with_id("name", {**show, **run, **publish, **delete}),
        "/v1/programs/runs/{run_id}": {**cancel, "parameters": [run_id]},
        "/v1/programs/runs/{run_id}/tools/{call_id}": {**resume, "parameters": [run_id, call_id]},
    }


def _sglang_paths() -> dict[str, dict[str, Any]]:
    flush = "Forget unused cached prefixes"
    model, server = _get("Describe the model", "ModelDescription"), _get("Describe server and engine", None)
    generate = _post("Complete prompts, in SGLang's words", "GenerateRequest", "GenerateAnswer", streams=True)
    one = {"$ref": _REF.format(name="GenerateAnswer")}
    several = {"anyOf": [one, {"type": "array", "items": one}]}
    generate["post"]["responses"]["200"]["content"]["application/json"]["schema"] = several
    return {
        "/generate": generate,
        "/model_info": model,
        "/get_model_info": model,
        "/server_info": server,
        "/get_server_info": server,
        "/health_generate": _get("Whether an answer can be given now; generates nothing", "Condition"),
        "/flush_cache": {name: {"summary": flush, "responses": _responses(None)} for name in ("get", "post")},
        "/start_profile": _refusal("Refused with a 400: there is no profiler"),
        "/stop_profile": _refusal("Refused with a 400: there is no profiler"),
        "/concate_and_append_request": _post(
            "Take note that branches were appended to a program; changes nothing", "ConcatenateRequest", None
        ),
        "/v1/tokenizer": _get("Describe tokenizer and chat template, for programs", "TokenizerAnswer"),
    }


def _refusal(summary: str) -> dict[str, Any]:
    return {"post": {"summary": summary, "responses": {"default": _responses(None)["default"]}}}


def _get(summary: str, answer: str | None) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": _responses(answer)}}


def _events(summary: str) -> dict[str, Any]:
    operation = _get(summary, None)
    operation["get"]["responses"]["200"]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    since = {"name": "since", "in": "query", "schema": {"type": "integer"}}
    return {**operation, "parameters": [{**since, "description": "The seq of the last record that was read."}]}


def _post(summary: str, request: str, answer: str | None, *, streams: bool = False) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": _REF.format(name=request)}}}}
    return {"post": {"summary": summary, "requestBody": body, "responses": _responses(answer, streams=streams)}}


def _post_for_text(summary: str, request: str) -> dict[str, Any]:
    operations = _post(summary, request, "ErrorAnswer")
    operations["post"]["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return operations


def _responses(answer: str | None, *, streams: bool = False) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    if answer is not None:
        success["content"] = {"application/json": {"schema": {"$ref": _REF.format(name=answer)}}}
    if streams:
        success["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": {"$ref": _REF.format(name="ErrorAnswer")}}}
    return {"200": success, "default": {"description": "Error", "content": error}}


def _security_of(path: str, method: str) -> list[dict[str, list[str]]]:
    """Return what a method wants beyond its path: publishing wants an admin key."""
    return [{"key": []}] if path == "/v1/programs/{name}" and method in {"put", "delete"} else []


def _with_id(name: str, operations: dict[str, Any]) -> dict[str, Any]:
    parameter = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    return {**operations, "parameters": [parameter]}


def _secured(path: str, operations: Mapping[str, Any]) -> dict[str, Any]:
    """Say which key a path wants: none, an API key when there are any, an admin key."""
    if path in OPEN_PATHS:
        return dict(operations)
    security: list[dict[str, list[str]]] = [{"key": []}] if path in ADMIN_PATHS else [{}, {"key": []}]
    return {
        name: operation if name == "parameters" else {**operation, "security": _security_of(path, name) or security}
        for name, operation in operations.items()
    }
