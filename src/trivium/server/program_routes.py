"""`/v1/programs`: programs run inside the server, tools that resume them, and published programs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trivium.base.errors import CapacityError, ConfigError, InvalidParameterError, UnsupportedFeatureError
from trivium.lang.sampling import Sampling
from trivium.program import foresight, nodes
from trivium.program.codec import from_document, to_document
from trivium.server.body import read_json_object
from trivium.server.errors import BadConfigError, ClientGoneError, RunNotFoundError, error_body
from trivium.server.events import DONE, EventStream, event
from trivium.server.gate import log_error, send_json
from trivium.server.http1 import SHORTCUT
from trivium.server.program_run import ProgramRun, bind
from trivium.server.program_schema import arguments_schema, variables_schema
from trivium.server.program_tables import DEFAULTS, PROGRAM_RUN, PUBLISH, PUBLISHED_RUN, TOOL_RESULT
from trivium.server.visit import Visit, visit_of

if TYPE_CHECKING:
    from trivium.server.program_store import Published, Version
    from trivium.server.service import Service

_MAX_TOKENS = 128
"""Of a gen that does not say, as in the language."""


class Raw:
    """Hands an exchange to a method as ASGI does: a route takes plain functions for something else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one exchange."""
        await self._app(scope, receive, send)


class ProgramRoutes:
    """Endpoint functions over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._runs: dict[str, ProgramRun] = {}

    # -- running

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the program that the body brings."""
        body = await self._body(scope, receive)
        values = PROGRAM_RUN.read(body)
        await self._run(_program(values), values, body.get("user"), scope, receive, send)

    async def run_published(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a published program."""
        body = await self._body(scope, receive)
        values = PUBLISHED_RUN.read(body)
        version = self._service.programs.version(scope["path_params"]["name"], values.get("version"))
        await self._run(version.program, values, body.get("user"), scope, receive, send)

    async def _run(
        self,
        program: nodes.Program,
        values: Mapping[str, Any],
        user: object,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        service, visit = self._service, visit_of(scope)
        service.check_ready()
        if "model" in values:
            service.served.choose(values["model"])
        is_stream = values.get("stream", False)
        tools = foresight.tools(program)
        if tools and not is_stream:
            raise UnsupportedFeatureError(
                f"the program calls tools ({', '.join(tools)}), whose calls are told in a stream; set stream to true",
                param="stream",
            )
        if len(self._runs) >= service.options.max_programs:
            raise CapacityError(f"{len(self._runs)} programs are running (max_programs); try again later")
        tenant = visit.caller or (user if isinstance(user, str) else "")
        run = self._made(program, values, tenant)
        visit.answer_id = run.run_id
        self._runs[run.run_id] = run
        try:
            if is_stream:
                await self._stream(run, visit, scope, receive, send)
            else:
                await service.jobs.run(self._whole(run, send), receive)
        finally:
            del self._runs[run.run_id]
            visit.prompt_tokens, visit.completion_tokens = run.spent.prompt_tokens, run.spent.completion_tokens
            visit.cached_tokens = run.spent.cached_tokens

    def _made(self, program: nodes.Program, values: Mapping[str, Any], tenant: str) -> ProgramRun:
        given = {name: values[name] for name in DEFAULTS if name in values}
        return ProgramRun(
            service=self._service,
            program=program,
            arguments=bind(program, values.get("arguments", {})),
            defaults=Sampling(**{"max_tokens": _MAX_TOKENS, **self._of_model(), **given}),
            asked={
                "tenant": tenant,
                "cache_salt": values.get("cache_salt", ""),
                "priority": values.get("priority", 0),
            },
        )

    def _of_model(self) -> dict[str, Any]:
        """Return what the checkpoint recommends, as for completions."""
        return {name: value for name, value in self._service.served.sampling_defaults.items() if name in DEFAULTS}

    async def _whole(self, run: ProgramRun, send: Send) -> None:
        await send_json(send, msgspec.json.encode(_answer(run, await run.run())))

    async def _stream(self, run: ProgramRun, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        keep_alive_s = self._service.options.keep_alive_s
        async with EventStream(send, keep_alive_s=keep_alive_s, shortcut=scope.get(SHORTCUT)) as events:
            try:
                await self._service.jobs.run(_told(run, events), receive)
            except ClientGoneError:
                raise
            except Exception as error:
                if not events.is_open:
                    raise
                log_error(error, visit)
                failed = {"type": "run.error", **msgspec.json.decode(error_body(error))}
                await events.close(event(msgspec.json.encode(failed)) + DONE)

    # -- runs under way

    async def resume(self, request: Request) -> Response:
        """Go on with the result of a tool."""
        values = TOOL_RESULT.read(await self._body(request.scope, request.receive))
        run, call_id = self._own_run(request), request.path_params["call_id"]
        if not run.resume(call_id, values.get("result"), values.get("error")):
            raise RunNotFoundError(f"no tool of run {run.run_id} waits as '{call_id[:64]}'; it was answered, or ended")
        return _json({"run_id": run.run_id, "call_id": call_id, "resumed": True})

    async def cancel(self, request: Request) -> Response:
        """End a run."""
        run = self._own_run(request)
        run.cancel()
        return _json({"run_id": run.run_id, "cancelled": True})

    def _own_run(self, request: Request) -> ProgramRun:
        run_id = request.path_params["run_id"]
        run = self._runs.get(run_id)
        caller = visit_of(request.scope).caller
        is_admin = self._service.doorkeeper.is_admin(request.scope["headers"])
        if run is None or not (is_admin or caller is None or caller == run.tenant):
            raise RunNotFoundError(f"no run '{run_id[:64]}' is under way")
        return run

    # -- published programs

    async def list_all(self, _: Request) -> Response:
        """List published programs."""
        return _json({"object": "list", "data": [_card(each) for each in self._service.programs]})

    async def show(self, request: Request) -> Response:
        """Show a version of a published program."""
        programs, number = self._service.programs, _version_of(request)
        name = request.path_params["name"]
        version = programs.version(name, number)
        return _json({**_card(programs.get(name), version), "program": to_document(version.program)})

    async def publish(self, request: Request) -> Response:
        """Publish a program, or a new version of it."""
        self._service.doorkeeper.require_admin(request.scope["headers"])
        values = PUBLISH.read(await self._body(request.scope, request.receive))
        name = request.path_params["name"]
        try:
            version, is_new = await self._service.programs.publish(name, _program(values))
        except ConfigError as error:
            raise BadConfigError(str(error)) from error
        return _json(_card(self._service.programs.get(name), version), status=201 if is_new else 200)

    async def delete(self, request: Request) -> Response:
        """Remove a published program, or a version of it."""
        self._service.doorkeeper.require_admin(request.scope["headers"])
        name, number = request.path_params["name"], _version_of(request)
        try:
            await self._service.programs.delete(name, number)
        except ConfigError as error:
            raise BadConfigError(str(error)) from error
        return _json({"name": name, "version": number, "deleted": True})

    async def _body(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        return await read_json_object(scope, receive, max_bytes=self._service.options.max_body_bytes)


async def _told(run: ProgramRun, events: EventStream) -> None:
    """Send what happens until the end."""
    working = asyncio.create_task(run.run())
    begun = {"type": "run.started", "run_id": run.run_id, "program": run.program.name}
    try:
        await events.write(event(msgspec.json.encode(begun)))
        while not (working.done() and run.events.empty()):
            heard = asyncio.create_task(run.events.get())
            await asyncio.wait({heard, working}, return_when=asyncio.FIRST_COMPLETED)
            if not heard.done():
                heard.cancel()
                with suppress(asyncio.CancelledError):
                    await heard
                continue
            await events.write(event(msgspec.json.encode(heard.result())))
        ended = {"type": "run.ended", **_answer(run, working.result())}
    finally:
        working.cancel()
        await asyncio.wait({working})
    await events.close(event(msgspec.json.encode(ended)) + DONE)


def _answer(run: ProgramRun, done: Mapping[str, Any]) -> dict[str, Any]:
    spent = run.spent
    return {
        "run_id": run.run_id,
        "program": run.program.name,
        **done,
        "usage": {
            "prompt_tokens": spent.prompt_tokens,
            "completion_tokens": spent.completion_tokens,
            "total_tokens": spent.prompt_tokens + spent.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": spent.cached_tokens},
        },
    }


def _program(values: Mapping[str, Any]) -> nodes.Program:
    if "program" not in values:
        raise InvalidParameterError("program is missing; it must be a program as JSON", param="program")
    try:
        return from_document(values["program"])
    except InvalidParameterError as error:
        raise InvalidParameterError(f"program: {error}", param="program") from error


def _card(published: Published, version: Version | None = None) -> dict[str, Any]:
    shown = version or published.newest
    return {
        "object": "program",
        "name": published.name,
        "version": shown.number,
        "versions": [each.number for each in published.versions],
        "created": shown.created,
        "arguments": arguments_schema(shown.program),
        "variables": variables_schema(shown.program),
        "tools": foresight.tools(shown.program),
    }


def _version_of(request: Request) -> int | None:
    given = request.query_params.get("version")
    if given is None:
        return None
    if not given.isdecimal() or len(given) > 9:  # noqa: PLR2004
        raise InvalidParameterError(f"version is {given[:20]!r}; it must be a whole number above 0", param="version")
    return int(given)


def _json(value: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")
