"""An explanation as one HTML page that loads nothing: tables, and pictures of the program and of its arena."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trivium.plan.explain import Explanation
from trivium.plan.explain_text import facts_text, figures_table, instructions_table, load_text
from trivium.plan.format import StoredPlan
from trivium.plan.picture_arena import arena_picture
from trivium.plan.picture_program import program_picture


def explanation_page(stored: StoredPlan, explanation: Explanation) -> str:
    """Write the page.

    Args:
        stored: The plan, for the pictures and for what it fits.
        explanation: Of one of its programs.
    """
    plan, name = stored.plan, explanation.program
    title = f"{plan.architecture} · {stored.origin.name}"
    facts = "".join(f"<p>{escape(line)}</p>" for line in facts_text(explanation).split("\n"))
    made = f"Compiled by Trivium {escape(stored.origin.trivium)} on {escape(stored.origin.processor)}"
    parts = [
        (load_text(load), "", _table(*figures_table(explanation, at))) for at, load in enumerate(explanation.loads)
    ]
    parts += [
        ("Instructions", "", _table(*instructions_table(explanation))),
        ("Program", _PROGRAM, program_picture(plan, name)),
        ("Arena over time", _ARENA, arena_picture(plan, name)),
        ("What it fits", f"{made}; plan {stored.key.name}.", _facts(stored)),
    ]
    sections = [f"<h2>{escape(heading)}</h2>\n<p>{said}</p>\n{content}" for heading, said, content in parts]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", facts, *sections])
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _facts(stored: StoredPlan) -> str:
    return _table(("fact", "value"), [(name, str(value)) for name, value in stored.key.facts.items()])


_PROGRAM = "Instructions from top to bottom; lines are the buffers that they hand on."
_ARENA = (
    "Instructions from left to right, bytes from top to bottom; a box is a value from its writing to its last reading. "
    "Point at one to see which."
)
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --faint: #8a8a94; --line: #d5d5dc; --paper: #ffffff; --box: #f2f2f6;
  --f32: #4477aa; --q8: #cc6f33; --bf16: #228833; --f32t: #aa3377; --i32: #777777; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6ea; --faint: #8f8f9a; --line: #44444c; --paper: #17171a;
  --box: #24242a; --f32: #6c9fd2; --q8: #e08c52; --bf16: #57b865; --f32t: #cf6ba6; --i32: #999999; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1200px;
  margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 2px 10px 2px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr:last-child { font-weight: 600; }
svg { display: block; max-width: none; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .faint { fill: var(--faint); }
svg .node { fill: var(--box); stroke: var(--line); }
svg .edge { fill: none; stroke: var(--faint); stroke-width: 1.3; }
svg .frame { fill: none; stroke: var(--faint); stroke-dasharray: 4 3; }
svg .f32 { fill: var(--f32); } svg .q8 { fill: var(--q8); } svg .bf16 { fill: var(--bf16); }
svg .f32t { fill: var(--f32t); } svg .i32 { fill: var(--i32); }
svg .value { fill-opacity: 0.75; stroke: var(--paper); stroke-width: 0.5; }
"""
