// AVX-512, compiled with exactly those flags.
#include "ops/attention/lanes_avx512.h"
// Lanes first: what follows is written on them.
#include "ops/attention/attention_inl.h"

namespace trivium::attention {

Functions attention_avx512();
// 6 x 4 and 12 x 2 tiles: 24 accumulators + 2 halves of 2 to 4 vectors; units come as broadcast memory operands.
Functions attention_avx512() { return Level<Bf16, 12, 24>::functions(); }

}  // namespace trivium::attention
