// Storage formats of packed weights: bits, groups, scales, and where each lies in a panel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/operand/operand.h"

namespace trivium::linear {

inline constexpr std::size_t kPanel = 32;

// One line per format; the table is in format.cpp, the drawings of codes and blocks in blocks.h.
//
//   name        bits of the codes   scale record per group                          value of code c
//   f32         -                   -                                               c
//   bf16        -                   -                                               c
//   f16         -                   -                                               c
//   i8_c        8                   f32 per column                                  (c - 128) * d
//   i8_g32 …    8                   f16 (g32, g64, g128)                            (c - 128) * d
//   i4_g32      4                   f16                       (Q4_0)                (c - 8) * d
//   i4m_g32     4                   f16, f16                  (Q4_1)                c * d + m
//   i4z_g32 …   4                   f16, u8 zero (AWQ, GPTQ; g32, g64, g128)        (c - z) * d
//   i5_g32      5                   f16                       (Q5_0)                (c - 16) * d
//   i5m_g32     5                   f16, f16                  (Q5_1)                c * d + m
//   q2_k        2                   f16 x u4, f16 x u4, g16   (Q2_K)                c * (d * s) - (dm * m)
//   q3_k        3                   f16 x i6, g16             (Q3_K)                (c - 4) * (d * s)
//   q4_k        4                   f16 x u6, f16 x u6, g32   (Q4_K)                c * (d * s) - (dm * m)
//   q5_k        5                   f16 x u6, f16 x u6, g32   (Q5_K)                c * (d * s) - (dm * m)
//   q6_k        6                   f16 x i8, g16             (Q6_K)                (c - 32) * (d * s)
//   iq4         4                   f16, codebook             (IQ4_NL)              table[c] * d
enum class FormatId : std::uint8_t {
  kF32,
  kBf16,
  kF16,
  kI8Channel,
  kI8G32,
  kI8G64,
  kI8G128,
  kI4,
  kI4Min,
  kI4ZeroG32,
  kI4ZeroG64,
  kI4ZeroG128,
  kI5,
  kI5Min,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4,
};

// Formats of numbers rather than codes.
constexpr bool is_number(FormatId id) { return id <= FormatId::kF16; }

struct Format {
  FormatId id;
  const char* name;
  operand::Format operand;   // what the left side must be
  std::size_t block;         // values of k per block: a panel is its header and K / block blocks
  std::size_t block_bytes;   // of kPanel columns
  std::size_t header_bytes;  // before a panel's first block: the scales of i8_c
  std::size_t group;         // values of k per scale as the kernels see it (16 or 32); 0 for numbers
  std::size_t span;          // values of k that share a scale and a minimum: group, or more of it
  std::uint8_t zero;         // offset of the codes, as operand::SumKind means it; 0 where there is none or a minimum
  bool has_min;
};

std::span<const Format> formats();

// Whether a product takes an operand: of the format that the weights' is, or of wide groups where a scale spans them.
inline bool fits(const Format& format, operand::Format left) {
  return left == format.operand || (left == operand::Format::kQ8Wide && format.span >= operand::kWideGroup);
}

// Throws std::invalid_argument that lists the names.
const Format& format_named(const char* name);

// K padded to whole blocks; an operand of the product has this depth. Parts of one product must agree on it.
inline std::size_t padded_depth(const Format& format, std::size_t depth) {
  return (depth + format.block - 1) / format.block * format.block;
}

inline std::size_t num_panels(std::size_t num_cols) { return (num_cols + kPanel - 1) / kPanel; }

// Bytes of one panel over depth K (padded to whole blocks): a multiple of 16.
inline std::size_t panel_bytes(const Format& format, std::size_t depth) {
  return format.header_bytes + padded_depth(format, depth) / format.block * format.block_bytes;
}

}  // namespace trivium::linear
