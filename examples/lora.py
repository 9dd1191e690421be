"""Answer one prompt with the base and with LoRA adapters, all in the same batch.

    python examples/lora.py
    python examples/lora.py --lora sql=/srv/lora/sql --lora poet=/srv/lora/poet "List all customers"

Without --lora it draws two adapters, in peft's layout; each answer is the one that its adapter gives alone.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from trivium import LLM, SamplingParams


def draw_adapter(folder: Path, llm: LLM, seed: int) -> Path:
    """Write a random adapter of the last layer's down projection."""
    config, random = llm.frontend.config, np.random.default_rng(seed)
    module = f"base_model.model.model.layers.{config.num_layers - 1}.mlp.down_proj"
    matrices = {
        f"{module}.lora_A.weight": random.standard_normal((8, config.ffn_width), np.float32) / config.ffn_width**0.5,
        f"{module}.lora_B.weight": random.standard_normal((config.model_width, 8), np.float32),
    }
    folder.mkdir()
    save_file(matrices, folder / "adapter_model.safetensors")
    says = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["down_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(says))
    return folder


def main() -> None:
    """Load the adapters, then answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="The sea is")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lora", action="append", default=[], metavar="NAME=PATH")
    given = parser.parse_args()

    with LLM(given.model, lora=given.lora) as llm, tempfile.TemporaryDirectory() as scratch:
        for number in range(0 if given.lora else 2):
            llm.load_lora(f"drawn-{number}", draw_adapter(Path(scratch) / str(number), llm, number))
        names = [None, *llm.list_loras()]
        params = SamplingParams(temperature=0, max_tokens=24)
        outputs = llm.generate([given.prompt] * len(names), params, lora_request=names)
        for name, output in zip(names, outputs, strict=True):
            print(f"{name or 'base'}: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
