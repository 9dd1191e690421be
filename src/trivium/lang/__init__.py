"""Floor 8½: programs that a model runs, in SGLang's words. `import trivium.lang as sgl` takes the place of `sglang`.

>>> import trivium.lang as sgl
>>> from trivium import LLM
>>> @sgl.function                                                                # doctest: +SKIP
... def capital(s, country):
...     s += "The capital of " + country + " is" + sgl.gen("city", max_tokens=4, stop=".")
>>> sgl.set_default_backend(LLM("smollm2"))                                      # doctest: +SKIP
>>> capital.run(country="France")["city"]                                        # doctest: +SKIP
"""

from __future__ import annotations

from trivium.base.errors import ProgramError
from trivium.lang.absent import image, refusing, video
from trivium.lang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    gen_int,
    gen_string,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    tool,
    user,
    user_begin,
    user_end,
)
from trivium.lang.backends.anthropic_api import Anthropic
from trivium.lang.backends.choice import flush_cache, get_server_info, set_default_backend
from trivium.lang.backends.endpoint import RuntimeEndpoint
from trivium.lang.backends.engine import Engine
from trivium.lang.backends.openai_api import Crusoe, OpenAI
from trivium.lang.backends.runtime import Runtime
from trivium.lang.backends.scripted import ScriptedBackend
from trivium.lang.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    greedy_token_selection,
    joint_probability,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from trivium.lang.flow import contains, not_
from trivium.lang.forms import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR
from trivium.lang.function import SglFunction
from trivium.lang.settings import global_config
from trivium.lang.state import ProgramState, ProgramStateGroup
from trivium.lang.trace import Trace

ServerArgs = refusing("ServerArgs")
LiteLLM, VertexAI = refusing("LiteLLM"), refusing("VertexAI")

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "Anthropic",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Crusoe",
    "Engine",
    "LiteLLM",
    "OpenAI",
    "ProgramError",
    "ProgramState",
    "ProgramStateGroup",
    "Runtime",
    "RuntimeEndpoint",
    "ScriptedBackend",
    "ServerArgs",
    "SglFunction",
    "Trace",
    "VertexAI",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "contains",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "joint_probability",
    "not_",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]
