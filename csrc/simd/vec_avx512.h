// The list of vec.h for sixteen lanes: AVX-512 F.
#pragma once

#include <immintrin.h>

namespace trivium {
namespace {

struct VecAvx512 {
  static constexpr int kLanes = 16;
  __m512 value;

  static VecAvx512 zero() { return {_mm512_setzero_ps()}; }
  static VecAvx512 broadcast(const float* from) { return {_mm512_set1_ps(*from)}; }
  static VecAvx512 load(const float* from) { return {_mm512_loadu_ps(from)}; }
  void store(float* to) const { _mm512_storeu_ps(to, value); }
};

[[maybe_unused]] inline VecAvx512 fma(VecAvx512 a, VecAvx512 b, VecAvx512 c) {
  return {_mm512_fmadd_ps(a.value, b.value, c.value)};
}

[[maybe_unused]] inline VecAvx512 mul(VecAvx512 a, VecAvx512 b) { return {_mm512_mul_ps(a.value, b.value)}; }

[[maybe_unused]] inline VecAvx512 add(VecAvx512 a, VecAvx512 b) { return {_mm512_add_ps(a.value, b.value)}; }

}  // namespace
}  // namespace trivium
