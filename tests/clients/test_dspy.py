"""DSPy: signatures whose outputs have types, held by JSON Schema once the server is declared as a provider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from support.spoken import Spoken

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("default")]

ASKED: dict[str, Any] = {"cache": False, "temperature": 0.0, "max_tokens": 64, "num_retries": 0}


@pytest.fixture
def declared(smollm2: Spoken) -> Iterator[Any]:
    """DSPy, which knows of the server what the server can do."""
    import dspy  # noqa: PLC0415  (in the oracle environment only)
    from dspy import lm15  # noqa: PLC0415

    access = lm15.AccessPolicy(provider="trivium", env_keys=("TRIVIUM_API_KEY",), base_url=smollm2.base_url)
    compat = lm15.OpenAIChatCompat(json_schema="send", max_tokens_field="max_tokens")
    lm15.register_provider(
        lm15.ProviderDefinition.chat(access, compat=compat),
        supports=lm15.ModelSupport(response_schema=True, function_calling=False),
        replace=True,
    )
    lm = dspy.LM("trivium/smollm2", api_key=smollm2.key, **ASKED)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        yield dspy
    lm15.unregister_provider("trivium")


def test_a_plain_call_gets_the_servers_text(smollm2: Spoken) -> None:
    import dspy  # noqa: PLC0415  (in the oracle environment only)

    lm = dspy.LM("openai/smollm2", api_base=smollm2.base_url, api_key=smollm2.key, **ASKED)

    [text] = lm("What is the capital of France?")

    expected = smollm2.chat("What is the capital of France?", model="smollm2", max_tokens=64)
    assert text == expected["choices"][0]["message"]["content"]


def test_outputs_have_the_types_of_their_signature(declared: Any) -> None:
    class Facts(declared.Signature):  # type: ignore[misc]
        """Extract the facts."""

        text: str = declared.InputField()
        city: str = declared.OutputField()
        size: Literal["small", "large"] = declared.OutputField()
        number: int = declared.OutputField()

    for module in (declared.Predict(Facts), declared.ChainOfThought(Facts)):
        found = module(text="Lisbon has 550000 people.")
        assert found.city == "Lisbon"
        assert found.size in {"small", "large"}
        assert isinstance(found.number, int)


def test_what_calls_of_a_signature_share_is_cached(declared: Any) -> None:
    predict = declared.Predict("text -> is_about_food: bool")
    usages = []
    for text in ("Bread is made of flour.", "Trains run on rails."):
        assert predict(text=text).is_about_food in {True, False}
        usages.append(declared.settings.lm.history[-1]["usage"])

    assert usages[1]["prompt_tokens_details"]["cached_tokens"] > 0.6 * usages[1]["prompt_tokens"]


def test_a_refusal_is_an_error_of_dspy(declared: Any, smollm2: Spoken) -> None:
    lm = declared.LM("trivium/unknown", api_key=smollm2.key, **ASKED)

    with pytest.raises(declared.utils.exceptions.LMError, match="unknown"):
        lm("hello")
