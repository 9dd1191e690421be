#include "ops/_template/scale_inl.h"
#include "simd/vec_avx2.h"

namespace trivium::scale {

void scale_f32_avx2(float factor, const float* x, float* y, std::size_t size);
void scale_f32_avx2(float factor, const float* x, float* y, std::size_t size) {
  scale_vectors<VecAvx2>(factor, x, y, size);
}

}  // namespace trivium::scale
