"""A program as SVG: its instructions and the buffers they hand on, with layers that repeat drawn once."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from trivium.plan.cost import CostModel
from trivium.plan.explain import formats_text, likeness, shape_text
from trivium.plan.program import Instruction, Plan, ProgramName

_ROW, _BOX_WIDTH, _BOX_HEIGHT = 34, 430, 24
_LEFT, _TOP = 130, 12
_LANE = 14
"""Between the arcs of long edges."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Instructions [start, start + length) occur `times` times, one after the other."""

    start: int
    length: int
    times: int

    def drawn(self, place: int) -> int | None:
        """Return where the instruction that stands for `place` is drawn, or nothing for the program's inputs."""
        end = self.start + self.length * self.times
        if place < self.start:
            return place
        if place < end:
            return self.start + (place - self.start) % self.length
        return place - self.length * (self.times - 1)


def find_repeat(keys: list[object]) -> Repeat:
    """Find the run of equal blocks that saves the most rows; a run of one block when nothing repeats."""
    best = Repeat(0, len(keys), 1)
    saved = 0
    for length in range(1, len(keys) // 2 + 1):
        # run counts how long keys[i] == keys[i + length] has held
        run = 0
        for start in range(len(keys) - length - 1, -1, -1):
            run = run + 1 if keys[start] == keys[start + length] else 0
            times = run // length + 1
            if (times - 1) * length > saved:
                saved = (times - 1) * length
                best = Repeat(start, length, times)
    return best


def program_picture(plan: Plan, name: ProgramName) -> str:
    """Draw one program.

    ::

              | 0 embed             |─┐
              | 1 add_norm          |<┤      arcs on the right lead down,
          ┌──>| 2 projection        | │      those on the left to the next round of a block that repeats
        x 30  | 3 projection_add    |<┘
          └───|                     |
    """
    instructions = plan.programs[name].instructions
    model = CostModel(plan)
    repeat = find_repeat([likeness(instruction, model) for instruction in instructions])
    after = range(repeat.start + repeat.length * repeat.times, len(instructions))
    shown = [*range(repeat.start + repeat.length), *after]
    boxes = [_node(row, place, instructions[place], model) for row, place in enumerate(shown)]
    edges = _edges(instructions, repeat)
    lanes = _lanes(edges)
    lines = [_edge(source, target, lanes[source, target], sorted(names)) for (source, target), names in edges.items()]
    width = _LEFT + _BOX_WIDTH + _LANE * (2 + max(lanes.values(), default=0)) + 20
    height = _TOP * 2 + _ROW * len(shown)
    frame = _frame(repeat) if repeat.times > 1 else ""
    content = "\n".join([frame, *lines, *boxes])
    head = f'<svg width="{width}" height="{height}" role="img" aria-label="program">'
    return f'<div class="wide">{head}\n{content}\n</svg></div>'


Edges = dict[tuple[int, int], set[str]]
"""(row of the writer, row of the reader) to the buffers."""


def _edges(instructions: tuple[Instruction, ...], repeat: Repeat) -> Edges:
    found: Edges = {}
    writer: dict[str, int] = {}
    for place, instruction in enumerate(instructions):
        for read in instruction.reads.values():
            source, target = repeat.drawn(writer[read]) if read in writer else None, repeat.drawn(place)
            if source is not None and target is not None:
                found.setdefault((source, target), set()).add(read)
        writer.update(dict.fromkeys(instruction.writes.values(), place))
    return found


def _lanes(edges: Edges) -> dict[tuple[int, int], int]:
    """Give every edge a lane: 0 to the next row, else the lowest in which no edge of its side is in the way."""
    taken: dict[bool, list[list[tuple[int, int]]]] = {True: [], False: []}
    lanes: dict[tuple[int, int], int] = {}
    for source, target in sorted(edges, key=lambda edge: abs(edge[1] - edge[0])):
        if target - source == 1:
            lanes[source, target] = 0
            continue
        side = taken[target > source]
        low, high = min(source, target), max(source, target)
        free = (lane for lane, spans in enumerate(side) if all(high <= first or last <= low for first, last in spans))
        lane = next(free, len(side))
        if lane == len(side):
            side.append([])
        side[lane].append((low, high))
        lanes[source, target] = lane + 1
    return lanes


def _middle(row: int) -> float:
    return _TOP + row * _ROW + _BOX_HEIGHT / 2


def _node(row: int, place: int, instruction: Instruction, model: CostModel) -> str:
    y = _TOP + row * _ROW
    text = f"{place} {instruction.op}  {shape_text(instruction, model)}"
    said = ", ".join([
        formats_text(instruction, model),
        *(f"{key} {value}" for key, value in instruction.attrs.items()),
    ])
    return (
        f'<g><title>{escape(said)}</title><rect class="node" x="{_LEFT}" y="{y}" width="{_BOX_WIDTH}" '
        f'height="{_BOX_HEIGHT}" rx="4"/><text x="{_LEFT + 10}" y="{y + 16}">{escape(text)}</text></g>'
    )


def _edge(source: int, target: int, lane: int, names: list[str]) -> str:
    start, end = _middle(source), _middle(target)
    if lane == 0:
        x = _LEFT + 24
        path = f"M {x} {start + _BOX_HEIGHT / 2} V {end - _BOX_HEIGHT / 2}"
    elif target > source:
        side = _LEFT + _BOX_WIDTH
        path = f"M {side} {start + 5} H {side + lane * _LANE} V {end - 5} H {side}"
    else:
        path = f"M {_LEFT} {start + 5} H {_LEFT - lane * _LANE} V {end - 5} H {_LEFT}"
    return f'<path class="edge" d="{path}"><title>{escape(", ".join(names))}</title></path>'


def _frame(repeat: Repeat) -> str:
    y = _TOP + repeat.start * _ROW - 5
    height = repeat.length * _ROW
    middle = y + height / 2
    return (
        f'<rect class="frame" x="{_LEFT - 6}" y="{y}" width="{_BOX_WIDTH + 12}" height="{height}"/>'
        f'<text x="{8}" y="{middle:.0f}">x {repeat.times}</text>'
    )
