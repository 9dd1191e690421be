#include "ops/linear/pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/linear/visit.h"

namespace trivium::linear {
namespace {

constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// One panel's part of the codes: rows [first, first + count), which are the panel's columns.
struct Slice {
  const Format& format;
  const Codes& codes;
  std::size_t first;
  std::size_t count;

  // Entry `at` of column n in an array with `per_row` entries per row; 0 past the end.
  template <class T>
  T entry(const T* array, std::size_t n, std::size_t at, std::size_t per_row) const {
    return n < count && at < per_row ? array[(first + n) * per_row + at] : T{0};
  }
};

// Bits that were offered but do not fit, over all panels.
struct Overflow {
  unsigned codes = 0;
  unsigned subs = 0;
};

// ------------------------------------------------------------------------------------------------------- records

void fill(NoRecord&, const Slice&, std::size_t, Overflow&) {}

void fill(ScaleRecord& record, const Slice& slice, std::size_t block, Overflow&) {
  const std::size_t per_row = ceil_div(slice.codes.depth, slice.format.block);
  const auto* scales = static_cast<const std::uint16_t*>(slice.codes.scales);
  for (std::size_t n = 0; n < kPanel; ++n) record.scale[n] = slice.entry(scales, n, block, per_row);
}

void fill(MinRecord& record, const Slice& slice, std::size_t block, Overflow&) {
  const std::size_t per_row = ceil_div(slice.codes.depth, slice.format.block);
  const auto* scales = static_cast<const std::uint16_t*>(slice.codes.scales);
  for (std::size_t n = 0; n < kPanel; ++n) {
    record.scale[n] = slice.entry(scales, n, block, per_row);
    record.min[n] = slice.entry(slice.codes.mins, n, block, per_row);
  }
}

void fill(ZeroRecord& record, const Slice& slice, std::size_t block, Overflow&) {
  const std::size_t per_row = ceil_div(slice.codes.depth, slice.format.block);
  const auto* scales = static_cast<const std::uint16_t*>(slice.codes.scales);
  for (std::size_t n = 0; n < kPanel; ++n) {
    record.scale[n] = slice.entry(scales, n, block, per_row);
    record.zero[n] = slice.entry(slice.codes.zeros, n, block, per_row);
  }
}

void put(SixBits& bits, std::size_t row, std::size_t at, unsigned value, Overflow& overflow) {
  overflow.subs |= value & ~63U;
  bits.low[row / 2][at] = static_cast<std::uint8_t>(bits.low[row / 2][at] | (value & 15U) << (4 * (row % 2)));
  bits.high[row / 4][at] = static_cast<std::uint8_t>(bits.high[row / 4][at] | (value >> 4 & 3U) << (2 * (row % 4)));
}

void fill(K45Record& record, const Slice& slice, std::size_t block, Overflow& overflow) {
  const std::size_t blocks = ceil_div(slice.codes.depth, slice.format.block);
  const std::size_t groups = ceil_div(slice.codes.depth, std::size_t{32});
  record.subs = {};
  for (std::size_t n = 0; n < kPanel; ++n) {
    record.scale[n] = slice.entry(slice.codes.supers, n, block, blocks);
    record.min[n] = slice.entry(slice.codes.super_mins, n, block, blocks);
    for (std::size_t g = 0; g < 8; ++g) {
      put(record.subs, g, n, slice.entry(slice.codes.subs, n, block * 8 + g, groups), overflow);
      put(record.subs, g, kPanel + n, slice.entry(slice.codes.sub_mins, n, block * 8 + g, groups), overflow);
    }
  }
}

void fill(K2Record& record, const Slice& slice, std::size_t block, Overflow& overflow) {
  const std::size_t blocks = ceil_div(slice.codes.depth, slice.format.block);
  const std::size_t groups = ceil_div(slice.codes.depth, std::size_t{16});
  for (std::size_t n = 0; n < kPanel; ++n) {
    record.scale[n] = slice.entry(slice.codes.supers, n, block, blocks);
    record.min[n] = slice.entry(slice.codes.super_mins, n, block, blocks);
    for (std::size_t g = 0; g < 16; ++g) {
      const unsigned scale = slice.entry(slice.codes.subs, n, block * 16 + g, groups);
      const unsigned min = slice.entry(slice.codes.sub_mins, n, block * 16 + g, groups);
      overflow.subs |= (scale | min) & ~15U;
      record.subs[g][n] = static_cast<std::uint8_t>((scale & 15U) | (min & 15U) << 4);
    }
  }
}

void fill(K3Record& record, const Slice& slice, std::size_t block, Overflow& overflow) {
  const std::size_t blocks = ceil_div(slice.codes.depth, slice.format.block);
  const std::size_t groups = ceil_div(slice.codes.depth, std::size_t{16});
  record.subs = {};
  for (std::size_t n = 0; n < kPanel; ++n) {
    record.scale[n] = slice.entry(slice.codes.supers, n, block, blocks);
    for (std::size_t g = 0; g < 16; ++g) {
      const auto sub = static_cast<std::int8_t>(slice.entry(slice.codes.subs, n, block * 16 + g, groups));
      put(record.subs, g / 2, g % 2 * kPanel + n, static_cast<unsigned>(sub + 32), overflow);
    }
  }
}

void fill(K6Record& record, const Slice& slice, std::size_t block, Overflow&) {
  const std::size_t blocks = ceil_div(slice.codes.depth, slice.format.block);
  const std::size_t groups = ceil_div(slice.codes.depth, std::size_t{16});
  for (std::size_t n = 0; n < kPanel; ++n) {
    record.scale[n] = slice.entry(slice.codes.supers, n, block, blocks);
    for (std::size_t g = 0; g < 16; ++g) {
      record.subs[g][n] = static_cast<std::int8_t>(slice.entry(slice.codes.subs, n, block * 16 + g, groups));
    }
  }
}

// --------------------------------------------------------------------------------------------------------- codes

using Words = std::uint64_t[kLine / 8];

// The quads of one half of a group, from `depth` codes of each of up to 16 rows.
void gather(const std::uint8_t* rows, std::size_t row_stride, std::size_t count, std::size_t depth,
            std::uint8_t (*quads)[kLine]) {
  if (count < kHalf || depth < operand::kGroup) std::memset(quads, 0, kQuads * kLine);
  for (std::size_t n = 0; n < count; ++n) {
    const std::uint8_t* row = rows + n * row_stride;
    if (depth >= operand::kGroup) {
      for (std::size_t q = 0; q < kQuads; ++q) std::memcpy(quads[q] + 4 * n, row + 4 * q, 4);
    } else {
      for (std::size_t k = 0; k < depth; ++k) quads[k / 4][4 * n + k % 4] = row[k];
    }
  }
}

// Bits [from, from + width) of every code go into a plane of that width. Codes fit their bytes, so words of eight codes
// can be shifted at once.
void write_plane(const std::uint8_t (*quads)[kLine], int from, int width, std::byte* lines) {
  const std::uint64_t mask = 0x0101010101010101U * ((1U << width) - 1);
  std::memset(lines, 0, kLine * static_cast<std::size_t>(width));
  for (int q = 0; q < static_cast<int>(kQuads); ++q) {
    Words quad;
    Words line;
    std::byte* at = lines + q * width / 8 * static_cast<int>(kLine);
    std::memcpy(quad, quads[q], kLine);
    std::memcpy(line, at, kLine);
    for (std::size_t i = 0; i < kLine / 8; ++i) line[i] |= (quad[i] >> from & mask) << (q * width % 8);
    std::memcpy(at, line, kLine);
  }
}

unsigned bits_above(const std::uint8_t (*quads)[kLine], int bits) {
  unsigned seen = 0;
  for (std::size_t q = 0; q < kQuads; ++q) {
    for (std::size_t i = 0; i < kLine; ++i) seen |= quads[q][i];
  }
  return seen >> bits;
}

void write_group(const Slice& slice, int bits, std::size_t k, std::byte* out, Overflow& overflow) {
  const std::size_t depth = slice.codes.depth;
  const auto* codes = static_cast<const std::uint8_t*>(slice.codes.codes);
  for (std::size_t half = 0; half < 2; ++half) {
    const std::size_t first = std::min(half * kHalf, slice.count);
    const std::size_t count = std::min(slice.count - first, kHalf);
    const std::size_t left = k < depth ? std::min(depth - k, operand::kGroup) : 0;
    std::uint8_t quads[kQuads][kLine];
    gather(left == 0 ? nullptr : codes + (slice.first + first) * depth + k, depth, left == 0 ? 0 : count, left, quads);
    overflow.codes |= bits_above(quads, bits);
    std::byte* lines = out + half * kLine * static_cast<std::size_t>(bits);
    write_plane(quads, 0, low_plane(bits), lines);
    if (high_plane(bits) > 0) write_plane(quads, low_plane(bits), high_plane(bits), lines + kLine * low_plane(bits));
  }
}

template <class Block>
void pack_ints(const Slice& slice, std::byte* panel, Overflow& overflow) {
  const Format& format = slice.format;
  if (format.header_bytes > 0) {
    float scales[kPanel];
    for (std::size_t n = 0; n < kPanel; ++n) {
      scales[n] = slice.entry(static_cast<const float*>(slice.codes.scales), n, 0, 1);
    }
    std::memcpy(panel, scales, sizeof scales);
  }
  std::byte* out = panel + format.header_bytes;
  for (std::size_t b = 0; b < padded_depth(format, slice.codes.depth) / format.block; ++b) {
    typename Block::Record record;
    fill(record, slice, b, overflow);
    std::memcpy(out, &record, Block::kRecordBytes);
    out += Block::kRecordBytes;
    for (std::size_t k = b * format.block; k < (b + 1) * format.block; k += operand::kGroup) {
      write_group(slice, Block::kBits, k, out, overflow);
      out += group_bytes(Block::kBits);
    }
  }
}

// f32: [k][32 columns]. bf16: [k / 2][32 columns][2]. Padding is zero.
template <class T>
void pack_floats(const Slice& slice, std::byte* panel, Overflow&) {
  constexpr std::size_t kUnit = 4 / sizeof(T);  // values of k per 4-byte unit
  const std::size_t depth = slice.codes.depth;
  const auto* rows = static_cast<const T*>(slice.codes.codes) + slice.first * depth;
  for (std::size_t k = 0; k < padded_depth(slice.format, depth); ++k) {
    for (std::size_t n = 0; n < kPanel; ++n) {
      const T value = n < slice.count && k < depth ? rows[n * depth + k] : T{0};
      std::memcpy(panel + ((k / kUnit * kPanel + n) * kUnit + k % kUnit) * sizeof(T), &value, sizeof value);
    }
  }
}

using PackFn = void (*)(const Slice&, std::byte*, Overflow&);

PackFn packer(FormatId id) {
  if (id == FormatId::kF32) return pack_floats<float>;
  if (id == FormatId::kBf16) return pack_floats<std::uint16_t>;
  return visit_ints(id, [](auto block) -> PackFn { return pack_ints<decltype(block)>; });
}

}  // namespace

std::size_t record_group(const Format& format) {
  if (format.header_bytes > 0) return 0;
  return format.block == 256 ? format.group : format.group == 0 ? 0 : format.block;
}

void pack(const Format& format, const Codes& codes, std::byte* panels) {
  const std::size_t bytes = panel_bytes(format, codes.depth);
  const PackFn pack_panel = packer(format.id);
  std::atomic<unsigned> bad_codes{0};
  std::atomic<unsigned> bad_subs{0};
  parallel_for(num_panels(codes.num_cols), 1, [&](std::size_t begin, std::size_t end) {
    Overflow overflow;
    for (std::size_t p = begin; p < end; ++p) {
      const Slice slice{format, codes, p * kPanel, std::min(kPanel, codes.num_cols - p * kPanel)};
      pack_panel(slice, panels + p * bytes, overflow);
    }
    bad_codes.fetch_or(overflow.codes, std::memory_order_relaxed);
    bad_subs.fetch_or(overflow.subs, std::memory_order_relaxed);
  });
  TRIV_CHECK(bad_codes.load() == 0, "pack: a code does not fit the bits of format %s", format.name);
  TRIV_CHECK(bad_subs.load() == 0, "pack: a sub-scale does not fit the bits of format %s", format.name);
}

}  // namespace trivium::linear
