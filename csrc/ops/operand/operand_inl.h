// Writing rows of an operand. Included by ISA files only; everything here has internal linkage.
//
// Plain loops over 32 values at a time, which the compiler turns into vectors of most levels; every operation is exact
// or rounds once, so all levels write the same bits.
#pragma once

#if defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#include "ops/operand/operand.h"

namespace trivium::operand {
namespace {

inline std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
inline float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Adding 1.5 * 2^23 rounds a number below 2^22 to the nearest even integer and leaves it in the low bits of the sum.
inline constexpr float kRounder = 12582912.0F;

// Round to nearest even; NaN keeps its sign and becomes quiet.
inline std::uint16_t bf16_of(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded);
}

// The units of 32 values, and their sums.
struct Quantised {
  std::uint32_t words[kGroup / 4];
  std::int32_t sums[2];  // of units 0..15 and 16..31
};

// What a group is divided by, from its greatest |x| as bits.
struct Scale {
  float inverse;
  float scale;

  explicit Scale(std::uint32_t greatest) {
    const float a = float_of(greatest);
    // Below 2^-120 the quotient 127 / a overflows; such groups are zeros.
    const bool is_zero = greatest < 0x03800000U;
    const bool is_finite = greatest < 0x7F800000U;
    inverse = is_zero ? 0.0F : 127.0F / a;
    scale = is_finite ? (is_zero ? 0.0F : a / 127.0F) : float_of(0x7FC00000U);
  }
};

#if defined(__AVX512BW__) && defined(__AVX512VL__)

// The same by hand: what compilers make of the loops below takes three times as long.
inline std::uint32_t greatest_of(const float* values) {
  const __m512i no_sign = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i low = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(values)), no_sign);
  const __m512i high = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(values + 16)), no_sign);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(low, high));
}

inline void quantise(const float* values, float divisor, Quantised& out) {
  const __m512 low = _mm512_loadu_ps(values);
  const __m512 high = _mm512_loadu_ps(values + 16);
  const __m512 inverse = _mm512_set1_ps(divisor);
  const __m512 rounder = _mm512_set1_ps(kRounder);
  const auto units_of = [&](__m512 x) {
    return _mm512_cvtepi32_epi8(_mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(x, inverse), rounder)));
  };
  const __m256i units = _mm256_set_m128i(units_of(high), units_of(low));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.words), units);
  // Sums of eight bytes at a time, as unsigned ones that are 128 too large.
  const __m256i raised = _mm256_xor_si256(units, _mm256_set1_epi8(static_cast<char>(0x80)));
  const __m256i sums = _mm256_sad_epu8(raised, _mm256_setzero_si256());
  const __m128i low_sums = _mm256_castsi256_si128(sums);
  const __m128i high_sums = _mm256_extracti128_si256(sums, 1);
  out.sums[0] = _mm_cvtsi128_si32(low_sums) + _mm_extract_epi32(low_sums, 2) - 16 * 128;
  out.sums[1] = _mm_cvtsi128_si32(high_sums) + _mm_extract_epi32(high_sums, 2) - 16 * 128;
}

#else

// The greatest |x| of 32 values by its bits, so that NaN counts as the greatest.
inline std::uint32_t greatest_of(const float* values) {
  std::uint32_t greatest = 0;
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::uint32_t size = bits_of(values[i]) & 0x7FFFFFFFU;
    greatest = size > greatest ? size : greatest;
  }
  return greatest;
}

// The units of 32 values, each times `inverse`.
inline void quantise(const float* values, float inverse, Quantised& out) {
  std::uint8_t units[kGroup];
  std::int32_t low = 0;
  std::int32_t high = 0;
  for (std::size_t i = 0; i < kGroup; ++i) {
    units[i] = static_cast<std::uint8_t>(bits_of(values[i] * inverse + kRounder));
  }
  for (std::size_t i = 0; i < kGroup / 2; ++i) {
    low += static_cast<std::int8_t>(units[i]);
    high += static_cast<std::int8_t>(units[i + kGroup / 2]);
  }
  out.sums[0] = low;
  out.sums[1] = high;
  __builtin_memcpy(out.words, units, sizeof units);
}

#endif

// The sums of one group of G values, of which `quantised` holds 32 each. Halves of 16 are kQ8's only.
template <std::size_t kSpan>
inline void write_sums(const Layout& layout, Row row, std::size_t group, float scale,
                       const Quantised (&quantised)[kSpan]) {
  std::int32_t whole = 0;
  for (const Quantised& each : quantised) whole += each.sums[0] + each.sums[1];
  for (std::size_t i = 0; i < layout.num_sums; ++i) {
    const SumKind kind = layout.sums[i];
    const std::size_t pieces = kSpan * kGroup / kind.group;
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      const std::int32_t sum = pieces == 2 ? quantised[0].sums[piece] : whole;
      const std::uint32_t word = kind.zero != 0
                                     ? static_cast<std::uint32_t>(-static_cast<std::int32_t>(kind.zero) * sum)
                                     : bits_of(scale * static_cast<float>(sum));
      row.words[(layout.sums_at(i) + group * pieces + piece) * row.stride] = word;
    }
  }
}

// Groups of kSpan * 32 values, one scale each.
template <std::size_t kSpan>
inline void write_units(const Layout& layout, Row row, std::size_t first, const float* values, std::size_t count) {
  constexpr std::size_t kValues = kSpan * kGroup;
  for (std::size_t i = 0; i < count; i += kValues) {
    std::uint32_t greatest = greatest_of(values + i);
    for (std::size_t s = 1; s < kSpan; ++s) {
      const std::uint32_t other = greatest_of(values + i + s * kGroup);
      greatest = other > greatest ? other : greatest;
    }
    const Scale scale(greatest);
    Quantised quantised[kSpan];
    std::uint32_t* units = row.words + (first + i) / 4 * row.stride;
    for (std::size_t s = 0; s < kSpan; ++s) {
      quantise(values + i + s * kGroup, scale.inverse, quantised[s]);
      for (std::size_t w = 0; w < kGroup / 4; ++w, units += row.stride) *units = quantised[s].words[w];
    }
    const std::size_t group = (first + i) / kValues;
    row.words[(layout.scales_at() + group) * row.stride] = bits_of(scale.scale);
    write_sums(layout, row, group, scale.scale, quantised);
  }
}

// Writes values [first, first + count) of a row; both are multiples of layout.group() (pad with zeros).
inline void write_groups(const Layout& layout, Row row, std::size_t first, const float* values, std::size_t count) {
  switch (layout.format) {
    case Format::kF32:
      for (std::size_t i = 0; i < count; ++i) row.words[(first + i) * row.stride] = bits_of(values[i]);
      return;
    case Format::kBf16:
      for (std::size_t i = 0; i < count; i += 2) {
        const std::uint32_t word = bf16_of(values[i]) | (static_cast<std::uint32_t>(bf16_of(values[i + 1])) << 16);
        row.words[(first + i) / 2 * row.stride] = word;
      }
      return;
    case Format::kQ8:
      return write_units<1>(layout, row, first, values, count);
    case Format::kQ8Wide:
      return write_units<kWideGroup / kGroup>(layout, row, first, values, count);
  }
}

}  // namespace
}  // namespace trivium::operand
