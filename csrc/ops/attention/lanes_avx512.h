// Sixteen floats: AVX-512 F and DQ. The list of lanes_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/attention/exp2.h"

namespace trivium::attention {
namespace {

struct Lanes {
  __m512 value;

  static Lanes zero() { return {_mm512_setzero_ps()}; }
  static Lanes broadcast(float from) { return {_mm512_set1_ps(from)}; }
  static Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
  void store(float* to) const { _mm512_storeu_ps(to, value); }
};

inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.value, b.value, c.value)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.value, b.value)}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.value, b.value)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.value, b.value)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.value, b.value)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.value, b.value)}; }
inline float greatest(Lanes a) { return _mm512_reduce_max_ps(a.value); }

// Lanes whose bit is not set become `other`.
inline Lanes keep(Lanes a, std::uint32_t bits, Lanes other) {
  return {_mm512_mask_mov_ps(other.value, static_cast<__mmask16>(bits), a.value)};
}

inline Lanes exp2(Lanes x) {
  const __m512 whole = _mm512_roundscale_ps(x.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Lanes power = exp2_fraction<Lanes>({_mm512_sub_ps(x.value, whole)});
  const __mmask16 is_normal = _mm512_cmp_ps_mask(x.value, _mm512_set1_ps(kLeastExponent), _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_ps(is_normal, power.value, whole)};
}

// Sixteen words of two bf16 each, as floats.
inline Lanes low_halves(const void* words) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(words), 16))};
}
inline Lanes high_halves(const void* words) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(words), _mm512_set1_epi32(-65536)))};
}

}  // namespace
}  // namespace trivium::attention
