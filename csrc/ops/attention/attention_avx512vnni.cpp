// AVX-512 with bfloat16 dot products, compiled with exactly those flags.
#include "ops/attention/lanes_avx512.h"
// Lanes first: what follows is written on them.
#include "ops/attention/attention_inl.h"
#include "ops/attention/bf16_dot_inl.h"

namespace trivium::attention {

Functions attention_avx512vnni();
// 6 x 4 and 12 x 2 tiles: 24 accumulators + 4 or 2 vectors of keys or values; units come as broadcast memory operands.
Functions attention_avx512vnni() { return Level<Bf16Dot, 12, 24>::functions(); }

}  // namespace trivium::attention
