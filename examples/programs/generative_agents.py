"""The small questions that people of a simulated town ask a model all day: many, short, of a few kinds.

    python examples/programs/generative_agents.py

Questions of a kind begin alike and differ at the end, so each computes little more than what is its own, however the
kinds are mixed.
"""

import argparse

import trivium.lang as sgl
from trivium import LLM

QUESTIONS = {
    "poignancy": (
        "On the scale of 1 to 10, where 1 is mundane (brushing teeth, making the bed) and 10 is extremely poignant "
        "(a break up, college acceptance), rate how poignant the following is.\n{person} remembers: {event}\nRating:"
    ),
    "triple": (
        "Write what happens as (subject, verb, object).\nInput: Sam eats breakfast.\nOutput: (Sam, eat, breakfast)\n"
        "Input: Joon is brewing coffee.\nOutput: (Joon, brew, coffee)\nInput: {person} {event}\nOutput: ("
    ),
    "emoji": "Write what somebody does as one or two emojis, and nothing else.\nAction: {person} {event}\nEmoji:",
    "place": (
        "Sam has the rooms: kitchen, bedroom, bathroom. To cook, Sam goes to: {{kitchen}}\n"
        "Joon has the rooms: classroom, library, lab. To read a book, Joon goes to: {{library}}\n"
        "{person} has the rooms: {rooms}. Now {person} {event} For this, {person} goes to: {{"
    ),
    "thing": (
        "Pick the one thing that the action needs.\nAction: writes a letter. Things: [pen, stove, bed]. Needed: pen\n"
        "Action: {event} Things: [{rooms}]. Needed:"
    ),
}
LENGTHS = {"poignancy": 2, "triple": 20, "emoji": 6, "place": 10, "thing": 5}


@sgl.function
def ask(s, kind, person, event, rooms):
    """Ask one question of a kind."""
    s += QUESTIONS[kind].format(person=person, event=event, rooms=rooms)
    s += sgl.gen("answer", max_tokens=LENGTHS[kind], stop="\n", temperature=0)


def main() -> None:
    """Ask all kinds about two people at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()
    people = {"Klaus": "reads a book about cities.", "Maria": "bakes bread for the party."}
    rooms = "kitchen, library, garden"
    items = [(kind, person, event, rooms) for kind in QUESTIONS for person, event in people.items()]
    with LLM(given.model) as llm:
        for (kind, person, *_), state in zip(items, ask.run_batch(items, backend=llm), strict=True):
            print(f"{kind:10} {person:6} {state['answer'].strip()!r}")


if __name__ == "__main__":
    main()
