// One lane: what runs everywhere, and what every other level is compared with.
#include "ops/sample/lanes_scalar.h"
#include "ops/sample/weigh_inl.h"

namespace trivium::sample {

const PassTable& sample_passes_scalar();
const PassTable& sample_passes_scalar() { return kTable<Scalar>; }

}  // namespace trivium::sample
