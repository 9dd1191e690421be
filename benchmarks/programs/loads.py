"""Each program of `examples/programs` with arguments: how many runs, how much they share, how much is written.

Full sizes take an engine on two processors some seconds each. They are a part of what SGLang's benchmarks run on GPUs;
what is shared with whom is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.programs.texts import Texts
from examples.programs import (
    choose_ending,
    few_shot,
    generative_agents,
    json_records,
    judge,
    multi_turn_chat,
    rag,
    react_agent,
    skeleton_of_thought,
    tree_of_thought,
)
from trivium.lang import SglFunction

Run = tuple[SglFunction, tuple[Any, ...]]
"""A program and its arguments."""
NEVER = "\0"
"""What no action begins with: agents take all of their turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Runs of one program."""

    draw: Callable[..., Sequence[Run]]
    full: Mapping[str, int]
    """Sizes, as `draw` takes them."""
    small: Mapping[str, int]
    """The same for tests, where a token may be a letter."""
    programs: int = 16
    """Programs that run at a time."""
    is_constrained: bool = False
    """Whether answers are under constraints, which not every server knows."""
    calls: str = ""
    """What one program does."""

    def runs(self, seed: int, *, is_small: bool = False) -> Sequence[Run]:
        """Draw the runs."""
        return self.draw(Texts(seed), **(self.small if is_small else self.full))


def _few_shot(texts: Texts, *, subjects: int, questions: int, words: int) -> list[Run]:
    runs = []
    for _ in range(subjects):
        about = f"The following are multiple choice questions (with answers) about {texts.words(3)}.\n\n"
        examples = about + "".join(texts.multiple_choice(words, is_solved=True) for _ in range(5))
        runs += [(examples, texts.multiple_choice(words, is_solved=False)) for _ in range(questions)]
    return [(few_shot.answer, args) for args in texts.shuffled(runs)]


def _choose_ending(texts: Texts, *, shots: int, stories: int, words: int) -> list[Run]:
    examples = "".join(texts.article(2 * words) + "\n\n" for _ in range(shots))
    return [
        (
            choose_ending.choose,
            (
                examples,
                texts.sentence(words) + " " + texts.words(3).capitalize(),
                [f" {texts.words(texts.between(words // 2, words))}." for _ in range(4)],
                "token_length_normalized",
            ),
        )
        for _ in range(stories)
    ]


def _react(texts: Texts, *, agents: int, turns: int, solved: int, words: int) -> list[Run]:
    before = "".join(texts.react_trace(3, words) for _ in range(solved))
    articles = [texts.article(words) for _ in range(32)]

    def look_up(action: str) -> str:
        return articles[sum(map(ord, action)) % len(articles)]

    return [
        (react_agent.solve, (before, texts.words(8).capitalize() + "?", look_up, NEVER, turns)) for _ in range(agents)
    ]


def _agents(texts: Texts, *, asked: int, words: int) -> list[Run]:
    runs = [
        (kind, texts.words(1).capitalize(), texts.words(words) + ".", ", ".join(texts.words(words // 2 or 1).split()))
        for kind in generative_agents.QUESTIONS
        for _ in range(asked)
    ]
    return [(generative_agents.ask, args) for args in texts.shuffled(runs)]


def _tree(texts: Texts, *, questions: int, branches: int, tokens: int) -> list[Run]:
    asked = [
        f"{texts.words(1).capitalize()} has {texts.between(2, 9)} boxes of {texts.between(5, 50)} {texts.words(1)}s "
        f"and gives {texts.between(1, 9)} away. How many are left?"
        for _ in range(questions)
    ]
    return [(tree_of_thought.think, (question, branches, tokens, 0.0)) for question in asked]


def _skeleton(texts: Texts, *, topics: int, tips: int, words: int) -> list[Run]:
    solved = "Write a clear paragraph that expands a tip.\n\n" + "".join(
        f"Tip: {texts.words(3)}\nParagraph: {texts.article(words)}\n\n" for _ in range(3)
    )
    return [(skeleton_of_thought.write, (solved, texts.words(3), tips)) for _ in range(topics)]


def _judge(texts: Texts, *, essays: int, least: int, most: int, tokens: int) -> list[Run]:
    return [(judge.judge, (texts.article(texts.between(least, most)), tokens, None)) for _ in range(essays)]


def _json(texts: Texts, *, records: int, words: int) -> list[Run]:
    people: list[Run] = [(json_records.character, (texts.words(2).title(),)) for _ in range(records)]
    return people + [(json_records.facts, (texts.article(words),)) for _ in range(records)]


def _chat(texts: Texts, *, chats: int, turns: int, least: int, most: int, tokens: int) -> list[Run]:
    return [
        (
            multi_turn_chat.chat,
            ([texts.words(texts.between(least, most)) for _ in range(turns)], tokens + texts.between(0, tokens)),
        )
        for _ in range(chats)
    ]


def _rag(texts: Texts, *, topics: int, questions: int, examples: int, words: int) -> list[Run]:
    solved = "Answer questions with short factual answers, from the passages.\n\n" + "".join(
        texts.solved_passages(words) for _ in range(examples)
    )
    passages = [texts.article(words) for _ in range(2 * topics)]
    runs = [
        (solved, [passages[topic], passages[(topic + 1) % topics], passages[topics + topic]], texts.words(10) + "?")
        for topic in range(topics)
        for _ in range(questions)
    ]
    return [(rag.answer, args) for args in texts.shuffled(runs)]


LOADS: Mapping[str, Load] = {
    "few-shot": Load(
        calls="5 examples per subject, 1 token (MMLU)",
        draw=_few_shot,
        full={"subjects": 6, "questions": 16, "words": 40},
        small={"subjects": 2, "questions": 3, "words": 4},
    ),
    "select": Load(
        calls="20 examples, 4 endings scored (HellaSwag)",
        draw=_choose_ending,
        full={"shots": 20, "stories": 24, "words": 20},
        small={"shots": 2, "stories": 3, "words": 4},
    ),
    "react": Load(
        calls="6 solved traces, 3 turns of thought, action, observation",
        draw=_react,
        full={"agents": 12, "turns": 3, "solved": 6, "words": 40},
        small={"agents": 2, "turns": 2, "solved": 1, "words": 4},
    ),
    "agents": Load(
        calls="5 templates, 2 to 20 tokens",
        draw=_agents,
        full={"asked": 30, "words": 24},
        small={"asked": 2, "words": 4},
    ),
    "tree": Load(
        calls="4 levels, 2 branches each: 30 answers",
        draw=_tree,
        full={"questions": 4, "branches": 2, "tokens": 48},
        small={"questions": 1, "branches": 2, "tokens": 3},
    ),
    "skeleton": Load(
        calls="5 tips one by one, 5 paragraphs at once",
        draw=_skeleton,
        full={"topics": 8, "tips": 5, "words": 40},
        small={"topics": 2, "tips": 2, "words": 4},
    ),
    "judge": Load(
        calls="an essay, 6 judgements at once, a grade",
        draw=_judge,
        full={"essays": 6, "least": 400, "most": 1200, "tokens": 64},
        small={"essays": 2, "least": 4, "most": 8, "tokens": 4},
    ),
    "json": Load(
        calls="a character by a regex, or facts of a document by a schema",
        draw=_json,
        full={"records": 16, "words": 120},
        small={"records": 2, "words": 4},
        is_constrained=True,
    ),
    "chat-short": Load(
        calls="4 turns of 128 to 256 tokens, answers of 4 to 8",
        draw=_chat,
        full={"chats": 16, "turns": 4, "least": 128, "most": 256, "tokens": 4},
        small={"chats": 2, "turns": 2, "least": 2, "most": 4, "tokens": 2},
    ),
    "chat-long": Load(
        calls="4 turns of 128 to 256 tokens, answers of 64 to 128",
        draw=_chat,
        full={"chats": 16, "turns": 4, "least": 128, "most": 256, "tokens": 64},
        small={"chats": 2, "turns": 2, "least": 2, "most": 4, "tokens": 8},
    ),
    "rag": Load(
        calls="3 examples, 3 passages, reasoning of 32 tokens, answer of 16",
        draw=_rag,
        full={"topics": 12, "questions": 4, "examples": 3, "words": 100},
        small={"topics": 2, "questions": 2, "examples": 1, "words": 4},
    ),
}
"""By name, in the order of the tables."""
