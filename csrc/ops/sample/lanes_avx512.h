// The list of lanes_scalar.h for AVX-512: sixteen floats or eight doubles.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace trivium::sample {
namespace {

struct Avx512F32 {
  static constexpr std::size_t kLanes = 16;
  __m512 value;

  static Avx512F32 all(float x) { return {_mm512_set1_ps(x)}; }
  static Avx512F32 load(const float* from) { return {_mm512_loadu_ps(from)}; }
  void store(float* to) const { _mm512_storeu_ps(to, value); }
};

inline Avx512F32 max(Avx512F32 a, Avx512F32 b) { return {_mm512_max_ps(a.value, b.value)}; }
inline unsigned at_least(Avx512F32 a, Avx512F32 b) { return _mm512_cmp_ps_mask(a.value, b.value, _CMP_GE_OQ); }
inline unsigned above(Avx512F32 a, Avx512F32 b) { return _mm512_cmp_ps_mask(a.value, b.value, _CMP_GT_OQ); }
inline unsigned equal(Avx512F32 a, Avx512F32 b) { return _mm512_cmp_ps_mask(a.value, b.value, _CMP_EQ_OQ); }
inline unsigned unordered(Avx512F32 a, Avx512F32 b) { return _mm512_cmp_ps_mask(a.value, b.value, _CMP_UNORD_Q); }

// Packed in a register and stored whole: the instruction that stores a part is microcode on some processors.
inline void compress(Avx512F32 x, unsigned bits, float* to) {
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), x.value));
}
inline void compress_ids(Avx512F32, const std::int32_t* from, unsigned bits, std::int32_t* to) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), _mm512_loadu_si512(from)));
}
inline void compress_range(Avx512F32, std::size_t first, unsigned bits, std::int32_t* to) {
  const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i ids = _mm512_add_epi32(_mm512_set1_epi32(static_cast<std::int32_t>(first)), steps);
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), ids));
}

struct Avx512F64 {
  static constexpr std::size_t kLanes = 8;
  __m512d value;

  static Avx512F64 all(double x) { return {_mm512_set1_pd(x)}; }
  static Avx512F64 load(const double* from) { return {_mm512_loadu_pd(from)}; }
  static Avx512F64 load(const float* from) { return {_mm512_cvtps_pd(_mm256_loadu_ps(from))}; }
  void store(double* to) const { _mm512_storeu_pd(to, value); }
  void store_whole(std::int32_t* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvttpd_epi32(value));
  }
};

inline unsigned at_least(Avx512F64 a, Avx512F64 b) { return _mm512_cmp_pd_mask(a.value, b.value, _CMP_GE_OQ); }
inline unsigned above(Avx512F64 a, Avx512F64 b) { return _mm512_cmp_pd_mask(a.value, b.value, _CMP_GT_OQ); }
inline unsigned equal(Avx512F64 a, Avx512F64 b) { return _mm512_cmp_pd_mask(a.value, b.value, _CMP_EQ_OQ); }
inline unsigned unordered(Avx512F64 a, Avx512F64 b) { return _mm512_cmp_pd_mask(a.value, b.value, _CMP_UNORD_Q); }
inline void compress(Avx512F64 x, unsigned bits, double* to) {
  _mm512_storeu_pd(to, _mm512_maskz_compress_pd(static_cast<__mmask8>(bits), x.value));
}
inline void compress_ids(Avx512F64, const std::int32_t* from, unsigned bits, std::int32_t* to) {
  const __m256i ids = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_compress_epi32(static_cast<__mmask8>(bits), ids));
}
inline void compress_range(Avx512F64, std::size_t first, unsigned bits, std::int32_t* to) {
  const __m256i steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i ids = _mm256_add_epi32(_mm256_set1_epi32(static_cast<std::int32_t>(first)), steps);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_compress_epi32(static_cast<__mmask8>(bits), ids));
}

inline Avx512F64 operator+(Avx512F64 a, Avx512F64 b) { return {_mm512_add_pd(a.value, b.value)}; }
inline Avx512F64 operator-(Avx512F64 a, Avx512F64 b) { return {_mm512_sub_pd(a.value, b.value)}; }
inline Avx512F64 operator*(Avx512F64 a, Avx512F64 b) { return {_mm512_mul_pd(a.value, b.value)}; }
inline Avx512F64 operator/(Avx512F64 a, Avx512F64 b) { return {_mm512_div_pd(a.value, b.value)}; }
inline Avx512F64 max(Avx512F64 a, Avx512F64 b) { return {_mm512_max_pd(a.value, b.value)}; }
inline Avx512F64 min(Avx512F64 a, Avx512F64 b) { return {_mm512_min_pd(a.value, b.value)}; }
inline Avx512F64 fused(Avx512F64 a, Avx512F64 b, Avx512F64 c) { return {_mm512_fmadd_pd(a.value, b.value, c.value)}; }
inline Avx512F64 times_power(Avx512F64 x, Avx512F64 whole) {
  const __m512i power = _mm512_slli_epi64(_mm512_castpd_si512(whole.value), 52);
  return {_mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(x.value), power))};
}
inline Avx512F64 zero_below(Avx512F64 x, Avx512F64 by, Avx512F64 limit) {
  return {_mm512_maskz_mov_pd(_mm512_cmp_pd_mask(by.value, limit.value, _CMP_NLT_UQ), x.value)};
}
inline bool are_equal(Avx512F64 a, Avx512F64 b) { return _mm512_cmp_pd_mask(a.value, b.value, _CMP_EQ_OQ) == 255; }
inline double sum(Avx512F64 x) {
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(x.value), _mm512_extractf64x4_pd(x.value, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

inline Avx512F32 operator+(Avx512F32 a, Avx512F32 b) { return {_mm512_add_ps(a.value, b.value)}; }
inline Avx512F32 operator-(Avx512F32 a, Avx512F32 b) { return {_mm512_sub_ps(a.value, b.value)}; }
inline Avx512F32 operator*(Avx512F32 a, Avx512F32 b) { return {_mm512_mul_ps(a.value, b.value)}; }
inline Avx512F32 fused(Avx512F32 a, Avx512F32 b, Avx512F32 c) { return {_mm512_fmadd_ps(a.value, b.value, c.value)}; }
inline Avx512F32 times_power(Avx512F32 x, Avx512F32 whole) {
  const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(whole.value), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.value), power))};
}
inline Avx512F32 only_below(Avx512F32 x, Avx512F32 by, Avx512F32 limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(by.value, limit.value, _CMP_LT_OQ), x.value)};
}
inline double sum(Avx512F32 x) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x.value));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.value, 1));
  return sum(Avx512F64{_mm512_add_pd(low, high)});
}

template <class T>
struct Avx512Lanes;
template <>
struct Avx512Lanes<float> {
  using Type = Avx512F32;
};
template <>
struct Avx512Lanes<double> {
  using Type = Avx512F64;
};

struct Avx512 {
  template <class T>
  using Lanes = typename Avx512Lanes<T>::Type;
  using Math = Avx512F64;
  using Rough = Avx512F32;
  static constexpr std::size_t kPack = 4;
};

}  // namespace
}  // namespace trivium::sample
