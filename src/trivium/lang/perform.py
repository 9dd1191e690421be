"""How each primitive is done; all of it runs in the driver's thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InternalError, InvalidParameterError, ensure
from trivium.config.sampling import SamplingParams
from trivium.lang import expressions as nodes
from trivium.lang import remotely
from trivium.lang.backends.remote import RemoteBackend
from trivium.lang.choices import ChoicesDecision, TokenLogprob, mean_logprob
from trivium.lang.meta import answer_meta, delta_meta, scored
from trivium.lang.promises import following, settle
from trivium.lang.reasoning import content_of, output_of, reasoning_of
from trivium.lang.tools import call_tool, find_tool

if TYPE_CHECKING:
    from trivium.api.outputs import RequestOutput
    from trivium.lang.promises import Variable
    from trivium.lang.strand import Strand

_PREFILL = SamplingParams(max_tokens=0, temperature=0.0, seed=0)
Perform = Callable[["Strand", Any, "Variable | None"], Awaitable[None]]


async def perform(strand: Strand, expr: nodes.Expr, variable: Variable | None, context: contextvars.Context) -> None:
    """Do one primitive; whatever is raised ends the strand."""
    if strand.turn.parts and not isinstance(expr, nodes.Constant | nodes.Gen):
        await remotely.end_turn(strand)
    if isinstance(expr, nodes.ToolCall):
        await _tool(strand, expr, variable, context)
    elif isinstance(expr, nodes.Gen | nodes.Select) and not strand.program.effects.enable_parallel_branches:
        async with strand.program.turn:
            await _PERFORM[type(expr)](strand, expr, variable)
    else:
        await _PERFORM[type(expr)](strand, expr, variable)


async def _constant(strand: Strand, expr: nodes.Constant, _: Variable | None) -> None:
    if remotely.is_left_to_model(strand):
        strand.turn.parts.append(remotely.Part(expr, expr.text))
    elif strand.roles.open_role is None:
        strand.roles.pass_by(expr.text)
        strand.say(expr.text)
    elif expr.text:
        strand.say(strand.roles.write(expr.text))
    if not (strand.program.effects.enable_joined_constants or isinstance(strand.program.backend, RemoteBackend)):
        await _answer(strand, strand.transcript.prompt_ids(), _PREFILL, is_told=False)


async def _gen(strand: Strand, expr: nodes.Gen, variable: Variable | None) -> None:
    if isinstance(strand.program.backend, RemoteBackend):
        await remotely.gen(strand, expr, variable)
        return
    sampling = expr.sampling.over(strand.program.defaults)
    form = expr.form
    params = sampling.params(None if form is None else form.constraint, () if form is None else form.stop)
    strand.open_for_model()
    prompt = strand.transcript.prompt_ids()
    if params.temperature == 0 and params.seed is None:
        params = replace(params, seed=0)  # none is drawn for it, so those of others do not depend on when it comes
    if expr.reasoning is not None:
        params = replace(params, chat_output=output_of(expr.reasoning, strand.transcript.text))
    output = await _answer(strand, prompt, params, variable)
    texts = [content_of(answer.text, answer.parts) for answer in output.outputs]
    is_whole = output.outputs[0].text == texts[0]
    strand.transcript.take_answer(prompt, output.outputs[0].token_ids if is_whole else (), texts[0])
    strand.roles.wrote(texts[0])
    if variable is not None:
        thoughts = [reasoning_of(answer.parts) for answer in output.outputs]
        with_text = bool(sampling.return_text_in_logprobs)
        metas = [answer_meta(output, answer, strand.transcript.codec, with_text=with_text) for answer in output.outputs]
        is_list = len(texts) > 1
        if variable.beside is not None:
            variable.beside.resolve(thoughts if is_list else thoughts[0])
        variable.resolve(texts if is_list else texts[0], {"choices": metas} if is_list else metas[0])


async def _answer(
    strand: Strand, prompt: list[int], params: SamplingParams, variable: Variable | None = None, *, is_told: bool = True
) -> RequestOutput:
    """Run a request to its end; the text of its first choice is told to readers as it comes.

    Raises:
        InternalError: It failed inside the engine.
    """
    from trivium.api.outputs import Answers  # noqa: PLC0415  (start-up time)

    answers = Answers("", None, prompt, params)
    program = strand.program
    async with aclosing(program.backend.submit(prompt, params, program.share())) as deltas:
        async for news in deltas:
            answers.add(news)
            text = content_of(news.text, news.parts)
            if news.choice == 0 and text and is_told:
                meta = delta_meta(news, answers.output.outputs[0])
                strand.write(text, meta)
                if variable is not None:
                    variable.feed.add(text, meta)
    output = answers.result()
    if output.error is not None:
        raise InternalError(output.error)
    return output


async def _select(strand: Strand, expr: nodes.Select, variable: Variable | None) -> None:
    strand.open_for_model()
    if isinstance(strand.program.backend, RemoteBackend):
        decision = await remotely.select(strand, expr)
        _take_decision(strand, expr, decision, variable)
        strand.transcript.append(decision.decision)
        return
    start, rows = strand.transcript.with_choices(expr.choices)
    for choice, row in zip(expr.choices, rows, strict=True):
        if len(row) <= start:
            raise InvalidParameterError(f"the choice {choice!r} has no tokens here", param="choices")
    conditional = await _together(*(_score(strand, row, start) for row in rows))
    alone = None
    if getattr(expr.method, "requires_unconditional_logprobs", False):
        prefix = list(strand.transcript.codec.prefix)
        alone = await _together(*(_score(strand, [*prefix, *row[start:]], len(prefix)) for row in rows))
    decision = expr.method(
        choices=list(expr.choices),
        normalized_prompt_logprobs=[mean_logprob(row) for row in conditional],
        input_token_logprobs=conditional,
        output_token_logprobs=[[] for _ in conditional],
        unconditional_token_logprobs=alone,
    )
    _take_decision(strand, expr, decision, variable)
    strand.transcript.take_choice(rows[expr.choices.index(decision.decision)], decision.decision)


def _take_decision(strand: Strand, expr: nodes.Select, decision: ChoicesDecision, variable: Variable | None) -> None:
    if decision.decision not in expr.choices:
        raise InvalidParameterError(f"choices_method chose {decision.decision!r}, which is no choice")
    strand.roles.wrote(decision.decision)
    strand.write(decision.decision)
    if variable is not None:
        variable.feed.add(decision.decision)
        variable.resolve(decision.decision, decision.meta_info)


async def _score(strand: Strand, ids: list[int], start: int) -> list[TokenLogprob]:
    params = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=0, prompt_logprob_start=start, seed=0)
    output = await _answer(strand, ids, params, is_told=False)
    found = output.prompt_logprobs or []
    ensure(len(found) == len(ids) - start, f"{len(ids) - start} tokens were scored, and {len(found)} logprobs came")
    return scored(ids[start:], found, strand.transcript.codec)


async def _together(*work: Any) -> Any:
    """Do work side by side; the first error ends all of it."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _tool(strand: Strand, expr: nodes.ToolCall, variable: Variable | None, context: contextvars.Context) -> None:
    result = await call_tool(find_tool(expr.tool, strand.program.tools), expr.args, strand, context)
    if variable is not None:
        variable.resolve(result, {"tool": expr.into, "args": dict(expr.args)})


async def _role_begin(strand: Strand, expr: nodes.RoleBegin, _: Variable | None) -> None:
    strand.roles.begin(expr.role)


async def _role_end(strand: Strand, expr: nodes.RoleEnd, _: Variable | None) -> None:
    strand.say(strand.roles.end(expr.role))


async def _scope_begin(strand: Strand, expr: nodes.ScopeBegin, variable: Variable | None) -> None:
    if variable is not None:
        strand.scopes[variable] = len(strand.transcript.text)


async def _scope_end(strand: Strand, expr: nodes.ScopeEnd, variable: Variable | None) -> None:
    if variable is None:
        raise InvalidParameterError(f"the scope '{expr.name}' ends, but none of that name has begun")
    text = strand.transcript.text[strand.scopes.pop(variable) :]
    variable.feed.add(text)
    variable.resolve(text)


async def _ask(strand: Strand, expr: nodes.Ask, _: Variable | None) -> None:
    await strand.beside_done()
    settle(expr.answer, expr.read(strand))


async def _fork(strand: Strand, expr: nodes.Fork, _: Variable | None) -> None:
    for child in expr.children:
        child.begin(strand)


async def _join(strand: Strand, expr: nodes.Join, _: Variable | None) -> None:
    effects = strand.program.effects
    if expr.appends_text or not (effects.enable_parallel_branches and all(each.is_pure for each in expr.children)):
        await _gather(strand, expr)
    else:
        strand.do_beside(expr, _gather(strand, expr))


async def _gather(strand: Strand, expr: nodes.Join) -> None:
    waits = [
        asyncio.wrap_future(child.ask(lambda own: own.transcript.text[own.inherited_len :])) for child in expr.children
    ]
    texts = await asyncio.gather(*waits)
    for child in expr.children:
        child.end()
    for variable, parts in expr.gathered.values():
        variable.resolve([await asyncio.wrap_future(following(part.future)) for part in parts])
    if expr.appends_text:
        for text in texts:
            await _constant(strand, nodes.Constant(text=text, line=expr.line), None)


_PERFORM: Mapping[type[nodes.Expr], Perform] = {
    nodes.Constant: _constant,
    nodes.Gen: _gen,
    nodes.Select: _select,
    nodes.RoleBegin: _role_begin,
    nodes.RoleEnd: _role_end,
    nodes.ScopeBegin: _scope_begin,
    nodes.ScopeEnd: _scope_end,
    nodes.Ask: _ask,
    nodes.Fork: _fork,
    nodes.Join: _join,
}
