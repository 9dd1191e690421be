"""Write JSON of a fixed form: a person of a story by a regular expression, facts of a text by a dataclass.

    python examples/programs/json_records.py

What the form forces, keys, quotes and brackets, is not drawn token by token: runs of it are taken in one forward pass.
"""

import argparse
from dataclasses import dataclass
from typing import Literal

import trivium.lang as sgl
from trivium import LLM

CHARACTER = (
    r'\{"name": "[A-Z][a-z]{2,11} [A-Z][a-z]{2,11}", "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)", '
    r'"blood_status": "(Pure-blood|Half-blood|Muggle-born)", "occupation": "(student|teacher|auror|shopkeeper)", '
    r'"wand": \{"wood": "(oak|yew|holly|willow)", "length_in_inches": 1[0-4]\}, "is_alive": (true|false)\}'
)
TOWN = "Lisbon, in Portugal, has 550,000 people and lies on the river Tagus. It is an old and sunny town."


@dataclass
class Facts:
    """What a text says of a town."""

    country: Literal["Portugal", "Spain", "France", "Italy"]
    number_of_inhabitants: int
    lies_on_a_river: bool
    weather: Literal["sunny", "rainy", "cold"]


@sgl.function
def character(s, name):
    """Describe a person of a story."""
    s += sgl.user(f"Please write the facts of the character {name} as JSON.")
    s += sgl.assistant(sgl.gen("json", max_tokens=256, regex=CHARACTER, temperature=0))


@sgl.function
def facts(s, text):
    """Extract the facts of a text."""
    s += sgl.user("Please extract the facts of this text as JSON.\n" + text)
    s += sgl.assistant(sgl.gen("json", max_tokens=256, json_schema=Facts, temperature=0))


def main() -> None:
    """Write one of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()
    with LLM(given.model) as llm:
        print(character.run("Harry Potter", backend=llm)["json"])
        print(facts.run(TOWN, backend=llm).get_parsed("json"))


if __name__ == "__main__":
    main()
