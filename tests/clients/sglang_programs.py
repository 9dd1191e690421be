"""Programs of our own in SGLang's own client, against a server of ours; run by `test_sglang.py`, or by hand::

    python tests/clients/sglang_programs.py http://127.0.0.1:8000

with an interpreter that has `sglang` (`pip install --no-deps sglang`) and what its client needs: requests, numpy, tqdm,
aiohttp, msgspec, pybase64, IPython, psutil, pydantic. The client is loaded without the server's package, which wants
much more.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

LIMIT_S = 60.0


def load_client() -> Any:
    """Load `sglang.lang` alone."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("sglang is not installed")
    package, server = types.ModuleType("sglang"), types.ModuleType("sglang.srt")
    package.__path__ = list(spec.submodule_search_locations)
    server.__path__ = []
    environ: Any = types.ModuleType("sglang.srt.environ")
    environ.envs = types.SimpleNamespace()
    sys.modules |= {"sglang": package, "sglang.srt": server, "sglang.srt.environ": environ}
    client: Any = importlib.import_module("sglang.lang.api")
    client.choices = importlib.import_module("sglang.lang.choices")
    client.settings = importlib.import_module("sglang.lang.global_config").global_config
    client.RuntimeEndpoint = importlib.import_module("sglang.lang.backend.runtime_endpoint").RuntimeEndpoint
    return client


def ensure(condition: object, found: object) -> None:
    """Fail with what was found."""
    if not condition:
        raise AssertionError(repr(found))


def programs(sgl: Any) -> dict[str, Callable[[], None]]:  # noqa: C901, PLR0915  (a list of small ones)
    """Each program by what it tries."""
    greedy = {"temperature": 0.0}

    def few_shot() -> None:
        @sgl.function
        def capitals(s: Any, country: str) -> None:
            s += "Q: The capital of Italy?\nA: Rome\nQ: The capital of Spain?\nA: Madrid\n"
            s += "Q: The capital of " + country + "?\nA:" + sgl.gen("city", max_tokens=8, stop="\n")

        state = capitals.run(country="France", **greedy)
        ensure(state["city"].strip() == "Paris", state["city"])
        ensure(state.get_meta_info("city")["finish_reason"]["type"] == "stop", state.get_meta_info("city"))
        ensure(state.text().endswith("A: Paris"), state.text())

    def multi_turn() -> None:
        @sgl.function
        def talk(s: Any) -> None:
            s += sgl.system("You answer in one word.")
            s += sgl.user("What is the capital of France?")
            s += sgl.assistant(sgl.gen("first", max_tokens=16))
            with s.user():
                s += "And of Italy?"
            with s.assistant():
                s += sgl.gen("second", max_tokens=16)

        state = talk.run(**greedy)
        ensure("Paris" in state["first"], state["first"])
        ensure(len(state.messages()) == 5, state.messages())
        cached = state.get_meta_info("second")["cached_tokens"]
        ensure(cached >= state.get_meta_info("first")["prompt_tokens"], cached)

    def select() -> None:
        @sgl.function
        def choose(s: Any) -> None:
            s += "The capital of France is the city of" + sgl.select("city", [" Rome", " Paris", " Oslo"])

        state = choose.run(**greedy)
        ensure(state["city"] == " Paris", state["city"])
        ensure(len(state.get_meta_info("city")["input_token_logprobs"]) == 3, state.get_meta_info("city"))

    def select_by(method: str) -> Callable[[], None]:
        def run() -> None:
            @sgl.function
            def choose(s: Any) -> None:
                measure = getattr(sgl.choices, method)
                s += "The capital of France is the city of"
                s += sgl.select("city", [" Rome", " Paris", " Oslo"], choices_method=measure)

            state = choose.run(**greedy)
            state.sync()
            ensure(state.error() is None, state.error())
            ensure(state["city"] == " Paris", state["city"])

        return run

    def whole_numbers() -> None:
        @sgl.function
        def count(s: Any) -> None:
            s += "Two and two are " + sgl.gen_int("n", max_tokens=6) + ". A dog has legs: "
            s += sgl.gen("legs", dtype=int, max_tokens=6)

        state = count.run(**greedy)
        ensure(int(state["n"]) >= 0 and int(state["legs"]) >= 0, state.text())

    def json_by_regex() -> None:
        pattern = r'\{"name": "[A-Za-z ]{1,12}", "age": [0-9]{1,2}\}'

        @sgl.function
        def person(s: Any) -> None:
            s += "A person as JSON: " + sgl.gen("json", max_tokens=48, regex=pattern)

        found = json.loads(person.run(**greedy)["json"])
        ensure(set(found) == {"name", "age"}, found)

    def json_by_schema() -> None:
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}

        @sgl.function
        def person(s: Any) -> None:
            s += "A person as JSON: " + sgl.gen("json", max_tokens=64, json_schema=json.dumps(schema))

        ensure("name" in json.loads(person.run(**greedy)["json"]), "no name")

    def stream() -> None:
        @sgl.function
        def tell(s: Any) -> None:
            s += "One, two, three," + sgl.gen("rest", max_tokens=16)

        state = tell.run(stream=True, **greedy)
        pieces = list(state.text_iter("rest"))
        ensure(len(pieces) > 2 and "".join(pieces) == state["rest"], pieces)
        ensure(tell.run(**greedy)["rest"] == state["rest"], state["rest"])

    def stream_logprobs() -> None:
        @sgl.function
        def tell(s: Any) -> None:
            s += "One, two," + sgl.gen(
                "rest", max_tokens=4, return_logprob=True, logprob_start_len=0, top_logprobs_num=2
            )

        state = tell.run(**greedy)
        meta = state.get_meta_info("rest")
        ensure(len(meta["output_token_logprobs"]) == 4, meta)
        ensure(meta["input_token_logprobs"][0][0] is None, meta)
        ensure(len(meta["output_top_logprobs"][0]) == 2, meta)

    def fork_and_join() -> None:
        @sgl.function
        def branch(s: Any) -> None:
            s += "Colours: "
            forks = s.fork(3)
            forks += lambda idx: f"{idx}. " + sgl.gen("colour", max_tokens=4)
            forks.join()
            s += ", ".join(s["colour"])

        state = branch.run(**greedy)
        ensure(len(state["colour"]) == 3, state["colour"])
        ensure(state.text().startswith("Colours: "), state.text())

    def append_branches() -> None:
        @sgl.function
        def branch(s: Any) -> None:
            s += "Colours: "
            forks = s.fork(2)
            forks += sgl.gen("colour", max_tokens=3)
            forks.join("concate_and_append")
            s += "\nEnd:" + sgl.gen("end", max_tokens=2)

        state = branch.run(**greedy)
        ensure(state["end"] is not None and state.error() is None, state.error())

    def batch() -> None:
        @sgl.function
        def ask(s: Any, question: str) -> None:
            s += "A list of questions and short answers follows, one on each line, as in a quiz for children.\n"
            s += "Q: " + question + "\nA:" + sgl.gen("answer", max_tokens=4, stop="\n")

        asked = [{"question": f"What is {n} + 1?"} for n in range(12)]
        states = ask.run_batch(asked, num_threads=6, **greedy)
        ensure(all(isinstance(state["answer"], str) for state in states), [state.error() for state in states])

    def rest_of_the_surface() -> None:
        ensure("model_path" in sgl.get_server_info(), sgl.get_server_info())
        sgl.flush_cache()

    return {
        "few-shot": few_shot,
        "multi-turn": multi_turn,
        "select": select,
        "select, greedy": select_by("greedy_token_selection"),
        "select, unconditional": select_by("unconditional_likelihood_normalized"),
        "gen_int": whole_numbers,
        "json by regex": json_by_regex,
        "json by schema": json_by_schema,
        "stream": stream,
        "logprobs": stream_logprobs,
        "fork and join": fork_and_join,
        "join by appending": append_branches,
        "run_batch": batch,
        "server info and flush": rest_of_the_surface,
    }


def attempt(run: Callable[[], None]) -> str:
    """Return `passes`, or why not; a program that hangs is left alone."""
    outcome = [f"hangs (left after {LIMIT_S:g} s)"]

    def body() -> None:
        try:
            run()
        except BaseException as error:
            outcome[0] = f"{type(error).__name__}: {error}"[:300]
        else:
            outcome[0] = "passes"

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return outcome[0]


def main(url: str) -> None:
    """Try all programs and write what became of them as JSON."""
    sgl = load_client()
    sgl.set_default_backend(sgl.RuntimeEndpoint(url, chat_template_name="chatml"))
    outcomes = {name: attempt(run) for name, run in programs(sgl).items()}
    sys.stdout.write(json.dumps(outcomes, indent=1) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
