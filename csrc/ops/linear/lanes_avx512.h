// The list of lanes.h for sixteen columns: AVX-512 F, VL, BW and DQ.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/linear/blocks.h"
#include "ops/linear/kernels.h"

namespace trivium::linear {
namespace {

struct Lanes512 {
  static constexpr int kCols = 16;

  using Bytes = __m512i;
  static Bytes load(const std::byte* from) { return _mm512_loadu_si512(from); }
  static void store(Bytes bytes, std::byte* to) { _mm512_storeu_si512(to, bytes); }
  template <int n>
  static Bytes shift(Bytes bytes) {
    if constexpr (n < 0) {
      return _mm512_slli_epi16(bytes, -n);
    } else {
      return _mm512_srli_epi16(bytes, n);
    }
  }
  template <int mask>
  static Bytes keep(Bytes bytes) {
    return _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  template <int mask>
  static Bytes merge(Bytes low, Bytes high) {
    return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(static_cast<char>(mask)), 0xF8);  // a | (b & c)
  }
  static Bytes iq4(Bytes codes) {
    const __m128i table = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values)),
                                        _mm_set1_epi8(static_cast<char>(0x80)));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
  }

  using Ints = __m512i;
  static __m512i splat_units(const std::uint32_t* units) { return _mm512_set1_epi32(static_cast<int>(*units)); }

  using Floats = __m512;
  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static Floats splat(const float* from) { return _mm512_set1_ps(*from); }
  static Floats splat(float value) { return _mm512_set1_ps(value); }
  static void store(Floats value, float* to) { _mm512_storeu_ps(to, value); }
  static Floats of(Ints value) { return _mm512_cvtepi32_ps(value); }
  static Floats halves(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Floats bytes(const std::uint8_t* from) {
    return widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats bytes(const std::int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static Floats nibbles(const std::uint8_t* from, int shift) { return widened(fields(from, shift, 15)); }
  static Floats sixes(const std::uint8_t* low, int low_shift, const std::uint8_t* high, int high_shift) {
    return widened(_mm_or_si128(fields(low, low_shift, 15), _mm_slli_epi16(fields(high, high_shift, 3), 4)));
  }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats negated(Floats a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0F)); }
  static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats magnitude(Floats a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0F), a); }
  static Floats select_less(Floats a, Floats b, Floats yes, Floats no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static Floats power_of_two(Floats shifted) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3F800000)));
  }

  using Pairs = __m512i;
  static Pairs load_pairs(const std::byte* from) { return load(from); }

  // Inlined by force: GCC takes a call that only fetches for one without effect, and leaves it out.
  template <Into into>
  [[gnu::always_inline]] static void fetch(const std::byte* line) {
    _mm_prefetch(reinterpret_cast<const char*>(line), into == Into::kL1 ? _MM_HINT_T0 : _MM_HINT_T1);
  }

 private:
  static __m128i fields(const std::uint8_t* from, int shift, char mask) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm_and_si128(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(shift)), _mm_set1_epi8(mask));
  }
  static Floats widened(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)); }
};

// Without VNNI: as Lanes2, which explains the chains.
struct LanesPlain512 : Lanes512 {
  static constexpr bool kUnpacks = false;
  static constexpr std::size_t kNear = 0;
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxFloatRows = 8;
  // Of 32 registers, 6 x 2 vectors take 6 chain + 6 sum + 12 acc + w (2) + x = 27; ones and a mask fit beside.
  static constexpr int int_vectors(int) { return 2; }
  // 8 x 2: 16 acc + 2 w (4 of bfloat16) + 2 x.
  static constexpr int float_vectors(int) { return 2; }

  template <int kBits, int kQuadsOf>
  struct Dot {
    static constexpr int kChain = std::min(kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1, kQuadsOf);
    struct Weights {
      __m512i magnitudes;
      __mmask64 negative;  // 8 bits only
    };
    __m512i chain;
    __m512i sum;
    static Weights weights(__m512i codes) {
      if constexpr (kBits < 8) return {codes, 0};
      const __m512i centred = _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
      return {_mm512_abs_epi8(centred), _mm512_movepi8_mask(centred)};
    }
    void start() {}
    void start(const std::uint32_t*) {}
    void add(int q, Weights w, const std::uint32_t* units) {
      __m512i x = splat_units(units);
      if constexpr (kBits == 8) x = _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
      const __m512i pairs = _mm512_maddubs_epi16(w.magnitudes, x);
      chain = q % kChain == 0 ? pairs : _mm512_add_epi16(chain, pairs);
      if (q % kChain == kChain - 1) flush(q < kChain);
    }
    __m512i finish(const std::uint32_t* init, bool has_init) const {
      return has_init && kBits < 8 ? _mm512_add_epi32(sum, splat_units(init)) : sum;
    }
    void flush(bool is_first) {
      const __m512i quads = _mm512_madd_epi16(chain, _mm512_set1_epi16(1));
      sum = is_first ? quads : _mm512_add_epi32(sum, quads);
    }
  };

  static Floats dot_pairs(Floats acc, Pairs weights, const std::uint32_t* units) {
    const __m512i pair = splat_units(units);
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
    acc = fma(floats(_mm512_slli_epi32(weights, 16)), floats(_mm512_slli_epi32(pair, 16)), acc);
    return fma(floats(_mm512_and_si512(weights, high)), floats(_mm512_and_si512(pair, high)), acc);
  }

 private:
  static Floats floats(__m512i bits) { return _mm512_castsi512_ps(bits); }
};

}  // namespace
}  // namespace trivium::linear
