// AVX2 and FMA, compiled with exactly those flags.
#include "ops/sample/lanes_avx2.h"
#include "ops/sample/weigh_inl.h"

namespace trivium::sample {

const PassTable& sample_passes_avx2();
const PassTable& sample_passes_avx2() { return kTable<Avx2>; }

}  // namespace trivium::sample
