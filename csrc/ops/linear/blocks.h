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
// line q * b / 8, at bits q * b % 8 and up of every byte, so that one shift and one mask give a quad back:
//
//   4 bits   line 0: quads 0 (low) and 1 (high)   line 1: 2, 3   line 2: 4, 5   line 3: 6, 7
//   2 bits   line 0: quads 0, 1, 2, 3 from bit 0 up              line 1: 4, 5, 6, 7
//   1 bit    line 0: quads 0 to 7 from bit 0 up
//
// Codes of 3, 5 and 6 bits have a low plane and a high plane (2 + 1, 4 + 1, 4 + 2); a half of a group takes as many
// lines of 64 bytes as a code has bits:
//
//   group   [ half 0: low plane | high plane ][ half 1: low plane | high plane ]      128 * bits bytes
//   block   [ scale record ][ group 0 ][ group 1 ] …
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
constexpr std::size_t group_bytes(int bits) { return 2 * kLine * static_cast<std::size_t>(bits); }

// Scale records. All begin a block and hold one entry per column of the panel.

struct NoRecord {};  // i8_c: its scales are the panel's header, float [32]

struct ScaleRecord {            // i8_gN, i4, i5, iq4: value = (c - zero) * scale
  std::uint16_t scale[kPanel];  // float16
};
static_assert(sizeof(ScaleRecord) == 64);

struct MinRecord {  // i4m, i5m: value = c * scale + min
  std::uint16_t scale[kPanel];
  std::uint16_t min[kPanel];
};
static_assert(sizeof(MinRecord) == 128);

struct ZeroRecord {  // i4z: value = (c - zero) * scale
  std::uint16_t scale[kPanel];
  std::uint8_t zero[kPanel];
};
static_assert(sizeof(ZeroRecord) == 96);

// Eight rows of 64 six-bit numbers, in planes of 4 and 2 bits like the codes:
//
//   low [4][64]    row r in line r / 2, low nibble for even r, high for odd
//   high [2][64]   row r in line r / 4, at bits 2 * (r % 4) and up
struct SixBits {
  std::uint8_t low[4][64];
  std::uint8_t high[2][64];
};
static_assert(sizeof(SixBits) == 384);

struct K45Record {  // q4_k, q5_k: value = c * (scale * s) - (min * m); 8 groups of 32
  std::uint16_t scale[kPanel];
  std::uint16_t min[kPanel];
  SixBits subs;  // row g: s of the 32 columns in group g, then their m
};
static_assert(sizeof(K45Record) == 512);

struct K2Record {  // q2_k: value = c * (scale * s) - (min * m); 16 groups of 16
  std::uint16_t scale[kPanel];
  std::uint16_t min[kPanel];
  std::uint8_t subs[16][kPanel];  // s in the low nibble, m in the high
};
static_assert(sizeof(K2Record) == 640);

struct K3Record {  // q3_k: value = (c - 4) * (scale * (s - 32)); 16 groups of 16
  std::uint16_t scale[kPanel];
  SixBits subs;  // row r: s of the 32 columns in group 2r, then in group 2r + 1
};
static_assert(sizeof(K3Record) == 448);

struct K6Record {  // q6_k: value = (c - 32) * (scale * s); 16 groups of 16
  std::uint16_t scale[kPanel];
  std::int8_t subs[16][kPanel];
};
static_assert(sizeof(K6Record) == 576);

// The values that the codes of iq4 stand for.
inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace trivium::linear
