"""The orders that a scheduler's queue can have, read from its options."""

from __future__ import annotations

from typing import get_args, get_type_hints

from trivium.config.options import ScheduleOptions

DEFAULT = "default"
"""Stands for the scheduler's own choice."""


def known_orders() -> tuple[str, ...]:
    """Return the words that the option takes; only `DEFAULT` where there is no such option."""
    return get_args(get_type_hints(ScheduleOptions).get("order")) or (DEFAULT,)


def order_option(order: str) -> dict[str, str]:
    """Return the order as an option by name; none for `DEFAULT`.

    Raises:
        ValueError: The scheduler knows no such order.
    """
    if order == DEFAULT:
        return {}
    if order not in known_orders():
        raise ValueError(f"order is {order!r}; this scheduler knows: {', '.join(known_orders())}")
    return {"order": order}
