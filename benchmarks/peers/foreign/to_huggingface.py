"""Write a GGUF file's weights, dequantized to bfloat16, as a checkpoint in Hugging Face layout.

    python to_huggingface.py MODEL.gguf FOLDER

Run by a Python that has torch, transformers, accelerate and gguf; needs nothing of this repository. The folder gets its
name when it is whole.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Convert."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # A model that was read from GGUF insists on its quantizer when it is saved; a fresh one has none.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = AutoModelForCausalLM.from_config(config)
    fresh.load_state_dict(read.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    fresh.to(torch.bfloat16).save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.replace(target)


if __name__ == "__main__":
    main()
