// What kernels ask of an instruction set, written for one column at a time. lanes_avx2.h, lanes_avxvnni.h,
// lanes_avx512.h and lanes_avx512vnni.h hold the same list, nothing more.
//
// Include from ISA files only. Everything has internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear/blocks.h"
#include "ops/linear/half.h"
#include "ops/linear/kernels.h"

namespace trivium::linear {
namespace {

struct One {
  static constexpr int kCols = 1;  // columns of a vector
  // Panels of codes below 8 bits may be unpacked first. All widths of codes must share one dot product then.
  static constexpr bool kUnpacks = false;
  // How far ahead, in bytes, few rows fetch codes of 8 bits; 0 where that gains nothing.
  static constexpr std::size_t kNear = 0;
  // The most rows of a register tile, and its columns in vectors.
  static constexpr int kMaxRows = 1;
  static constexpr int kMaxFloatRows = 1;
  static constexpr int int_vectors(int) { return 4; }
  static constexpr int float_vectors(int) { return 4; }

  // --- Bytes: a quad's part, four bytes per column.
  using Bytes = std::uint32_t;
  static Bytes load(const std::byte* from) {
    Bytes bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    return bytes;
  }
  static void store(Bytes bytes, std::byte* to) { __builtin_memcpy(to, &bytes, sizeof bytes); }
  // Shifted right by n bits (left for n < 0); bits may come in from neighbours, so mask afterwards.
  template <int n>
  static Bytes shift(Bytes bytes) {
    if constexpr (n < 0) {
      return bytes << -n;
    } else {
      return bytes >> n;
    }
  }
  template <int mask>
  static Bytes keep(Bytes bytes) {
    return bytes & (0x01010101U * mask);
  }
  // low | (high & mask)
  template <int mask>
  static Bytes merge(Bytes low, Bytes high) {
    return low | (high & (0x01010101U * mask));
  }
  // kIq4Values[code] + 128
  static Bytes iq4(Bytes codes) {
    Bytes bytes = 0;
    for (int i = 0; i < 32; i += 8) bytes |= static_cast<Bytes>(kIq4Values[codes >> i & 15U] + 128) << i;
    return bytes;
  }

  // --- Sums of products of four unsigned bytes with four signed ones, for codes below 2^kBits: kQuadsOf quads from
  // start to finish.
  using Ints = std::int32_t;
  template <int kBits, int kQuadsOf>
  struct Dot {
    using Weights = Bytes;
    Ints sum;
    static Weights weights(Bytes codes) { return codes; }
    void start() { sum = 0; }
    void start(const std::uint32_t* init) { sum = static_cast<Ints>(*init); }
    void add(int, Weights weights, const std::uint32_t* units) {
      for (int i = 0; i < 32; i += 8) {
        sum += static_cast<Ints>(weights >> i & 255U) * static_cast<std::int8_t>(*units >> i & 255U);
      }
    }
    // What start() was given comes again: a level without this instruction adds it here.
    Ints finish(const std::uint32_t*, bool) const { return sum; }
  };

  // --- Floats, one per column.
  using Floats = float;
  static Floats zero() { return 0.0F; }
  static Floats load(const float* from) { return *from; }
  static Floats splat(const float* from) { return *from; }
  static Floats splat(float value) { return value; }
  static void store(Floats value, float* to) { *to = value; }
  static Floats of(Ints value) { return static_cast<float>(value); }
  static Floats halves(const std::uint16_t* from) { return float_of_half(*from); }
  static Floats bytes(const std::uint8_t* from) { return static_cast<float>(*from); }
  static Floats bytes(const std::int8_t* from) { return static_cast<float>(*from); }
  static Floats nibbles(const std::uint8_t* from, int shift) { return static_cast<float>(*from >> shift & 15); }
  // Six bits: four of `low` from bit low_shift up, below two of `high`.
  static Floats sixes(const std::uint8_t* low, int low_shift, const std::uint8_t* high, int high_shift) {
    return static_cast<float>((*low >> low_shift & 15) | (*high >> high_shift & 3) << 4);
  }
  static Floats add(Floats a, Floats b) { return a + b; }
  static Floats mul(Floats a, Floats b) { return a * b; }
  static Floats div(Floats a, Floats b) { return a / b; }
  static Floats fma(Floats a, Floats b, Floats c) { return __builtin_fmaf(a, b, c); }
  static Floats negated(Floats a) { return -a; }
  // b where either is NaN.
  static Floats min(Floats a, Floats b) { return a < b ? a : b; }
  static Floats max(Floats a, Floats b) { return a > b ? a : b; }
  static Floats magnitude(Floats a) { return __builtin_fabsf(a); }
  // a < b ? yes : no
  static Floats select_less(Floats a, Floats b, Floats yes, Floats no) { return a < b ? yes : no; }
  // 2^n from 1.5 * 2^23 + n, -126 <= n <= 127.
  static Floats power_of_two(Floats shifted) {
    const auto bits = __builtin_bit_cast(std::uint32_t, shifted);
    return __builtin_bit_cast(float, (bits << 23) + 0x3F800000U);
  }

  // --- bfloat16: acc + w0 * x0 + w1 * x1 of two neighbouring k per column.
  using Pairs = std::uint32_t;
  static Pairs load_pairs(const std::byte* from) { return load(from); }
  static Floats dot_pairs(Floats acc, Pairs weights, const std::uint32_t* units) {
    acc = fma(__builtin_bit_cast(float, weights << 16), __builtin_bit_cast(float, *units << 16), acc);
    return fma(__builtin_bit_cast(float, weights & 0xFFFF0000U), __builtin_bit_cast(float, *units & 0xFFFF0000U), acc);
  }

  template <Into>
  static void fetch(const std::byte*) {}
};

}  // namespace
}  // namespace trivium::linear
