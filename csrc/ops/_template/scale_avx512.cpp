#include "ops/_template/scale_inl.h"
#include "simd/vec_avx512.h"

namespace trivium::scale {

void scale_f32_avx512(float factor, const float* x, float* y, std::size_t size);
void scale_f32_avx512(float factor, const float* x, float* y, std::size_t size) {
  scale_vectors<VecAvx512>(factor, x, y, size);
}

}  // namespace trivium::scale
