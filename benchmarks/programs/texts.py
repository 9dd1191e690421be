"""Texts of common words, drawn from a seed: questions, articles, records of agents."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trivium.bench.workload import WORDS

_SENTENCE = 9
"""Words."""
_LETTERS = "ABCD"


class Texts:
    """Draws texts; one seed gives the same ones everywhere, and others share no beginnings with them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311  (prompts, not secrets)
        self._sizes = random.Random(0)  # noqa: S311
        """Draws what is the same with every seed: lengths, and who comes when."""

    def words(self, count: int) -> str:
        """Draw words."""
        return " ".join(self._rng.choices(WORDS, k=count))

    def between(self, least: int, most: int) -> int:
        """Draw a number."""
        return self._sizes.randint(least, most)

    def shuffled(self, items: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
        """Return items in another order."""
        return self._sizes.sample(items, len(items))

    def sentence(self, count: int = _SENTENCE) -> str:
        """Draw a sentence."""
        return self.words(count).capitalize() + "."

    def article(self, count: int) -> str:
        """Draw sentences of so many words in all."""
        whole, rest = divmod(count, _SENTENCE)
        return " ".join([self.sentence() for _ in range(whole)] + ([self.sentence(rest)] if rest else []))

    def multiple_choice(self, count: int, *, is_solved: bool) -> str:
        """Draw a question of so many words with four answers, of which one is named where it is solved."""
        choices = [f"{letter}. {self.words(count // 4 or 1)}" for letter in _LETTERS]
        answer = f" {self._rng.choice(_LETTERS)}\n\n" if is_solved else ""
        return "\n".join([self.words(count).capitalize() + "?", *choices, "Answer:"]) + answer

    def react_trace(self, turns: int, count: int) -> str:
        """Draw a question that an agent has solved, with observations of so many words."""
        lines = [f"Question: {self.words(_SENTENCE).capitalize()}?"]
        for turn in range(1, turns + 1):
            lines += [f"Thought {turn}: {self.sentence()}", f"Action {turn}: Search[{self.words(2)}]"]
            lines += [f"Observation {turn}: {self.article(count)}"]
        return "\n".join(lines) + f"\nAction {turns + 1}: Finish[{self.words(1)}]\n\n"

    def solved_passages(self, count: int) -> str:
        """Draw an example of a question that is answered from a passage of so many words."""
        return (
            f"Passages:\n[1] {self.article(count)}\nQuestion: {self.words(8).capitalize()}?\n"
            f"Reasoning: {self.sentence(16)}\nAnswer: {self.words(2)}\n\n"
        )
