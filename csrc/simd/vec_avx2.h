// The list of vec.h for eight lanes: AVX2 and FMA.
#pragma once

#include <immintrin.h>

namespace trivium {
namespace {

struct VecAvx2 {
  static constexpr int kLanes = 8;
  __m256 value;

  static VecAvx2 zero() { return {_mm256_setzero_ps()}; }
  static VecAvx2 broadcast(const float* from) { return {_mm256_broadcast_ss(from)}; }
  static VecAvx2 load(const float* from) { return {_mm256_loadu_ps(from)}; }
  void store(float* to) const { _mm256_storeu_ps(to, value); }
};

[[maybe_unused]] inline VecAvx2 fma(VecAvx2 a, VecAvx2 b, VecAvx2 c) {
  return {_mm256_fmadd_ps(a.value, b.value, c.value)};
}

[[maybe_unused]] inline VecAvx2 mul(VecAvx2 a, VecAvx2 b) { return {_mm256_mul_ps(a.value, b.value)}; }

[[maybe_unused]] inline VecAvx2 add(VecAvx2 a, VecAvx2 b) { return {_mm256_add_ps(a.value, b.value)}; }

}  // namespace
}  // namespace trivium
