// The list of lanes_scalar.h for AVX2 and FMA: eight floats or four doubles.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace trivium::sample {
namespace {

struct Avx2F32 {
  static constexpr std::size_t kLanes = 8;
  __m256 value;

  static Avx2F32 all(float x) { return {_mm256_set1_ps(x)}; }
  static Avx2F32 load(const float* from) { return {_mm256_loadu_ps(from)}; }
  void store(float* to) const { _mm256_storeu_ps(to, value); }
};

inline unsigned bits_of(__m256 lanes) { return static_cast<unsigned>(_mm256_movemask_ps(lanes)); }
inline Avx2F32 max(Avx2F32 a, Avx2F32 b) { return {_mm256_max_ps(a.value, b.value)}; }
inline unsigned at_least(Avx2F32 a, Avx2F32 b) { return bits_of(_mm256_cmp_ps(a.value, b.value, _CMP_GE_OQ)); }
inline unsigned above(Avx2F32 a, Avx2F32 b) { return bits_of(_mm256_cmp_ps(a.value, b.value, _CMP_GT_OQ)); }
inline unsigned equal(Avx2F32 a, Avx2F32 b) { return bits_of(_mm256_cmp_ps(a.value, b.value, _CMP_EQ_OQ)); }
inline unsigned unordered(Avx2F32 a, Avx2F32 b) { return bits_of(_mm256_cmp_ps(a.value, b.value, _CMP_UNORD_Q)); }

struct Avx2F64 {
  static constexpr std::size_t kLanes = 4;
  __m256d value;

  static Avx2F64 all(double x) { return {_mm256_set1_pd(x)}; }
  static Avx2F64 load(const double* from) { return {_mm256_loadu_pd(from)}; }
  static Avx2F64 load(const float* from) { return {_mm256_cvtps_pd(_mm_loadu_ps(from))}; }
  void store(double* to) const { _mm256_storeu_pd(to, value); }
  void store_whole(std::int32_t* to) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvttpd_epi32(value));
  }
};

inline unsigned bits_of(__m256d lanes) { return static_cast<unsigned>(_mm256_movemask_pd(lanes)); }
inline unsigned at_least(Avx2F64 a, Avx2F64 b) { return bits_of(_mm256_cmp_pd(a.value, b.value, _CMP_GE_OQ)); }
inline unsigned above(Avx2F64 a, Avx2F64 b) { return bits_of(_mm256_cmp_pd(a.value, b.value, _CMP_GT_OQ)); }
inline unsigned equal(Avx2F64 a, Avx2F64 b) { return bits_of(_mm256_cmp_pd(a.value, b.value, _CMP_EQ_OQ)); }
inline unsigned unordered(Avx2F64 a, Avx2F64 b) { return bits_of(_mm256_cmp_pd(a.value, b.value, _CMP_UNORD_Q)); }

// AVX2 has no instruction that packs lanes: order[bits] lists the lanes whose bit is set, for a permutation.
struct PackOrders {
  std::int32_t order[256][8];
  constexpr PackOrders() : order() {
    for (int bits = 0; bits < 256; ++bits) {
      int count = 0;
      for (int lane = 0; lane < 8; ++lane) {
        if ((bits >> lane & 1) != 0) order[bits][count++] = lane;
      }
    }
  }
};
constexpr PackOrders kPackOrders;

// The orders of four lanes of two words each.
struct PackPairs {
  std::int32_t order[16][8];
  constexpr PackPairs() : order() {
    for (int bits = 0; bits < 16; ++bits) {
      for (int i = 0; i < 4; ++i) {
        order[bits][2 * i] = 2 * kPackOrders.order[bits][i];
        order[bits][2 * i + 1] = 2 * kPackOrders.order[bits][i] + 1;
      }
    }
  }
};
constexpr PackPairs kPackPairs;

inline __m256i load_words(const std::int32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline void store_words(__m256i words, std::int32_t* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words); }
inline void compress(Avx2F32 x, unsigned bits, float* to) {
  _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(x.value, load_words(kPackOrders.order[bits])));
}
inline void compress_ids(Avx2F32, const std::int32_t* from, unsigned bits, std::int32_t* to) {
  store_words(_mm256_permutevar8x32_epi32(load_words(from), load_words(kPackOrders.order[bits])), to);
}
inline void compress_range(Avx2F32, std::size_t first, unsigned bits, std::int32_t* to) {
  const __m256i start = _mm256_set1_epi32(static_cast<std::int32_t>(first));
  store_words(_mm256_add_epi32(start, load_words(kPackOrders.order[bits])), to);
}
inline void compress(Avx2F64 x, unsigned bits, double* to) {
  const __m256 words = _mm256_castpd_ps(x.value);
  const __m256 packed = _mm256_permutevar8x32_ps(words, load_words(kPackPairs.order[bits]));
  _mm256_storeu_pd(to, _mm256_castps_pd(packed));
}
inline void compress_ids(Avx2F64, const std::int32_t* from, unsigned bits, std::int32_t* to) {
  const __m128 ids = _mm_loadu_ps(reinterpret_cast<const float*>(from));
  const __m128i order = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kPackOrders.order[bits]));
  _mm_storeu_ps(reinterpret_cast<float*>(to), _mm_permutevar_ps(ids, order));
}
inline void compress_range(Avx2F64, std::size_t first, unsigned bits, std::int32_t* to) {
  const __m128i start = _mm_set1_epi32(static_cast<std::int32_t>(first));
  const __m128i order = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kPackOrders.order[bits]));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_add_epi32(start, order));
}

inline Avx2F64 operator+(Avx2F64 a, Avx2F64 b) { return {_mm256_add_pd(a.value, b.value)}; }
inline Avx2F64 operator-(Avx2F64 a, Avx2F64 b) { return {_mm256_sub_pd(a.value, b.value)}; }
inline Avx2F64 operator*(Avx2F64 a, Avx2F64 b) { return {_mm256_mul_pd(a.value, b.value)}; }
inline Avx2F64 operator/(Avx2F64 a, Avx2F64 b) { return {_mm256_div_pd(a.value, b.value)}; }
inline Avx2F64 max(Avx2F64 a, Avx2F64 b) { return {_mm256_max_pd(a.value, b.value)}; }
inline Avx2F64 min(Avx2F64 a, Avx2F64 b) { return {_mm256_min_pd(a.value, b.value)}; }
inline Avx2F64 fused(Avx2F64 a, Avx2F64 b, Avx2F64 c) { return {_mm256_fmadd_pd(a.value, b.value, c.value)}; }
inline Avx2F64 times_power(Avx2F64 x, Avx2F64 whole) {
  const __m256i power = _mm256_slli_epi64(_mm256_castpd_si256(whole.value), 52);
  return {_mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(x.value), power))};
}
inline Avx2F64 zero_below(Avx2F64 x, Avx2F64 by, Avx2F64 limit) {
  return {_mm256_and_pd(_mm256_cmp_pd(by.value, limit.value, _CMP_NLT_UQ), x.value)};
}
inline bool are_equal(Avx2F64 a, Avx2F64 b) { return bits_of(_mm256_cmp_pd(a.value, b.value, _CMP_EQ_OQ)) == 15; }
inline double sum(Avx2F64 x) {
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(x.value), _mm256_extractf128_pd(x.value, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

inline Avx2F32 operator+(Avx2F32 a, Avx2F32 b) { return {_mm256_add_ps(a.value, b.value)}; }
inline Avx2F32 operator-(Avx2F32 a, Avx2F32 b) { return {_mm256_sub_ps(a.value, b.value)}; }
inline Avx2F32 operator*(Avx2F32 a, Avx2F32 b) { return {_mm256_mul_ps(a.value, b.value)}; }
inline Avx2F32 fused(Avx2F32 a, Avx2F32 b, Avx2F32 c) { return {_mm256_fmadd_ps(a.value, b.value, c.value)}; }
inline Avx2F32 times_power(Avx2F32 x, Avx2F32 whole) {
  const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(whole.value), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.value), power))};
}
inline Avx2F32 only_below(Avx2F32 x, Avx2F32 by, Avx2F32 limit) {
  return {_mm256_and_ps(_mm256_cmp_ps(by.value, limit.value, _CMP_LT_OQ), x.value)};
}
inline double sum(Avx2F32 x) {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x.value));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x.value, 1));
  return sum(Avx2F64{_mm256_add_pd(low, high)});
}

template <class T>
struct Avx2Lanes;
template <>
struct Avx2Lanes<float> {
  using Type = Avx2F32;
};
template <>
struct Avx2Lanes<double> {
  using Type = Avx2F64;
};

struct Avx2 {
  template <class T>
  using Lanes = typename Avx2Lanes<T>::Type;
  using Math = Avx2F64;
  using Rough = Avx2F32;
  static constexpr std::size_t kPack = 2;
};

}  // namespace
}  // namespace trivium::sample
