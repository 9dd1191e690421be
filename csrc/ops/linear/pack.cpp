#include "ops/linear/pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/linear/visit.h"

namespace trivium::linear {
namespace {

constexpr std::size_t kSuper = 256;  // values of k per block of the K-quants

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

// Super-scales stand where other formats' scales do.
const std::uint16_t* scales_of(const Slice& slice) {
  return slice.codes.supers != nullptr && slice.format.block == kSuper
             ? slice.codes.supers
             : static_cast<const std::uint16_t*>(slice.codes.scales);
}

void fill(NoRecord&, const Slice&, std::size_t) {}

void fill(ScaleRecord& record, const Slice& slice, std::size_t block) {
  const std::size_t per_row = ceil_div(slice.codes.depth, slice.format.block);
  for (std::size_t n = 0; n < kPanel; ++n) record.scale[n] = slice.entry(scales_of(slice), n, block, per_row);
}

void fill(MinRecord& record, const Slice& slice, std::size_t block) {
  const std::size_t per_row = ceil_div(slice.codes.depth, slice.format.block);
  const std::uint16_t* mins = slice.format.block == kSuper ? slice.codes.super_mins : slice.codes.mins;
  for (std::size_t n = 0; n < kPanel; ++n) {
    record.scale[n] = slice.entry(scales_of(slice), n, block, per_row);
    record.min[n] = slice.entry(mins, n, block, per_row);
  }
}

void fill(ZeroRecord& record, const Slice& slice, std::size_t block) {
  const std::size_t per_row = ceil_div(slice.codes.depth, slice.format.block);
  for (std::size_t n = 0; n < kPanel; ++n) {
    record.scale[n] = slice.entry(scales_of(slice), n, block, per_row);
    record.zero[n] = slice.entry(slice.codes.zeros, n, block, per_row);
  }
}

// --------------------------------------------------------------------------------------------------- sub-scales

void put(SixBits& bits, std::size_t at, unsigned value, Overflow& overflow) {
  overflow.subs |= value & ~63U;
  bits.low[at % 32] = static_cast<std::uint8_t>(bits.low[at % 32] | (value & 15U) << (4 * (at / 32)));
  bits.high[at % 16] = static_cast<std::uint8_t>(bits.high[at % 16] | (value >> 4 & 3U) << (2 * (at / 16)));
}

// The sub-scale or sub-minimum of piece `piece` of the group that begins at k.
unsigned sub_at(const Slice& slice, const std::uint8_t* subs, std::size_t n, std::size_t k, std::size_t piece) {
  const std::size_t per_row = ceil_div(slice.codes.depth, slice.format.group);
  return slice.entry(subs, n, k / slice.format.group + piece, per_row);
}

void fill(NoRecord&, const Slice&, std::size_t, Overflow&) {}

void fill(K45Subs& subs, const Slice& slice, std::size_t k, Overflow& overflow) {
  for (std::size_t n = 0; n < kPanel; ++n) {
    put(subs.bits, n, sub_at(slice, slice.codes.subs, n, k, 0), overflow);
    put(subs.bits, kPanel + n, sub_at(slice, slice.codes.sub_mins, n, k, 0), overflow);
  }
}

void fill(K3Subs& subs, const Slice& slice, std::size_t k, Overflow& overflow) {
  for (std::size_t i = 0; i < 2 * kPanel; ++i) {
    const auto sub = static_cast<std::int8_t>(sub_at(slice, slice.codes.subs, i % kPanel, k, i / kPanel));
    put(subs.bits, i, static_cast<unsigned>(sub + 32), overflow);
  }
}

void fill(K2Subs& subs, const Slice& slice, std::size_t k, Overflow& overflow) {
  for (std::size_t i = 0; i < 2 * kPanel; ++i) {
    const unsigned scale = sub_at(slice, slice.codes.subs, i % kPanel, k, i / kPanel);
    const unsigned min = sub_at(slice, slice.codes.sub_mins, i % kPanel, k, i / kPanel);
    overflow.subs |= (scale | min) & ~15U;
    subs.scales_mins[i / kPanel][i % kPanel] = static_cast<std::uint8_t>((scale & 15U) | (min & 15U) << 4);
  }
}

void fill(K6Subs& subs, const Slice& slice, std::size_t k, Overflow&) {
  for (std::size_t i = 0; i < 2 * kPanel; ++i) {
    const unsigned sub = sub_at(slice, slice.codes.subs, i % kPanel, k, i / kPanel);
    subs.scales[i / kPanel][i % kPanel] = static_cast<std::int8_t>(sub);
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

// Adds bits [from, from + width) of a quad's codes to a line, at bit `to`. Codes fit their bytes, so words of eight can
// be shifted at once.
void add_bits(const std::uint8_t* quad, int from, int width, int to, std::byte* line) {
  const std::uint64_t mask = 0x0101010101010101U * ((1U << width) - 1);
  Words codes;
  Words bits;
  std::memcpy(codes, quad, kLine);
  std::memcpy(bits, line, kLine);
  for (std::size_t i = 0; i < kLine / 8; ++i) bits[i] |= (codes[i] >> from & mask) << to;
  std::memcpy(line, bits, kLine);
}

void write_planes(const std::uint8_t (*quads)[kLine], int bits, std::byte* lines) {
  const int low = low_plane(bits);
  const int high = high_plane(bits);
  constexpr int kBytes = static_cast<int>(kLine);
  std::memset(lines, 0, kLine * static_cast<std::size_t>(bits));
  for (int q = 0; q < static_cast<int>(kQuads); ++q) {
    add_bits(quads[q], 0, low, q * low % 8, lines + low_line(bits, q) * kBytes);
    if (high > 0) add_bits(quads[q], low, high, q * high % 8, lines + high_line(bits, q) * kBytes);
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
    write_planes(quads, bits, out + half * kLine * static_cast<std::size_t>(bits));
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
    typename Block::Record record{};
    fill(record, slice, b);
    std::memcpy(out, &record, Block::kRecordBytes);
    out += Block::kRecordBytes;
    for (std::size_t k = b * format.block; k < (b + 1) * format.block; k += operand::kGroup) {
      typename Block::Subs subs{};
      fill(subs, slice, k, overflow);
      std::memcpy(out, &subs, Block::kSubsBytes);
      write_group(slice, Block::kBits, k, out + Block::kSubsBytes, overflow);
      out += Block::kGroupBytes;
    }
  }
}

// f32, f16: [k][32 columns]. bf16: [k / 2][32 columns][2]. Padding is zero.
template <class T, std::size_t kUnit>
void pack_floats(const Slice& slice, std::byte* panel, Overflow&) {
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
  if (id == FormatId::kF32) return pack_floats<float, 1>;
  if (id == FormatId::kBf16) return pack_floats<std::uint16_t, 2>;
  if (id == FormatId::kF16) return pack_floats<std::uint16_t, 1>;
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
