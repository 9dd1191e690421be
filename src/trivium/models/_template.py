"""A new architecture in one file: copy this, follow the comments, then delete them.

This file is built and tested like the others but is not in the registry. Adding an architecture takes

1. this file, under the model's own name, with a layer function and an `Architecture` row;
2. a line in `models/registry.py`;
3. tensor names in `weights/names.py` (and, for GGUF, a row in `weights/gguf_config.py`);
4. a row or two in `tests/support/golden_cases.py` with everything that it can do differently switched on, then
   `python tools/make_goldens.py --only NAME`, which asks transformers for the right answers;
5. a graph on file, `tests/unit/models/graphs/NAME.txt`: the test prints it.

Say in the first lines what tells the model from its relatives, and name the paper. The example is a Llama whose two
halves run side by side on one norm, as GPT-J's do (Wang and Komatsuzaki 2021).
"""

from __future__ import annotations

from trivium.ir.graph import Value
from trivium.models.architecture import Architecture
from trivium.models.decoder import LayerScope
from trivium.models.layer_kinds import all_sliding_if_window
from trivium.models.parse_rope import RopeRules


# The layer function says only what is particular: where norms stand, what is added to what. Everything that depends
# on the configuration (widths, biases, windows, rope, caps) is in the scope. Where a model needs an op that `ir.ops`
# does not have, add the op first, with its meaning and its own test; do not fold it into a layer.
def parallel_layer(layer: LayerScope, x: Value) -> Value:
    """[T, M] -> [T, M]: attention and feed-forward both read one norm; both are added."""
    normed = layer.norm("input_layernorm", x)
    attended = layer.add(x, layer.attention(normed))
    return layer.add(attended, layer.mlp(normed))


TEMPLATE = Architecture(
    # As `architectures` and `model_type` of a config.json spell them.
    name="TemplateForCausalLM",
    model_type="template",
    layer=parallel_layer,
    # What an absent key means, from the transformers configuration class. Keys that every checkpoint writes
    # (hidden_size, ...) stay out: their absence is an error that names them.
    defaults={"max_position_embeddings": 2048, "sliding_window": None},
    # Which layers slide where the configuration does not list them; see `layer_kinds` for the known rules.
    kinds=all_sliding_if_window,
    # What is fixed about rope; the default refuses partial rotation.
    rope=RopeRules(can_rotate_part=True),
    # A bias is there (True), not there (False), or there where a key of the configuration says so (its name).
    qkv_bias="attention_bias",
    out_bias=False,
    mlp_bias=False,
)
