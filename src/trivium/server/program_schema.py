"""What a program takes and gives, as JSON schemas: its arguments, and the variables of its own state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trivium.program.nodes import Gen, Node, Program, Select, walk
from trivium.program.values import is_constant
from trivium.program.verify import sets, variables_of

if TYPE_CHECKING:
    from trivium.server.fields import FieldTable

_TYPES: Mapping[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object",
}  # fmt: skip


def arguments_schema(program: Program) -> dict[str, Any]:
    """Return the schema of a program's arguments; a parameter with a default has the default's type."""
    properties: dict[str, Any] = {}
    for param in program.params:
        known = _TYPES.get(type(param.default))
        properties[param.name] = {} if param.is_required or known is None else {"type": known, "default": param.default}
    required = [param.name for param in program.params if param.is_required]
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def variables_schema(program: Program) -> dict[str, Any]:
    """Return the schema of a program's variables; what a form or choices say of a text is told."""
    setters: dict[str, list[Node]] = {}
    for _, node in walk(program.body):
        for name in sets(node):
            setters.setdefault(name, []).append(node)
    properties = {name: _schema_of(setters.get(name, [])) for name in variables_of(program.body)}
    return {"type": "object", "properties": properties}


def published_operation(program: Program, table: FieldTable, responses: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI operation that runs a published program: its arguments, and what it answers."""
    needs = any(param.is_required for param in program.params)
    body = table.schema(required=("arguments",) if needs else ())
    body["properties"]["arguments"] = arguments_schema(program)
    answer = {"type": "object", "properties": {"variables": variables_schema(program), "text": {"type": "string"}}}
    whole = {"description": "Success", "content": {"application/json": {"schema": answer}}}
    content = {"application/json": {"schema": body}}
    return {
        "post": {
            "summary": f"Run the published program {program.name}",
            "requestBody": {"required": True, "content": content},
            "responses": {**responses, "200": whole},
        }
    }


def _schema_of(nodes: list[Node]) -> dict[str, Any]:
    if len(nodes) != 1:
        return {}
    match nodes[0]:
        case Select(choices=list() as choices) if is_constant(choices):
            return {"type": "string", "enum": list(choices)}
        case Select():
            return {"type": "string"}
        case Gen(options=options) as node:
            if not isinstance(options.get("n", 1), int) or options.get("n", 1) != 1:
                return {"type": "array", "items": {"type": "string"}}
            return {"type": "string", **_form_of(node)}
    return {}


def _form_of(node: Gen) -> dict[str, Any]:
    match node.form:
        case ("json_schema", schema) if is_constant(schema) and isinstance(schema, dict):
            return {"contentMediaType": "application/json", "contentSchema": schema}
        case ("dtype", str(word)):
            return {"description": f"Reads as {word}."}
        case ("regex", str(pattern)):
            return {"description": f"Matches {pattern}"}
    return {}
