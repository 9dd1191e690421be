// How the blocks of packed formats lie in memory: codes in bit planes, and the scale record before them.
//
// A panel holds 32 columns, which are two halves of 16. Kernels read codes as *quads*: for one half, 16 columns times
// four neighbouring k, one byte per code, 64 bytes in all. A group is 32 values of k, so it has 8 quads per half:
//
//   quad q of a half:   byte 4 * n + i  is column n, k = 4 * q + i          (n < 16, i < 4)
//
//        k = 4q .. 4q+3
//   n=0  [b0  b1  b2  b3 ]
//   n=1  [b4  b5  b6  b7 ]    one vector of 64 bytes; a dot product of four bytes gives one sum per column
//   …
//   n=15 [b60 b61 b62 b63]
//
// Codes below 8 bits keep this order in *planes* of 4, 2 or 1 bits. A plane of b bits stores the b bits of quad q in
// its line q * b / 8, at bits q * b % 8 and up of every byte, so that one shift and one mask give a quad back:
//
//   4 bits   line 0: quads 0 (low) and 1 (high)   line 1: 2, 3   line 2: 4, 5   line 3: 6, 7
//   2 bits   line 0: quads 0, 1, 2, 3 from bit 0 up              line 1: 4, 5, 6, 7
//   1 bit    line 0: quads 0 to 7 from bit 0 up
//
// Codes of 3, 5 and 6 bits have a low plane (L) and a high plane (H); a line of H comes just before the lines of L that
// it completes, so that a group is read from its first line to its last, which is what prefetchers follow. A half of a
// group takes as many lines of 64 bytes as a code has bits:
//
//   2 bits   L0 L1                  3 bits   H0 L0 L1               4 bits   L0 L1 L2 L3
//   5 bits   H0 L0 L1 L2 L3         6 bits   H0 L0 L1 H1 L2 L3      8 bits   quads 0 to 7
//
//   group   [ sub-scales ][ half 0 ][ half 1 ]            128 * bits bytes of codes; sub-scales in K-quants only
//   block   [ scales ][ group 0 ][ group 1 ] …
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear/format.h"
#include "ops/operand/operand.h"

namespace trivium::linear {

inline constexpr std::size_t kHalf = 16;  // columns of a half
inline constexpr std::size_t kLine = 64;  // bytes of a quad
inline constexpr std::size_t kQuads = operand::kGroup / 4;

constexpr int low_plane(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : 2; }
constexpr int high_plane(int bits) { return bits - low_plane(bits); }

// The line of a half's group that holds the low or high plane's bits of quad q.
constexpr int low_line(int bits, int q) {
  const int line = q * low_plane(bits) / 8;
  return bits == 3 || bits == 5 ? line + 1 : bits == 6 ? line + line / 2 + 1 : line;
}
constexpr int high_line(int bits, int q) { return bits == 6 ? 3 * (q / 4) : 0; }

constexpr std::size_t group_bytes(int bits) { return 2 * kLine * static_cast<std::size_t>(bits); }

// What stands before codes: one entry per column of the panel, or one for each piece of a group.

struct NoRecord {};

// Of blocks. i8_c has none: its scales are the panel's header, float [32].

struct ScaleRecord {            // i8_gN, i4, i5, iq4: value = (c - zero) * scale; q3_k, q6_k: see below
  std::uint16_t scale[kPanel];  // float16
};
static_assert(sizeof(ScaleRecord) == 64);

struct MinRecord {  // i4m, i5m: value = c * scale + min; q2_k, q4_k, q5_k: see below
  std::uint16_t scale[kPanel];
  std::uint16_t min[kPanel];
};
static_assert(sizeof(MinRecord) == 128);

struct ZeroRecord {  // i4z: value = (c - zero) * scale
  std::uint16_t scale[kPanel];
  std::uint8_t zero[kPanel];
};
static_assert(sizeof(ZeroRecord) == 96);

// Of groups of 32 in K-quants.

// 64 numbers of six bits: v[0] to v[63], 16 to a vector.
//
//   low    byte i:   v[i] & 15 at bit 0, v[32 + i] & 15 at bit 4                           i < 32
//   high   byte i:   v[i] >> 4, v[16 + i] >> 4, v[32 + i] >> 4, v[48 + i] >> 4, from bit 0 up    i < 16
struct SixBits {
  std::uint8_t low[32];
  std::uint8_t high[16];
};
static_assert(sizeof(SixBits) == 48);

struct K45Subs {  // q4_k, q5_k: value = c * (scale * s) - (min * m)
  SixBits bits;   // s of the 32 columns, then their m
};

struct K3Subs {  // q3_k: value = (c - 4) * (scale * (s - 32)); pieces of 16
  SixBits bits;  // s of the 32 columns in piece 0, then in piece 1
};

struct K2Subs {                         // q2_k: value = c * (scale * s) - (min * m); pieces of 16
  std::uint8_t scales_mins[2][kPanel];  // s in the low nibble, m in the high
};
static_assert(sizeof(K2Subs) == 64);

struct K6Subs {  // q6_k: value = (c - 32) * (scale * s); pieces of 16
  std::int8_t scales[2][kPanel];
};
static_assert(sizeof(K6Subs) == 64);

// The values that the codes of iq4 stand for.
[[maybe_unused]] static constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                                1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace trivium::linear
