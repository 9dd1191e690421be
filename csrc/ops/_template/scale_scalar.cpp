#include "ops/_template/scale_inl.h"
#include "simd/vec.h"

namespace trivium::scale {

void scale_f32_scalar(float factor, const float* x, float* y, std::size_t size);
void scale_f32_scalar(float factor, const float* x, float* y, std::size_t size) {
  scale_vectors<VecScalar>(factor, x, y, size);
}

}  // namespace trivium::scale
