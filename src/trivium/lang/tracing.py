"""A strand that records instead of doing: the author's function runs once, with values that are not known yet.

What is recorded says the same whenever it runs, or the trace ends: a variable may be read where it still is what the
author read. ::

    x = s["a"]                 $a, as it is now
    s += gen("a")              $a is another one
    s += x                     the trace ends here: nothing of the program says what $a was before

In a loop the body is recorded once and done often, so what was read before it must not be set in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from trivium.lang import expressions as exprs
from trivium.lang.abstract import Abstract, Promise, Untraceable, stop, value_of
from trivium.lang.choices import METHODS
from trivium.lang.expressions import author_line
from trivium.program import nodes
from trivium.program.limits import MAX_NODES
from trivium.program.nodes import Body, Node
from trivium.program.values import Branch, Operation, Text, Value, Variable, text_of
from trivium.program.verify import sets

if TYPE_CHECKING:
    from trivium.lang.flow import Do
    from trivium.lang.state import ProgramState


@dataclass(slots=True)
class _Forking:
    """A fork whose branches may still grow."""

    name: str
    children: Sequence[TracingStrand]
    line: str


@dataclass(slots=True)
class Shared:
    """What the strands of a trace share."""

    tools: dict[str, Callable[..., Any]]
    clock: Iterator[int] = field(default_factory=count)
    """Counts reads and values that names have had."""
    num_forks: int = 0
    num_nodes: int = 0
    branch_reads: list[Promise] = field(default_factory=list)
    """Variables of branches that were read by the state that forked them."""
    unclosed: str | None = None
    """Line of a role or scope that was never ended."""

    def check(self) -> None:
        """End the trace if what was recorded is not what the function does.

        Raises:
            Untraceable: A branch has set a variable again after it was read, or a role never ended.
        """
        for promise in self.branch_reads:
            owner: Any = promise.owner
            if owner.versions[promise.name] != promise.version:
                stop(f"variable '{promise.name}' of a branch was set again after the state that forked it had read it")
        if self.unclosed is not None:
            raise Untraceable(f"the role or scope that begins at {self.unclosed} never ends")


class _Read:
    """A variable, as `ProgramState` finds it: every read is a new promise."""

    def __init__(self, owner: TracingStrand, name: str) -> None:
        self._owner = owner
        self.name = name

    @property
    def future(self) -> Future[Any]:
        """The promise."""
        found: Future[Any] = Future()
        shared = self._owner.shared
        found.set_result(Abstract(Promise(self._owner, self.name, self._owner.versions[self.name], next(shared.clock))))
        return found

    @staticmethod
    def parse(given: Abstract) -> Abstract:
        """What its text says."""
        return Abstract(replace(given.value, is_parsed=True))

    @property
    def meta(self) -> NoReturn:
        """Not known."""
        stop(f"what is known of variable '{self.name}' besides its value (get_meta_info) is asked for")

    @property
    def feed(self) -> NoReturn:
        """Not known."""
        stop(f"variable '{self.name}' is read as it is written")


class _Names(dict[str, _Read]):
    """Variables by name; whether one is there is not known of those that only some ways set."""

    def __init__(self) -> None:
        super().__init__()
        self.maybe: set[str] = set()

    def __contains__(self, name: object) -> bool:
        if name in self.maybe:
            stop(f"variable '{name}' is asked for, which is not set on every way there; set it before, if only to ''")
        return super().__contains__(name)


class TracingStrand:
    """Takes the place of a state's `Strand`."""

    is_tracing = True

    def __init__(self, shared: Shared, parent: TracingStrand | None = None) -> None:
        self.shared = shared
        self.parent = parent
        self.variables = _Names()
        self.versions: dict[str, int] = {}
        self.own_names: list[str] = []
        if parent is not None:
            self.versions = dict(parent.versions)
            self.variables.update((name, _Read(self, name)) for name in dict.keys(parent.variables))
            self.variables.maybe |= parent.variables.maybe
        self._blocks: list[tuple[exprs.Expr | None, list[Node | _Forking]]] = [(None, [])]
        """Bodies that are open: what opened them, and their nodes."""
        self._used: list[Promise] = []
        self._forks: dict[int, Branch] = {}
        """Branches that were forked from here, by the id of their strand."""
        self.is_closed = False

    # -- what a state asks of its strand

    def append(self, expr: exprs.Expr) -> None:
        """Record a node, or the nodes of a sum."""
        for leaf in exprs.leaves(expr):
            _RECORD[type(leaf)](self, leaf)

    def set(self, name: str, value: Any) -> None:
        """Record that a variable is given a value."""
        self._add(nodes.Set(name=name, value=self.lower(value_of(value)), line=author_line()))
        self._declare(name)

    def ask(self, read: Callable[[Any], Any]) -> Future[Any]:
        """Answer what needs no text."""
        found: Future[Any] = Future()
        found.set_result(read(self))
        return found

    def child(self) -> TracingStrand:
        """Return the strand of a branch."""
        return TracingStrand(self.shared, self)

    @property
    def error(self) -> NoReturn:
        """Not known."""
        stop("whether something failed is asked for (error())")

    @property
    def transcript(self) -> NoReturn:
        """Not known."""
        stop("the text is read (text()) while the program runs; only variables can be, so collect it with var_scope")

    @property
    def roles(self) -> NoReturn:
        """Not known."""
        stop("the messages are read (messages()) while the program runs")

    @property
    def feed(self) -> NoReturn:
        """Not known."""
        stop("the text is read as it is written (text_iter())")

    # -- decisions

    def trace_if(self, state: ProgramState, condition: Abstract, then: Do, otherwise: Do | None) -> None:
        """Record both ways."""
        line, asked = author_line(), self.lower(condition.value)
        ways = self._ways(state, (then, otherwise))
        self._add(nodes.If(condition=asked, then=ways[0], otherwise=ways[1], line=line))

    def trace_match(
        self, state: ProgramState, subject: Abstract, rows: Sequence[tuple[tuple[Any, ...], Do]], otherwise: Do | None
    ) -> None:
        """Record all ways."""
        line, asked = author_line(), self.lower(subject.value)
        ways = self._ways(state, [*(do for _, do in rows), otherwise])
        cases = tuple(
            nodes.Case(values=tuple(map(value_of, values)), body=body)
            for (values, _), body in zip(rows, ways, strict=False)
        )
        self._add(nodes.Match(subject=asked, cases=cases, otherwise=ways[-1], line=line))

    def trace_while(self, state: ProgramState, condition: Do, body: Do, max_steps: int, at_limit: str) -> None:
        """Record one step."""
        line, began, num_used, before = author_line(), next(self.shared.clock), len(self._used), dict(self.versions)
        asked = self.lower(value_of(condition(state)))
        inner = self._block(state, body)
        changed = {name for name, version in self.versions.items() if before.get(name) != version}
        for promise in self._used[num_used:]:
            if promise.read_at < began and promise.name in changed:
                stop(f"variable '{promise.name}' was read before the while and is set in it, so later steps differ")
        self._declare_some(changed, set(before))
        self._add(nodes.While(condition=asked, max_steps=max_steps, at_limit=at_limit, body=inner, line=line))

    def _ways(self, state: ProgramState, ways: Sequence[Do | None]) -> list[Body]:
        before, found = dict(self.versions), []
        changed = []
        for way in ways:
            self.versions = dict(before)
            found.append(self._block(state, way))
            changed.append(frozenset(each for each, version in self.versions.items() if before.get(each) != version))
        self.versions = before
        self._declare_some(frozenset().union(*changed), frozenset.intersection(*changed) | before.keys())
        return found

    def _declare_some(self, changed: AbstractSet[str], known: AbstractSet[str]) -> None:
        for name in changed:
            self._declare(name)
            if name not in known:
                self.variables.maybe.add(name)

    def _block(self, state: ProgramState, do: Do | None) -> Body:
        self._blocks.append((None, []))
        depth = len(self._blocks)
        if do is not None:
            do(state)
        if len(self._blocks) != depth:
            stop("a role or scope begins in a decision and does not end there, or the other way round")
        return _frozen(self._blocks.pop()[1])

    # -- recording

    def lower(self, value: Value) -> Value:  # noqa: PLR0911  (one return per class)
        """Return a value as this strand's program names it."""
        match value:
            case Abstract():
                return self.lower(value.value)
            case Promise():
                return self._named(value)
            case Text(parts):
                return text_of(*map(self.lower, parts))
            case Operation(name, operands):
                return Operation(name, tuple(map(self.lower, operands)))
            case list():
                return [self.lower(each) for each in value]
            case dict():
                return {key: self.lower(each) for key, each in value.items()}
        return value

    def body(self) -> Body:
        """Return all that was recorded, with what branches recorded since."""
        while len(self._blocks) > 1:
            opened = self._blocks[-1][0]
            self.shared.unclosed = None if opened is None else opened.line
            self._end_block()
        self.is_closed = True
        return _frozen(self._blocks[0][1])

    def open_block(self, expr: exprs.Expr) -> None:
        """Begin a role or a scope."""
        self._blocks.append((expr, []))

    def close_block(self, expr: exprs.RoleEnd | exprs.ScopeEnd) -> None:
        """End a role or a scope."""
        opened = self._blocks[-1][0]
        is_same = isinstance(opened, exprs.RoleBegin) and isinstance(expr, exprs.RoleEnd) and opened.role == expr.role
        is_same |= (
            isinstance(opened, exprs.ScopeBegin) and isinstance(expr, exprs.ScopeEnd) and opened.name == expr.name
        )
        if not is_same:
            stop("a role or scope ends that did not begin in the same state, or around another one that is open")
        self._end_block()

    def fork(self, expr: exprs.Fork) -> None:
        """Begin branches."""
        name = f"f{self.shared.num_forks}"
        self.shared.num_forks += 1
        children: Any = expr.children
        self._add(_Forking(name, children, expr.line))
        self._forks |= {id(child): Branch(name, idx) for idx, child in enumerate(children)}

    def join(self, expr: exprs.Join) -> None:
        """End branches."""
        mode = nodes.JOINS[1] if expr.appends_text else nodes.JOINS[0]
        for name in expr.gathered:
            self._declare(name)
        self._add(nodes.Join(fork=self._forks[id(expr.children[0])].fork, mode=mode, line=expr.line))
        children: Any = expr.children
        for child in children:
            child.is_closed = True

    def record(self, node: Node) -> None:
        """Take a node, whose values are as the author gave them."""
        held = {
            each.name: self.lower(value_of(getattr(node, each.name)))
            for each, kind in nodes.parts(node)
            if kind in {nodes.Kind.VALUE, nodes.Kind.VALUES}
        }
        self._add(replace(node, **held))
        for name in sets(node):
            self._declare(name)

    def _add(self, node: Node | _Forking) -> None:
        self.shared.num_nodes += 1
        if self.shared.num_nodes > MAX_NODES:
            stop(f"it has more than {MAX_NODES} nodes")
        if self.is_closed:
            stop("a branch goes on after it was joined, or after the role, scope or decision in which it was forked")
        self._blocks[-1][1].append(node)

    def _end_block(self) -> None:
        opened, inner = self._blocks.pop()
        body = _frozen(inner)
        if isinstance(opened, exprs.RoleBegin):
            self._add(nodes.Role(role=opened.role, body=body, line=opened.line))
        elif isinstance(opened, exprs.ScopeBegin):
            self._add(nodes.Scope(name=opened.name, body=body, line=opened.line))
            self._declare(opened.name)
        else:
            self._blocks[-1][1].extend(inner)

    def _declare(self, name: str) -> None:
        self.versions[name] = next(self.shared.clock)
        self.variables[name] = _Read(self, name)
        self.variables.maybe.discard(name)
        if name not in self.own_names:
            self.own_names.append(name)

    def _named(self, promise: Promise) -> Variable:
        owner: Any = promise.owner
        branch = self._forks.get(id(owner))
        if branch is not None:
            self.shared.branch_reads.append(promise)
        elif owner is not self and owner not in self._ancestors():
            stop(f"variable '{promise.name}' is of a branch that this state has not forked")
        known = self.versions if branch is None else owner.versions
        if known.get(promise.name) != promise.version:
            stop(f"variable '{promise.name}' was set again after it was read, or in a decision that has ended")
        self._used.append(promise)
        return Variable(promise.name, promise.path, branch, promise.is_parsed)

    def _ancestors(self) -> Iterator[TracingStrand]:
        strand = self.parent
        while strand is not None:
            yield strand
            strand = strand.parent


def _frozen(recorded: Sequence[Node | _Forking]) -> Body:
    return tuple(_fork_of(each) if isinstance(each, _Forking) else each for each in recorded)


def _fork_of(forking: _Forking) -> Node:
    return nodes.Fork(name=forking.name, branches=tuple(child.body() for child in forking.children), line=forking.line)


# -- nodes of the language to nodes of a program


def _constant(strand: TracingStrand, expr: exprs.Constant) -> None:
    strand.record(nodes.Say(text=expr.text, line=expr.line))


def _gen(strand: TracingStrand, expr: exprs.Gen) -> None:
    options = {each.name: getattr(expr.sampling, each.name) for each in fields(expr.sampling)}
    options = {name: value for name, value in options.items() if value is not None}
    if expr.form is not None:
        options[expr.form.given[0]] = expr.form.given[1]
    if expr.reasoning is not None:
        options["reasoning"] = expr.reasoning
    strand.record(nodes.Gen(name=expr.name, options=options, timeout_s=expr.timeout_s, line=expr.line))


def _select(strand: TracingStrand, expr: exprs.Select) -> None:
    method = next((name for name, known in METHODS.items() if known is expr.method), None)
    if method is None:
        stop(f"choices_method is {type(expr.method).__name__}, a measure of one's own")
    choices = expr.choices if isinstance(expr.choices, Abstract) else list(expr.choices)
    strand.record(
        nodes.Select(name=expr.name, choices=choices, method=method, timeout_s=expr.timeout_s, line=expr.line)
    )


def _tool(strand: TracingStrand, expr: exprs.ToolCall) -> None:
    name = expr.tool if isinstance(expr.tool, str) else getattr(expr.tool, "__name__", expr.into)
    if callable(expr.tool) and strand.shared.tools.setdefault(name, expr.tool) is not expr.tool:
        stop(f"two different tools are called '{name}'; give them names with function(tools=...)")
    strand.record(nodes.Tool(tool=name, args=dict(expr.args), into=expr.into, timeout_s=expr.timeout_s, line=expr.line))


_RECORD: Mapping[type[exprs.Expr], Callable[[TracingStrand, Any], None]] = {
    exprs.Constant: _constant,
    exprs.Gen: _gen,
    exprs.Select: _select,
    exprs.ToolCall: _tool,
    exprs.RoleBegin: TracingStrand.open_block,
    exprs.RoleEnd: TracingStrand.close_block,
    exprs.ScopeBegin: TracingStrand.open_block,
    exprs.ScopeEnd: TracingStrand.close_block,
    exprs.Fork: TracingStrand.fork,
    exprs.Join: TracingStrand.join,
}
