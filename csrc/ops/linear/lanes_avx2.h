// The list of lanes.h for eight columns: AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/linear/blocks.h"
#include "ops/linear/kernels.h"

namespace trivium::linear {
namespace {

struct Lanes256 {
  static constexpr int kCols = 8;

  using Bytes = __m256i;
  static Bytes load(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static void store(Bytes bytes, std::byte* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes); }
  template <int n>
  static Bytes shift(Bytes bytes) {
    if constexpr (n < 0) {
      return _mm256_slli_epi16(bytes, -n);
    } else {
      return _mm256_srli_epi16(bytes, n);
    }
  }
  template <int mask>
  static Bytes keep(Bytes bytes) {
    return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(mask)));
  }
  template <int mask>
  static Bytes merge(Bytes low, Bytes high) {
    return _mm256_or_si256(low, keep<mask>(high));
  }
  static Bytes iq4(Bytes codes) {
    const __m128i table = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values)),
                                        _mm_set1_epi8(static_cast<char>(0x80)));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
  }

  using Ints = __m256i;
  static __m256i splat_units(const std::uint32_t* units) { return _mm256_set1_epi32(static_cast<int>(*units)); }

  using Floats = __m256;
  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static Floats splat(const float* from) { return _mm256_set1_ps(*from); }
  static Floats splat(float value) { return _mm256_set1_ps(value); }
  static void store(Floats value, float* to) { _mm256_storeu_ps(to, value); }
  static Floats of(Ints value) { return _mm256_cvtepi32_ps(value); }
  static Floats halves(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats bytes(const std::uint8_t* from) { return widened(eight(from)); }
  static Floats bytes(const std::int8_t* from) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight(from))); }
  static Floats nibbles(const std::uint8_t* from, int shift) { return widened(fields(from, shift, 15)); }
  static Floats sixes(const std::uint8_t* low, int low_shift, const std::uint8_t* high, int high_shift) {
    return widened(_mm_or_si128(fields(low, low_shift, 15), _mm_slli_epi16(fields(high, high_shift, 3), 4)));
  }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats negated(Floats a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0F)); }
  static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats magnitude(Floats a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), a); }
  static Floats select_less(Floats a, Floats b, Floats yes, Floats no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static Floats power_of_two(Floats shifted) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3F800000)));
  }

  using Pairs = __m256i;
  static Pairs load_pairs(const std::byte* from) { return load(from); }
  static Floats dot_pairs(Floats acc, Pairs weights, const std::uint32_t* units) {
    const __m256i pair = splat_units(units);
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
    acc = fma(floats(_mm256_slli_epi32(weights, 16)), floats(_mm256_slli_epi32(pair, 16)), acc);
    return fma(floats(_mm256_and_si256(weights, high)), floats(_mm256_and_si256(pair, high)), acc);
  }

  // Inlined by force: GCC takes a call that only fetches for one without effect, and leaves it out.
  template <Into into>
  [[gnu::always_inline]] static void fetch(const std::byte* line) {
    _mm_prefetch(reinterpret_cast<const char*>(line), into == Into::kL1 ? _MM_HINT_T0 : _MM_HINT_T1);
  }

 private:
  static Floats floats(__m256i bits) { return _mm256_castsi256_ps(bits); }
  static __m128i eight(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }
  static __m128i fields(const std::uint8_t* from, int shift, char mask) {
    return _mm_and_si128(_mm_srl_epi16(eight(from), _mm_cvtsi32_si128(shift)), _mm_set1_epi8(mask));
  }
  static Floats widened(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }
};

// Without VNNI: pairs of products are summed in 16 bits (vpmaddubsw), and 16-bit sums of up to `chain` quads are exact,
// since |unit| <= 127:
//
//   codes of up to 4 bits   2 * 15 * 127 * 8 = 30480    a whole group of 32
//   5 bits                  2 * 31 * 127 * 4 = 31496    half of one
//   6 bits                  2 * 63 * 127 * 2 = 32004    two quads
//   8 bits                  2 * 128 * 127    = 32512    one quad, as |w - 128| times the unit with w's sign
constexpr int chain_of(int bits) { return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; }

struct Lanes2 : Lanes256 {
  static constexpr bool kUnpacks = false;
  static constexpr std::size_t kNear = 0;
  static constexpr int kMaxRows = 4;
  static constexpr int kMaxFloatRows = 4;
  // Of 16 registers, 1 x 4 vectors take chain + sum + 4 acc + w (2) + x, 2 x 2 take 2 + 2 + 4, 4 x 1 take 4 + 4 + 4 and
  // no more than w and x; the constants come from memory then.
  static constexpr int int_vectors(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
  // 4 x 2: 8 acc + 2 w (4 of bfloat16) + 2 x.
  static constexpr int float_vectors(int rows) { return rows == 1 ? 4 : 2; }

  template <int kBits, int kQuadsOf>
  struct Dot {
    static constexpr int kChain = std::min(chain_of(kBits), kQuadsOf);
    struct Weights {
      __m256i codes;
      __m256i magnitudes;  // 8 bits only: codes - 128 and its magnitude
    };
    __m256i chain;
    __m256i sum;
    static Weights weights(__m256i codes) {
      if constexpr (kBits < 8) return {codes, codes};
      const __m256i centred = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
      return {centred, _mm256_abs_epi8(centred)};
    }
    void start() {}
    void start(const std::uint32_t*) {}
    void add(int q, Weights w, const std::uint32_t* units) {
      __m256i x = splat_units(units);
      if constexpr (kBits == 8) x = _mm256_sign_epi8(x, w.codes);
      const __m256i pairs = _mm256_maddubs_epi16(w.magnitudes, x);
      chain = q % kChain == 0 ? pairs : _mm256_add_epi16(chain, pairs);
      if (q % kChain == kChain - 1) flush(q < kChain);
    }
    // The starting value comes last: integers may be added in any order. 8 bits have centred codes and need none.
    __m256i finish(const std::uint32_t* init, bool has_init) const {
      return has_init && kBits < 8 ? _mm256_add_epi32(sum, splat_units(init)) : sum;
    }
    void flush(bool is_first) {
      const __m256i quads = _mm256_madd_epi16(chain, _mm256_set1_epi16(1));
      sum = is_first ? quads : _mm256_add_epi32(sum, quads);
    }
  };
};

}  // namespace
}  // namespace trivium::linear
