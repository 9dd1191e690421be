// AVX2 and FMA, compiled with exactly those flags.
#include "ops/attention/lanes_avx2.h"
// Lanes first: what follows is written on them.
#include "ops/attention/attention_inl.h"

namespace trivium::attention {

Functions attention_avx2();
// 4 x 1 tiles of two registers each: 8 accumulators + 4 for the halves of a vector + 2 for units = 14 of 16 registers.
Functions attention_avx2() { return Level<Bf16, 4, 4>::functions(); }

}  // namespace trivium::attention
