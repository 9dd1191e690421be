// AVX-512, compiled with exactly those flags.
#include "ops/sample/lanes_avx512.h"
#include "ops/sample/weigh_inl.h"

namespace trivium::sample {

const PassTable& sample_passes_avx512();
const PassTable& sample_passes_avx512() { return kTable<Avx512>; }

}  // namespace trivium::sample
