"""The arena over time, as SVG: which bytes hold which value while the program runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape

from trivium.config.sizes import format_bytes
from trivium.plan.program import Buffer, Plan, Program, ProgramName

_WIDTH, _HEIGHT = 1120, 420
_LEFT, _TOP, _BOTTOM = 76, 26, 40
_LEGEND_STEP = 90
_MARKS = 4


@dataclass(frozen=True, slots=True)
class Life:
    """From when to when the bytes of one value are needed, in instructions, both included."""

    buffer: Buffer
    first: int
    last: int


def lives(program: Program, buffers: dict[str, Buffer]) -> list[Life]:
    """Find the lives of all values in the arena; a buffer may hold several, one after the other.

    A value lives until it is last read, outputs to the end.
    """
    ended: list[Life] = []
    alive: dict[str, Life] = {}
    for idx, instruction in enumerate(program.instructions):
        for name in instruction.reads.values():
            if name in alive:
                alive[name] = replace(alive[name], last=idx)
        for name in instruction.writes.values():
            if name in alive:
                ended.append(alive.pop(name))
            alive[name] = Life(buffers[name], idx, idx)
    end = len(program.instructions) - 1
    kept = [replace(life, last=end) if name in program.outputs.values() else life for name, life in alive.items()]
    return sorted([*ended, *kept], key=lambda life: (life.first, life.buffer.name))


def arena_picture(plan: Plan, name: ProgramName) -> str:
    """Draw one program's arena.

    ::

        instruction   0 ........................ n
        offset 0      | x      |  | q   |
                      |  | table          |
        deepest byte  +--------------------------+
    """
    program = plan.programs[name]
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    drawn = lives(program, buffers)
    across = (_WIDTH - _LEFT) / max(1, len(program.instructions))
    deepest = max((life.buffer.offset or 0) + life.buffer.num_bytes for life in drawn)
    down = (_HEIGHT - _TOP - _BOTTOM) / deepest
    boxes = [_box(life, across, down) for life in drawn]
    kinds = dict.fromkeys(life.buffer.kind for life in drawn)
    legend = [
        f'<rect class="{kind}" x="{_LEFT + place * _LEGEND_STEP}" y="6" width="12" height="12"/>'
        f'<text x="{_LEFT + place * _LEGEND_STEP + 17}" y="16">{kind}</text>'
        for place, kind in enumerate(kinds)
    ]
    scale = []
    for mark in range(_MARKS + 1):
        offset = deepest * mark // _MARKS
        y = _TOP + offset * down
        scale.append(
            f'<text class="faint" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_bytes(offset)}</text>'
        )
        place = len(program.instructions) * mark // _MARKS
        x = _LEFT + place * across
        scale.append(f'<text class="faint" x="{x:.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{place}</text>')
    frame = f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT}" height="{_HEIGHT - _TOP - _BOTTOM}"/>'
    content = "\n".join([*legend, frame, *boxes, *scale])
    return (
        f'<div class="wide"><svg width="{_WIDTH + 20}" height="{_HEIGHT}" role="img" '
        f'aria-label="arena over time">\n{content}\n</svg></div>'
    )


def _box(life: Life, across: float, down: float) -> str:
    buffer = life.buffer
    start = buffer.offset or 0
    said = (
        f"{buffer.name}: {buffer.kind} [{buffer.rows}, {buffer.width}], {format_bytes(buffer.num_bytes)} at {start}, "
        f"instructions {life.first} to {life.last}"
    )
    return (
        f'<rect class="value {buffer.kind}" x="{_LEFT + life.first * across:.2f}" y="{_TOP + start * down:.2f}" '
        f'width="{(life.last - life.first + 1) * across:.2f}" height="{max(1.0, buffer.num_bytes * down):.2f}">'
        f"<title>{escape(said)}</title></rect>"
    )
