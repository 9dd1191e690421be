"""`Rules`: the rules of a grammar in the library's Lark, as they are made up; marks may be special tokens.

Text never holds a special token, so a mark that is one ends text by itself; any other mark ends it where it is whole
the first time, which intersection and complement say.
Source: the syntax of llguidance's grammars (docs/syntax.md there).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence


class Rules:
    """Makes up rules with names of their own."""

    def __init__(self, special: Mapping[str, int]) -> None:
        """Begin with nothing; `special` has the marks that are special tokens, with their ids."""
        self._special = special
        self.lines = ["ANY: /(?s:.*)/", "SOME: /(?s:.+)/"]
        longest_first = sorted(special, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if special else None

    def is_special(self, mark: str) -> bool:
        """Return whether a mark is a special token."""
        return mark in self._special

    def named(self, prefix: str, body: str) -> str:
        """Make a rule and return its name."""
        name = f"{prefix}{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def terminal(self, body: str) -> str:
        """Make a terminal and return its name."""
        return self.named("TEXT", body)

    def written(self, text: str) -> str:
        """Return what reads exactly this text; special tokens in it are read as such."""
        pieces = [text] if self._cut is None else self._cut.split(text)
        return self.joined(*(f"<[{self._special[p]}]>" if p in self._special else literal(p) for p in pieces))

    def text_without(self, texts: Sequence[str]) -> str:
        """Return a terminal of any text that holds none of these."""
        return self.terminal("ANY" + self.without(texts))

    def without(self, texts: Sequence[str]) -> str:
        """Return what to append to a terminal so that it holds none of these; special tokens it never holds."""
        kept = [text for text in texts if text not in self._special]
        return f" & ~(ANY {any_of(kept)} ANY)" if kept else ""

    def until(self, mark: str, *, others: Sequence[str] = (), excludes: Sequence[str] = ()) -> str:
        """Return what reads any text and the mark that ends it, before which none of `others` and `excludes` is."""
        if mark in self._special:
            return f"{self.text_without([*others, *excludes])} {self.written(mark)}"
        stops = any_of([mark, *others])
        return self.terminal(f"(ANY {literal(mark)}) & ~(ANY {stops} SOME){self.without(excludes)}")

    @staticmethod
    def joined(*parts: str) -> str:
        """Return parts one after the other."""
        return " ".join(part for part in parts if part)


def literal(text: str) -> str:
    """Return a text as Lark quotes it; nothing for none."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def any_of(texts: Sequence[str]) -> str:
    """Return what reads one of these."""
    return f"({' | '.join(map(literal, texts))})"
