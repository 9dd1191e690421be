"""Constraints as people use them: schemas of extraction, tool calls, and records with long fixed keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and the schema of its answer."""

    prompt: str
    schema: Mapping[str, Any]


def record(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has these properties, all of them and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(most: int = 40) -> dict[str, Any]:
    """The schema of a short text."""
    return {"type": "string", "maxLength": most}


def listed(items: Any, most: int = 4) -> dict[str, Any]:
    """The schema of a short list."""
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def number(low: int, high: int) -> dict[str, Any]:
    """The schema of an integer between two bounds."""
    return {"type": "integer", "minimum": low, "maximum": high}


def _tool(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return record(name={"const": name}, arguments=arguments)


_DATE = {"type": "string", "pattern": "20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"}
_ADDRESS = record(street=text(), city=text(20), postal_code={"type": "string", "pattern": "[0-9]{5}"}, country=text(20))

SCHEMAS: Mapping[str, Task] = {
    "person": Task("Invent a person, as JSON.", record(name=text(30), age=number(0, 120), email=text(40))),
    "sentiment": Task(
        "Review: the film was far too long. As JSON, what is its sentiment?",
        record(sentiment={"enum": ["positive", "neutral", "negative"]}, confidence={"type": "number"}, reason=text(60)),
    ),
    "invoice": Task(
        "Write an invoice for three office chairs, as JSON.",
        record(
            invoice_number={"type": "string", "pattern": "INV-[0-9]{6}"},
            issue_date=_DATE,
            customer=record(name=text(30), address=_ADDRESS),
            items=listed(record(description=text(30), quantity=number(1, 99), unit_price={"type": "number"})),
            currency={"enum": ["EUR", "USD", "GBP"]},
        ),
    ),
    "event": Task(
        "Plan a meeting of the garden club next week, as JSON.",
        record(title=text(40), date=_DATE, participants=listed(text(20)), is_online={"type": "boolean"}),
    ),
    "recipe": Task(
        "Write a recipe of pancakes, as JSON.",
        record(
            title=text(30),
            servings=number(1, 12),
            ingredients=listed(record(name=text(20), amount=text(12)), 6),
            steps=listed(text(60), 5),
        ),
    ),
    "tree": Task(
        "Describe a folder with two files, as JSON.",
        {
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"name": text(16), "children": listed({"$ref": "#/$defs/node"}, 2)},
                    "required": ["name"],
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/node",
        },
    ),
    "free": Task("Describe a book, as JSON.", {"type": "object", "properties": {"title": text(40)}}),
}

TOOLS: Mapping[str, Task] = {
    "weather": Task(
        "What is the weather in Paris tomorrow? Call the function.",
        _tool("get_weather_forecast", record(location=text(30), date=_DATE, unit={"enum": ["celsius", "fahrenheit"]})),
    ),
    "one of three": Task(
        "Send Anna an e-mail that I am late. Call a function.",
        {
            "anyOf": [
                _tool("send_email_message", record(recipient=text(30), subject=text(30), body=text(60))),
                _tool("create_calendar_event", record(title=text(30), date=_DATE, duration_minutes=number(5, 480))),
                _tool("search_the_web", record(query=text(40), number_of_results=number(1, 20))),
            ]
        },
    ),
    "transfer": Task(
        "Transfer 50 euros to Max. Call the function.",
        _tool(
            "initiate_bank_transfer",
            record(recipient_name=text(20), amount_in_cents=number(1, 1_000_000), currency={"enum": ["EUR", "USD"]}),
        ),
    ),
}

_LEVEL = {"enum": ["low", "medium", "high"]}
FIXED_KEYS: Mapping[str, Task] = {
    "character": Task(
        "Describe a character of a novel, as JSON.",
        record(
            full_name_of_the_character=text(20),
            approximate_age_in_years=number(1, 99),
            preferred_programming_language={"enum": ["python", "rust", "c"]},
            house_to_which_the_character_belongs=text(16),
            has_magical_abilities={"type": "boolean"},
            number_of_known_siblings=number(0, 9),
            name_of_the_favourite_animal=text(12),
        ),
    ),
    "assessment": Task(
        "Assess the risk of a small bakery, as JSON.",
        record(**{
            f"{what}_{kind}": _LEVEL
            for what in ("probability_of", "expected_impact_of", "available_mitigation_for")
            for kind in ("financial_loss", "supply_chain_interruption", "regulatory_change", "reputational_damage")
        }),
    ),
    "settings": Task(
        "Write the settings of a careful server, as JSON.",
        record(
            maximum_number_of_connections=number(1, 9999),
            connection_timeout_in_seconds=number(1, 600),
            enable_automatic_certificate_renewal={"type": "boolean"},
            preferred_encryption_algorithm={"enum": ["aes-256-gcm", "chacha20-poly1305"]},
            log_retention_period_in_days=number(1, 365),
            allow_anonymous_read_access={"type": "boolean"},
        ),
    ),
}

SETS: Mapping[str, Mapping[str, Task]] = {"schemas": SCHEMAS, "tool calls": TOOLS, "fixed keys": FIXED_KEYS}


def tasks(names: Sequence[str] = ()) -> list[tuple[str, Task]]:
    """Return all tasks of some sets, or of all, as ("set/name", task)."""
    return [(f"{name}/{each}", task) for name in names or SETS for each, task in SETS[name].items()]
