// Sixteen floats as two vectors of eight: AVX2 and FMA. The list of lanes_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/attention/exp2.h"

namespace trivium::attention {
namespace {

struct Lanes {
  __m256 low, high;

  static Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Lanes broadcast(float from) { return {_mm256_set1_ps(from), _mm256_set1_ps(from)}; }
  static Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  void store(float* to) const {
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
  }
};

inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

inline float greatest(Lanes a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

inline __m256 keep_eight(__m256 a, std::uint32_t bits, __m256 other) {
  const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lanes);
  return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lanes)));
}

// Lanes whose bit is not set become `other`.
inline Lanes keep(Lanes a, std::uint32_t bits, Lanes other) {
  return {keep_eight(a.low, bits, other.low), keep_eight(a.high, bits >> 8, other.high)};
}

// 2^whole for -126 <= whole <= 127: the number is put where a float keeps its exponent.
inline __m256 power_of_two(__m256 whole) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23));
}

// Maxima and minima give their second operand when one is NaN, and so does the comparison let NaN pass.
inline __m256 exp2_eight(__m256 x, __m256 fraction_power, __m256 whole) {
  const __m256 is_normal = _mm256_cmp_ps(x, _mm256_set1_ps(kLeastExponent), _CMP_NLT_UQ);
  return _mm256_and_ps(_mm256_mul_ps(fraction_power, power_of_two(whole)), is_normal);
}

inline __m256 inside(__m256 x) {
  return _mm256_min_ps(_mm256_set1_ps(127.0F), _mm256_max_ps(_mm256_set1_ps(kLeastExponent), x));
}

inline Lanes exp2(Lanes x) {
  const Lanes bounded = {inside(x.low), inside(x.high)};
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const Lanes whole = {_mm256_round_ps(bounded.low, kNearest), _mm256_round_ps(bounded.high, kNearest)};
  const Lanes power = exp2_fraction(sub(bounded, whole));
  return {exp2_eight(x.low, power.low, whole.low), exp2_eight(x.high, power.high, whole.high)};
}

// Sixteen words of two bf16 each, as floats.
inline __m256 words_at(const void* words, int index) {
  return _mm256_castsi256_ps(_mm256_loadu_si256(static_cast<const __m256i*>(words) + index));
}
inline Lanes low_halves(const void* words) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(words_at(words, 0)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(words_at(words, 1)), 16))};
}
inline Lanes high_halves(const void* words) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(-65536));
  return {_mm256_and_ps(words_at(words, 0), mask), _mm256_and_ps(words_at(words, 1), mask)};
}

}  // namespace
}  // namespace trivium::attention
