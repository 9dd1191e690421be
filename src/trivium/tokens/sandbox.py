"""A Jinja environment for templates of strangers: no way out of the sandbox, and no way to go on for ever.

On top of Jinja's immutable sandbox, whatever a template does pays from the `RenderBudget` of its rendering: loop turns,
calls, filters, operators, containers and written values. There is no loader, so no template can read a file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trivium.tokens.render_budget import OverBudgetError, RenderBudget

BUDGET = "render budget"
"""Variable that holds the rendering's budget; the space keeps templates from naming it."""

_LOOKS_ONLY = frozenset({
    "attr", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length", "list", "map", "max",
    "min", "random", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "sum", "unique",
})  # fmt: skip
"""Filters that pick from a container and write no text."""
_MAX_BITS = 4096


class _PayingGenerator(CodeGenerator):
    """Writes the payments into the compiled template."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802  (Jinja's name)
        letters = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        letters += sum(len(const.value) for const in node.find_all(nodes.Const) if isinstance(const.value, str))
        arguments = [nodes.ContextReference(), nodes.Const(letters), node.iter]
        node.iter = nodes.Call(nodes.EnvironmentAttribute("pay_turns"), arguments, [], None, None, lineno=node.lineno)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.join_parts(context, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._paid(functools.partial(super().visit_List, node, frame))

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._paid(functools.partial(super().visit_Dict, node, frame))

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._paid(functools.partial(super().visit_Tuple, node, frame))
        else:
            super().visit_Tuple(node, frame)

    def _paid(self, visit: Callable[[], None]) -> None:
        self.write("environment.pay_for(context, ")
        visit()
        self.write(")")


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks answers in training data; here it only writes its content."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements inside the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class PayingEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, in which everything is paid for."""

    code_generator_class = _PayingGenerator
    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            optimized=False,
            finalize=_pay_for_written,
        )
        self.globals.pop("lipsum", None)
        self.filters = {name: _paying_filter(name, filter_) for name, filter_ in self.filters.items()}

    def add_filter(self, name: str, filter_: Callable[..., Any]) -> None:
        """Enter a filter that is paid for like Jinja's own."""
        self.filters[name] = _paying_filter(name, filter_)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something from a template."""
        budget = _budget(context)
        budget.pay(1)
        if isinstance(called, LoopContext) and args:
            args = (budget.turns(args[0], 0), *args[1:])
        _foresee_method(budget, called, (*args, *kwargs.values()))
        return budget.pay_for(super().call(context, called, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator whose result may be much larger than its operands."""
        budget = _budget(context)
        _FORESEE[operator](budget, left, right)
        result = super().call_binop(context, operator, left, right)
        # A list is paid for by its length only: appending in a loop must not look into all items every time.
        budget.pay(1 + len(result) // 64 if isinstance(result, (str, list, tuple)) else 1)
        return result

    def pay_turns(self, context: Context, letters: int, values: Any) -> Any:
        """Make a loop pay for its turns; what can't be looped over is left to Jinja's own error."""
        if not isinstance(values, Iterable) or isinstance(values, Undefined):
            return values
        return _budget(context).turns(values, letters)

    def pay_for(self, context: Context, value: Any) -> Any:
        """Pay for a container that the template wrote down."""
        return _budget(context).pay_for(value)

    def join_parts(self, context: Context, parts: tuple[Any, ...]) -> str:
        """Join the operands of `~`."""
        _budget(context).pay_for(parts)
        return "".join(map(str, parts))


def _budget(context: Context) -> RenderBudget:
    budget = context.resolve_or_missing(BUDGET)
    if not isinstance(budget, RenderBudget):
        raise OverBudgetError("it is rendered without a budget")
    return budget


@pass_context
def _pay_for_written(context: Context, value: Any) -> Any:
    return _budget(context).pay_for(value)


def _paying_filter(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter; what it wants passed first (context, evaluation context, environment) is passed on."""
    wants = getattr(getattr(filter_, "jinja_pass_arg", None), "name", None)

    @pass_context
    @functools.wraps(filter_)
    def paying(context: Context, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.pay(1)
        if name not in _LOOKS_ONLY:
            value = list(value) if isinstance(value, Iterator) else value
            budget.foresee_product(value, (*args, *kwargs.values()))
        if name == "format" and isinstance(value, str):
            budget.foresee_format(value, (*args, *kwargs.values()))
        first = {"context": (context,), "eval_context": (context.eval_ctx,), "environment": (context.environment,)}
        result = filter_(*first.get(str(wants), ()), value, *args, **kwargs)
        if isinstance(result, Iterator):
            return budget.turns(result, 0)
        return budget.pay_for(result) if isinstance(result, str) else result

    return paying


def _foresee_method(budget: RenderBudget, method: Any, arguments: tuple[Any, ...]) -> None:
    """Foresee what a method of a text would make; `format` comes wrapped by Jinja."""
    method = getattr(method, "__wrapped__", method)
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if not isinstance(owner, str):
        return
    if name in {"format", "format_map"}:
        budget.foresee_format(owner, arguments)
    elif name == "join" and arguments:
        budget.foresee_product(arguments[0], (owner,))
    else:
        budget.foresee_product(owner, arguments)


def _foresee_sum(budget: RenderBudget, left: Any, right: Any) -> None:
    for kind in (str, list, tuple):
        if isinstance(left, kind) and isinstance(right, kind):
            budget.foresee(len(left) + len(right))


def _foresee_times(budget: RenderBudget, left: Any, right: Any) -> None:
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, (str, list, tuple)) and isinstance(times, int):
            budget.foresee(len(repeated) * times)
    if isinstance(left, int) and isinstance(right, int):
        _foresee_bits(left.bit_length() + right.bit_length())


def _foresee_power(budget: RenderBudget, left: Any, right: Any) -> None:
    del budget
    if isinstance(left, int) and isinstance(right, int):
        _foresee_bits(left.bit_length() * abs(right))


def _foresee_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise OverBudgetError(f"it computes a number of {bits} bits")


def _foresee_remainder(budget: RenderBudget, left: Any, right: Any) -> None:
    if isinstance(left, str):
        budget.foresee_format(left, right if isinstance(right, tuple) else (right,))


_FORESEE: dict[str, Callable[[RenderBudget, Any, Any], None]] = {
    "+": _foresee_sum,
    "*": _foresee_times,
    "**": _foresee_power,
    "%": _foresee_remainder,
}
