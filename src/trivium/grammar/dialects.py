"""How families of models write reasoning and tool calls: one row each, as data for one reader and one grammar.

A call, or a section of calls, is written::

    begin  call  between  call  between  call  end

`begin` or else `call` starts with the mark by which it is known. Names are those by which vLLM knows a parser.
Sources: the models' chat templates and cards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trivium.base.errors import InternalError
from trivium.grammar.literals import GEMMA, PYTHON, Literals
from trivium.grammar.parameters import Parameters
from trivium.grammar.pieces import Blank, Envelope, Json, Label, Mark, Name, Number, Piece

Pieces = tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to write calls."""

    begin: Pieces = ()
    call: Pieces
    between: Pieces = ()
    end: Pieces = ()
    is_bare: bool = False
    """Whether it may stand, with nothing by which it is known, where an answer begins. Then only tools that the request
    has are called; anything else is content."""

    @property
    def mark(self) -> str | None:
        """The mark by which it is known; a bare form has none."""
        first = (*self.begin, *self.call)[0]
        return first.text if isinstance(first, Mark) and not self.is_bare else None

    @property
    def is_section(self) -> bool:
        """Whether calls may follow each other inside of it."""
        return bool(self.begin or self.between)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """How a span of reasoning stands where the answer begins."""

    begin: str
    end: str
    is_open: bool = False
    """Whether the model reasons from the first letter on, whether or not it writes `begin`."""
    ends_at_calls: bool = False
    """Whether the mark of a call ends it as well, because the model leaves out `end` there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """Every part of the answer is a message with a header, which says what it is.

    ::

        <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
    """

    begin: tuple[str, ...]
    """Marks with which a header begins."""
    message: str
    """The mark with which it ends."""
    ends: tuple[str, ...]
    reasoning: str
    """Channel of reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What one family of models writes; a part is `None`, or empty, where it has none or another row says it."""

    reasoning: Reasoning | None = None
    calls: tuple[Form, ...] = ()
    channels: Channels | None = None

    @property
    def reads_reasoning(self) -> bool:
        """Whether it says how reasoning is marked."""
        return self.reasoning is not None or self.channels is not None

    @property
    def reads_calls(self) -> bool:
        """Whether it says how calls are written."""
        return bool(self.calls) or self.channels is not None

    def span(self) -> Reasoning:
        """Return how a span of reasoning is marked.

        Raises:
            InternalError: The dialect has no reasoning.
        """
        if self.channels is not None:
            channels = self.channels
            begin = f"{channels.begin[-1]}{channels.reasoning}{channels.message}"
            return Reasoning(begin=begin, end=channels.ends[0])
        if self.reasoning is None:
            raise InternalError("the dialect has no reasoning")
        return self.reasoning

    def call_marks(self) -> list[str]:
        """Return the marks by which calls are known."""
        return [form.mark for form in self.calls if form.mark is not None]

    def marks(self) -> Iterator[str]:
        """Yield every mark; those that are special tokens must be read."""
        if self.reasoning is not None:
            yield from (self.reasoning.begin, self.reasoning.end)
        if self.channels is not None:
            yield from (*self.channels.begin, self.channels.message, *self.channels.ends, "<|constrain|>")
        for form in self.calls:
            for piece in (*form.begin, *form.call, *form.between, *form.end):
                match piece:
                    case Mark():
                        yield piece.text
                    case Parameters():
                        yield from (piece.key_begin, piece.key_end, piece.value_begin, piece.value_end)
                    case Literals():
                        yield from piece.quotes


GAP, LINE = Blank(), Blank("\n")
_ENVELOPE: Pieces = (GAP, Envelope())


def _each(begin: str, end: str, *inner: Piece) -> Form:
    """Calls that stand alone, each between two marks."""
    return Form(call=(Mark(begin), *inner, Mark(end)))


def _listed(begin: Pieces, end: Pieces = (), *, call: Pieces = _ENVELOPE, is_bare: bool = False) -> Form:
    """Calls in brackets."""
    return Form(
        begin=(*begin, Mark("[")),
        call=(*call, GAP),
        between=(Mark(","), Blank(" ")),
        end=(Mark("]"), *end),
        is_bare=is_bare,
    )


_TAGGED = _each("<tool_call>", "</tool_call>", LINE, Envelope(), LINE)
_PYTHON_CALL: Pieces = (GAP, Name(), Mark("("), PYTHON)
_PYTHON = _listed((), call=_PYTHON_CALL, is_bare=True)
_LLAMA_CALL: Pieces = (Envelope(arguments_key="parameters"),)
_FENCED_JSON: Pieces = (LINE, Mark("```json"), LINE, Json(), LINE, Mark("```"), GAP)


def _xml(begin: str, end: str, *, frames_with_lines: bool) -> Form:
    parameters = Parameters("<parameter=", ">", "</parameter>", frames_with_lines=frames_with_lines)
    function: Pieces = (Mark("<function="), Name(), Mark(">"), LINE, parameters, Mark("</function>"))
    return _each(begin, end, LINE, *function, LINE)


def _think(begin: str = "<think>", end: str = "</think>", *, is_open: bool = False) -> Dialect:
    return Dialect(reasoning=Reasoning(begin=begin, end=end, is_open=is_open))


def _deepseek(*inner: Piece, between: Pieces) -> Dialect:
    return Dialect(
        calls=(
            Form(
                begin=(Mark("<｜tool▁calls▁begin｜>"), GAP),
                call=(Mark("<｜tool▁call▁begin｜>"), *inner, Mark("<｜tool▁call▁end｜>")),
                between=between,
                end=(GAP, Mark("<｜tool▁calls▁end｜>")),
            ),
        ),
        reasoning=Reasoning(begin="<think>", end="</think>"),
    )


def _dsml(section: str) -> Dialect:
    parameters = Parameters('<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>", kind_mark='" string="')
    invoke: Pieces = (
        Mark('<｜DSML｜invoke name="'),
        Name(),
        Mark('">'),
        LINE,
        parameters,
        Mark("</｜DSML｜invoke>"),
        LINE,
    )
    form = Form(begin=(Mark(f"<｜DSML｜{section}>"), LINE), call=invoke, end=(Mark(f"</｜DSML｜{section}>"),))
    return Dialect(calls=(form,), reasoning=Reasoning(begin="<think>", end="</think>"))


_HARMONY = Dialect(
    channels=Channels(
        begin=("<|start|>", "<|channel|>"),
        message="<|message|>",
        ends=("<|end|>", "<|call|>", "<|return|>"),
        reasoning="analysis",
    )
)

DIALECTS: Mapping[str, Dialect] = {
    # ── calls as JSON with name and arguments ─────────────────────────────────────────────────
    "hermes": Dialect(calls=(_TAGGED,)),
    "granite": Dialect(
        calls=(_listed((Mark("<|tool_call|>"), GAP)), _listed((Mark("<tool_call>"), GAP))),
        reasoning=Reasoning(begin="Here is my thought process:", end="Here is my response:"),
    ),
    "granite4": Dialect(calls=(_TAGGED,)),
    "granite-20b-fc": Dialect(calls=(Form(call=(Mark("<function_call>"), Blank(" "), Envelope())),)),
    "hunyuan_a13b": Dialect(
        calls=(_listed((Mark("<tool_calls>"), GAP), (GAP, Mark("</tool_calls>"))),),
        reasoning=Reasoning(begin="<think>", end="</think>"),
    ),
    "internlm": Dialect(
        calls=(_each("<|action_start|>", "<|action_end|>", GAP, Mark("<|plugin|>"), LINE, *_LLAMA_CALL, LINE),)
    ),
    "jamba": Dialect(calls=(_listed((Mark("<tool_calls>"), GAP), (GAP, Mark("</tool_calls>"))),)),
    "llama3_json": Dialect(
        calls=(
            Form(call=_LLAMA_CALL, between=(Mark(";"), Blank(" ")), is_bare=True),
            Form(begin=(Mark("<|python_tag|>"), GAP), call=_LLAMA_CALL, between=(Mark(";"), Blank(" "))),
        )
    ),
    "phi4_mini_json": Dialect(calls=(_listed((Mark("functools"), GAP)),)),
    "xlam": Dialect(calls=(_listed((), is_bare=True),)),
    # ── a name, then arguments as JSON ────────────────────────────────────────────────────────
    "deepseek_v3": _deepseek(Mark("function"), Mark("<｜tool▁sep｜>"), Name(), *_FENCED_JSON, between=(LINE,)),
    "deepseek_v31": _deepseek(Name(), Mark("<｜tool▁sep｜>"), Json(), between=(GAP,)),
    "kimi_k2": Dialect(
        calls=(
            Form(
                begin=(Mark("<|tool_calls_section_begin|>"), GAP),
                call=(
                    Mark("<|tool_call_begin|>"),
                    GAP,
                    Mark("functions.", is_optional=True),
                    Name(),
                    Mark(":"),
                    Number(),
                    GAP,
                    Mark("<|tool_call_argument_begin|>"),
                    Json(),
                    GAP,
                    Mark("<|tool_call_end|>"),
                    GAP,
                ),
                end=(Mark("<|tool_calls_section_end|>"),),
            ),
        ),
        reasoning=Reasoning(begin="<think>", end="</think>", ends_at_calls=True),
    ),
    "mistral": Dialect(
        calls=(
            Form(
                call=(
                    Mark("[TOOL_CALLS]"),
                    GAP,
                    Name(),
                    Label("[CALL_ID]"),
                    Mark("[ARGS]", is_optional=True),
                    Json(),
                )
            ),
            _listed((Mark("[TOOL_CALLS]"), GAP)),
        ),
        reasoning=Reasoning(begin="[THINK]", end="[/THINK]"),
    ),
    "openai": _HARMONY,
    # ── a name, then arguments between marks ──────────────────────────────────────────────────
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "glm45": Dialect(
        calls=(
            _each(
                "<tool_call>",
                "</tool_call>",
                Name(),
                LINE,
                Parameters("<arg_key>", "</arg_key>", "</arg_value>", "<arg_value>"),
            ),
        ),
        reasoning=Reasoning(begin="<think>", end="</think>"),
    ),
    "minimax_m2": Dialect(
        calls=(
            Form(
                begin=(Mark("<minimax:tool_call>"), LINE),
                call=(
                    Mark('<invoke name="'),
                    Name(),
                    Mark('">'),
                    LINE,
                    Parameters('<parameter name="', '">', "</parameter>"),
                    Mark("</invoke>"),
                    LINE,
                ),
                end=(Mark("</minimax:tool_call>"),),
            ),
        ),
        reasoning=Reasoning(begin="<think>", end="</think>", is_open=True),
    ),
    "qwen3_coder": Dialect(calls=(_xml("<tool_call>", "</tool_call>", frames_with_lines=True),)),
    "seed_oss": Dialect(
        calls=(_xml("<seed:tool_call>", "</seed:tool_call>", frames_with_lines=False),),
        reasoning=Reasoning(begin="<seed:think>", end="</seed:think>"),
    ),
    # ── calls as expressions ──────────────────────────────────────────────────────────────────
    "functiongemma": Dialect(
        calls=(_each("<start_function_call>", "<end_function_call>", Mark("call:"), Name(), Mark("{"), GEMMA),)
    ),
    "lfm2": Dialect(
        calls=(_listed((Mark("<|tool_call_start|>"), GAP), (GAP, Mark("<|tool_call_end|>")), call=_PYTHON_CALL),)
    ),
    "llama4_pythonic": Dialect(
        calls=(
            _PYTHON,
            _listed((Mark("<|python_start|>"), GAP), (Mark("<|python_end|>", is_optional=True),), call=_PYTHON_CALL),
        )
    ),
    "olmo3": Dialect(
        calls=(
            Form(
                begin=(Mark("<function_calls>"), LINE),
                call=(Name(), Mark("("), PYTHON, LINE),
                end=(Mark("</function_calls>"),),
            ),
        ),
        reasoning=Reasoning(begin="<think>", end="</think>"),
    ),
    "pythonic": Dialect(calls=(_PYTHON,)),
    # ── reasoning alone ───────────────────────────────────────────────────────────────────────
    "deepseek_r1": _think(is_open=True),
    "openai_gptoss": _HARMONY,
    "qwen3": _think(),
    "step3": _think(is_open=True),
}
"""Dialects by their names."""

ALIASES: Mapping[str, str] = {
    "glm47": "glm45",
    "harmony": "openai",
    "llama4_json": "llama3_json",
    "qwen3_xml": "qwen3_coder",
    "minimax_m2_append_think": "minimax_m2",
}
"""Other names for the same."""


def dialect_of(name: str) -> Dialect | None:
    """Return a dialect by its name, or `None`."""
    return DIALECTS.get(ALIASES.get(name, name))
