r"""How primitives are done by a remote model, and how it is asked ahead (`num_api_spec_tokens`).

An API is paid by the call, each with all that precedes. A completion model that is asked ahead writes on behind the
stop of a `gen`; what it wrote is kept, and as long as the author's constants spell the same, later `gen`s take theirs
from it. A chat model cannot go on with a message that the author has begun; asked ahead it writes the whole message at
once, which must match what the author has written around the `gen`s ::

    author    assistant("Name: " + gen("name", stop="\n") + "\nBorn: " + gen("born"))
    model     Name: Ada Lovelace\nBorn: 1815
              | must match        | must match

Source: Zheng et al. 2024, SGLang: Efficient Execution of Structured Language Model Programs, section 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trivium.base.errors import DeadlineExceededError, InvalidParameterError, ProgramError, RemoteError
from trivium.grammar.stops import StopConditions
from trivium.lang import expressions as nodes
from trivium.lang.backends.remote import ANSWERING, Asked, Cutter, Piece, RemoteBackend
from trivium.lang.choices import ChoicesDecision, TokenLogprob, mean_logprob

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams
    from trivium.lang.promises import Variable
    from trivium.lang.strand import Strand

MAX_TRIES = 3
"""Answers of a chat model that are tried against what the author has written."""


@dataclass(slots=True)
class Part:
    """A part of a message that a chat model writes as a whole: the author's text, or a `gen`."""

    expr: nodes.Expr
    text: str = ""
    variable: Variable | None = None
    params: SamplingParams | None = None
    """Those of a `gen`."""


@dataclass(slots=True)
class Turn:
    """What a model has written ahead, or is about to write."""

    parts: list[Part] = field(default_factory=list)
    """The open message so far, where a chat model is asked when it ends."""
    ahead: str = ""
    """What a completion model wrote behind the state's text."""

    def follow(self, text: str) -> None:
        """Take note of text that was appended: what was written ahead counts as far as it is the same."""
        self.ahead = self.ahead.removeprefix(text) if self.ahead.startswith(text) else ""

    def lose(self, error: ProgramError) -> None:
        """End what waits for the message's end with an error."""
        for part in self.parts:
            if part.variable is not None:
                part.variable.fail(error)
        self.parts.clear()


def is_left_to_model(strand: Strand) -> bool:
    """Whether text in the open message is the model's to write, because it is asked ahead for the whole message."""
    program = strand.program
    return (
        program.num_api_spec_tokens is not None
        and isinstance(program.backend, RemoteBackend)
        and program.backend.is_chat_model
        and strand.roles.open_role == ANSWERING
    )


async def gen(strand: Strand, expr: nodes.Gen, variable: Variable | None) -> None:
    """Let a remote model write.

    Raises:
        UnsupportedFeatureError: Its API cannot do what is asked.
        RemoteError: It refused, or failed.
    """
    backend = _backend(strand)
    if expr.reasoning is not None:
        raise backend.unsupported("separate_reasoning", "its API keeps reasoning to itself")
    sampling = expr.sampling.over(strand.program.defaults)
    form = expr.form
    params = sampling.params(None if form is None else form.constraint, () if form is None else form.stop)
    if is_left_to_model(strand):
        if form is not None or params.n > 1 or params.logprobs is not None:
            raise InvalidParameterError(
                "num_api_spec_tokens asks a chat model for a whole message at once, so its gens take no type, regex, "
                "json_schema, n or return_logprob",
                param="num_api_spec_tokens",
            )
        strand.turn.parts.append(Part(expr, "", variable, params))
        return
    strand.open_for_model()
    is_plain = form is None and params.n == 1 and params.logprobs is None and (params.stop or params.stop_regex)
    if strand.program.num_api_spec_tokens is not None and is_plain:
        text, meta = await _from_ahead(strand, params, variable)
        _take(strand, text)
        if variable is not None:
            variable.resolve(text, meta)
        return
    texts, metas = await _whole(strand, params, variable)
    strand.turn.ahead = ""
    _take(strand, texts[0])
    if variable is not None:
        is_list = params.n > 1
        variable.resolve(texts if is_list else texts[0], {"choices": metas} if is_list else metas[0])


async def select(strand: Strand, expr: nodes.Select) -> ChoicesDecision:
    """Let a remote model choose.

    Raises:
        UnsupportedFeatureError: Its API does not score texts, or not without what precedes them.
        RemoteError: It refused, or failed.
    """
    backend = _backend(strand)
    if getattr(expr.method, "requires_unconditional_logprobs", False):
        raise backend.unsupported("choices_method", "it needs the choices scored as tokens by themselves")
    rows: list[list[TokenLogprob]] = await backend.score(strand.transcript.text, expr.choices)
    return expr.method(
        choices=list(expr.choices),
        normalized_prompt_logprobs=[mean_logprob(row) for row in rows],
        input_token_logprobs=rows,
        output_token_logprobs=[[] for _ in rows],
        unconditional_token_logprobs=None,
    )


async def end_turn(strand: Strand) -> None:
    """Ask a chat model for the message that was left to it, and give each `gen` its part.

    Raises:
        InvalidParameterError: The `gen`s of the message draw differently, or one has an end that cannot be found.
        RemoteError: It refused or failed, or none of its answers matched.
    """
    parts = list(strand.turn.parts)
    meta: dict[str, Any] = {}
    gens = [part for part in parts if part.params is not None]
    if gens:
        limits = [part.expr.timeout_s for part in gens if isinstance(part.expr, nodes.Gen) and part.expr.timeout_s]
        try:
            async with asyncio.timeout(min(limits) if limits else None):
                texts, meta = await _matching(strand, parts, _one_for_all(strand, gens))
        except TimeoutError:
            raise DeadlineExceededError(f"the message took longer than the {min(limits):g} s of its gens") from None
        for part, text in zip(parts, texts, strict=True):
            part.text = text
    strand.turn.parts.clear()
    for part in parts:
        strand.say(strand.roles.write(part.text))
        if part.variable is not None:
            part.variable.feed.add(part.text)
            part.variable.resolve(part.text, dict(meta))


async def _matching(strand: Strand, parts: list[Part], params: SamplingParams) -> tuple[list[str], dict[str, Any]]:
    texts = [""]
    for _ in range(MAX_TRIES):
        texts, metas = await _whole(strand, params, None, is_told=False)
        found = list(_matched(parts, texts[0]))
        if len(found) == len(parts):
            return found, metas[0]
    raise RemoteError(
        f"{_backend(strand).model_name} was asked ahead {MAX_TRIES} times, and no answer matched what the program has "
        f"written around its gens; the last one began {texts[0][: nodes.MAX_SHOWN]!r}"
    )


def _one_for_all(strand: Strand, gens: list[Part]) -> SamplingParams:
    alike = [replace(part.params, stop=(), stop_regex=(), max_tokens=None) for part in gens if part.params is not None]
    if any(each != alike[0] for each in alike):
        raise InvalidParameterError(
            "num_api_spec_tokens asks for a whole message at once, so all its gens must draw alike; only stop and "
            "max_tokens may differ",
            param="num_api_spec_tokens",
        )
    return replace(alike[0], max_tokens=strand.program.num_api_spec_tokens)


def _matched(parts: list[Part], answer: str) -> Iterator[str]:
    """Yield the text of each part as long as the answer matches."""
    for idx, part in enumerate(parts):
        if part.params is None:
            if not answer.startswith(part.text):
                return
            text = part.text
        else:
            following = parts[idx + 1].text if idx + 1 < len(parts) else ""
            cutter = _cutter(part.params, (following,) if following else ())
            text = cutter.push(answer)
            if not cutter.is_done:
                if idx + 1 < len(parts):
                    return
                text += cutter.finish()
        yield text
        answer = answer[len(text) :]


async def _from_ahead(strand: Strand, params: SamplingParams, variable: Variable | None) -> tuple[str, dict[str, Any]]:
    """Take an answer from what was written ahead; where its end is not in it, have more written."""
    text, rest = _cut(params, strand.turn.ahead)
    meta: dict[str, Any] = {"finish_reason": {"type": "stop", "matched": None}, "completion_tokens": 0}
    if rest is None:
        most = max(params.max_tokens or 0, strand.program.num_api_spec_tokens or 0)
        texts, metas = await _whole(
            strand, replace(params, stop=(), stop_regex=(), max_tokens=most), None, is_told=False
        )
        text, rest = _cut(params, texts[0])
        meta = metas[0]
    strand.turn.ahead = rest or ""
    strand.write(text)
    if variable is not None:
        variable.feed.add(text)
    return text, meta


def _cut(params: SamplingParams, written: str) -> tuple[str, str | None]:
    """Return what precedes the first stop, and what follows from it on; `None` where there is none."""
    cutter = _cutter(params)
    text = cutter.push(written)
    if not cutter.is_done:
        return written, None
    return text, written[len(text) :]


async def _whole(
    strand: Strand, params: SamplingParams, variable: Variable | None, *, is_told: bool = True
) -> tuple[list[str], list[dict[str, Any]]]:
    """Ask, and return texts and what is known of them; the first text is told to readers as it comes."""
    roles = strand.roles
    asked = Asked(
        text=strand.transcript.text,
        messages=[dict(each) for each in roles.messages],
        open_role=roles.open_role,
        open_content=roles.open_content,
        has_loose_text=roles.has_loose_text,
        params=params,
    )
    texts = ["" for _ in range(params.n)]
    metas: list[dict[str, Any]] = [{} for _ in texts]
    async with aclosing(_until_stopped(_backend(strand), asked)) as pieces:
        async for piece in pieces:
            texts[piece.choice] += piece.text
            meta = metas[piece.choice]
            for name, value in piece.meta.items():
                meta[name] = [*meta.get(name, ()), *value] if isinstance(value, list) else value
            if piece.choice == 0 and piece.text and is_told:
                strand.write(piece.text, dict(piece.meta))
                if variable is not None:
                    variable.feed.add(piece.text, dict(piece.meta))
    return texts, metas


async def _until_stopped(backend: RemoteBackend, asked: Asked) -> AsyncGenerator[Piece]:
    """Yield an answer's pieces; stops that the API does not know are looked for here, and end the request."""
    own = asked.params.stop_regex or len(asked.params.stop) > backend.max_stops
    if not own:
        async with aclosing(backend.write(asked)) as pieces:
            async for piece in pieces:
                yield piece
        return
    sent = replace(asked, params=replace(asked.params, stop=asked.params.stop[: backend.max_stops], stop_regex=()))
    cutters = [_cutter(asked.params) for _ in range(asked.params.n)]
    done: set[int] = set()
    async with aclosing(backend.write(sent)) as pieces:
        async for piece in pieces:
            if piece.choice in done:
                continue
            cutter = cutters[piece.choice]
            text, meta = cutter.push(piece.text), piece.meta
            if cutter.is_done:
                done.add(piece.choice)
                meta = {**meta, "finish_reason": {"type": "stop", "matched": cutter.matched}}
            yield Piece(piece.choice, text, meta)
            if len(done) == len(cutters):
                return
    for choice, cutter in enumerate(cutters):
        if held := cutter.finish():
            yield Piece(choice, held)


def _cutter(params: SamplingParams, more: tuple[str, ...] = ()) -> Cutter:
    return Cutter(StopConditions((*params.stop, *more), params.stop_regex))


def _take(strand: Strand, text: str) -> None:
    strand.transcript.append(text)
    strand.roles.wrote(text)


def _backend(strand: Strand) -> RemoteBackend:
    backend: Any = strand.program.backend
    found: RemoteBackend = backend
    return found
