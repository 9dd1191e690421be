// Lanes as loops: the kernel every other is compared with, and what runs where nothing stronger does.
#include "ops/attention/lanes_scalar.h"
// Lanes first: what follows is written on them.
#include "ops/attention/attention_inl.h"

namespace trivium::attention {

Functions attention_scalar();
Functions attention_scalar() { return Level<Bf16, 2, 2>::functions(); }

}  // namespace trivium::attention
