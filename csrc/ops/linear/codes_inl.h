// How kernels read a block: quads out of bit planes, scales and minima out of records. Internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear/kernels.h"
#include "ops/linear/visit.h"

namespace trivium::linear {
namespace {

// Where vector `vec` of a column block lies behind its first vector, in lines of `bits` planes; see blocks.h.
template <class L>
constexpr std::size_t vector_offset(int vec, int bits) {
  const auto col = static_cast<std::size_t>(vec * L::kCols);
  return col / kHalf * kLine * static_cast<std::size_t>(bits) + col % kHalf * 4;
}

// Likewise for a column counted from the panel's first.
inline std::size_t column_offset(std::size_t col, int bits) {
  return col / kHalf * kLine * static_cast<std::size_t>(bits) + col % kHalf * 4;
}

// Shifted right by n bits, left for n < 0. A switch, since the instruction wants a constant: n is one after unrolling.
template <class L>
[[gnu::always_inline]] inline typename L::Bytes shift_by(typename L::Bytes bytes, int n) {
  switch (n) {
    case -4:
      return L::template shift<-4>(bytes);
    case -3:
      return L::template shift<-3>(bytes);
    case -2:
      return L::template shift<-2>(bytes);
    case -1:
      return L::template shift<-1>(bytes);
    case 1:
      return L::template shift<1>(bytes);
    case 2:
      return L::template shift<2>(bytes);
    case 3:
      return L::template shift<3>(bytes);
    case 4:
      return L::template shift<4>(bytes);
    case 5:
      return L::template shift<5>(bytes);
    case 6:
      return L::template shift<6>(bytes);
    default:
      return bytes;
  }
}

// The codes of quad q; `lines` is the vector's place in the group's first line.
template <class L, int kBits>
[[gnu::always_inline]] inline typename L::Bytes read_quad(const std::byte* lines, int q) {
  constexpr int kLow = low_plane(kBits);
  constexpr int kHigh = high_plane(kBits);
  typename L::Bytes codes = L::load(lines + low_line(kBits, q) * static_cast<int>(kLine));
  if constexpr (kLow < 8) codes = L::template keep<(1 << kLow) - 1>(shift_by<L>(codes, q * kLow % 8));
  if constexpr (kHigh > 0) {
    const typename L::Bytes high = L::load(lines + high_line(kBits, q) * static_cast<int>(kLine));
    codes = L::template merge<((1 << kHigh) - 1) << kLow>(codes, shift_by<L>(high, q * kHigh % 8 - kLow));
  }
  return codes;
}

// Scales and minima of a piece of a group, for the vector of columns that begins at `col`. A minimum is what is added,
// times the operand's sum.

template <class L, class Record>
inline typename L::Floats scale_of(const Record& record, const NoRecord&, std::size_t, std::size_t col) {
  return L::halves(record.scale + col);
}
template <class L>
inline typename L::Floats min_of(const MinRecord& record, const NoRecord&, std::size_t, std::size_t col) {
  return L::halves(record.min + col);
}
template <class L>
inline typename L::Floats min_of(const ZeroRecord& record, const NoRecord&, std::size_t, std::size_t col) {
  return L::negated(L::mul(L::halves(record.scale + col), L::bytes(record.zero + col)));
}

template <class L>
inline typename L::Floats six_bits(const SixBits& bits, std::size_t at) {
  return L::sixes(bits.low + at % 32, static_cast<int>(at / 32 * 4), bits.high + at % 16,
                  static_cast<int>(at / 16 * 2));
}

template <class L>
inline typename L::Floats scale_of(const MinRecord& record, const K45Subs& subs, std::size_t, std::size_t col) {
  return L::mul(L::halves(record.scale + col), six_bits<L>(subs.bits, col));
}
template <class L>
inline typename L::Floats min_of(const MinRecord& record, const K45Subs& subs, std::size_t, std::size_t col) {
  return L::negated(L::mul(L::halves(record.min + col), six_bits<L>(subs.bits, kPanel + col)));
}

template <class L>
inline typename L::Floats scale_of(const MinRecord& record, const K2Subs& subs, std::size_t piece, std::size_t col) {
  return L::mul(L::halves(record.scale + col), L::nibbles(subs.scales_mins[piece] + col, 0));
}
template <class L>
inline typename L::Floats min_of(const MinRecord& record, const K2Subs& subs, std::size_t piece, std::size_t col) {
  return L::negated(L::mul(L::halves(record.min + col), L::nibbles(subs.scales_mins[piece] + col, 4)));
}

template <class L>
inline typename L::Floats scale_of(const ScaleRecord& record, const K3Subs& subs, std::size_t piece, std::size_t col) {
  const typename L::Floats sub = six_bits<L>(subs.bits, piece * kPanel + col);
  return L::mul(L::halves(record.scale + col), L::add(sub, L::splat(-32.0F)));
}

template <class L>
inline typename L::Floats scale_of(const ScaleRecord& record, const K6Subs& subs, std::size_t piece, std::size_t col) {
  return L::mul(L::halves(record.scale + col), L::bytes(subs.scales[piece] + col));
}

// A format to the register tile: where codes and scales come from. `block` and `group` are where those begin.

template <class BlockOf, int kGroupOf, int kZeroOf, bool kHasMinOf, bool kIsIq4 = false>
struct Packed {
  using Block = BlockOf;
  static constexpr int kBits = Block::kBits;
  static constexpr int kDotBits = kIsIq4 ? 8 : kBits;  // of the codes once read
  static constexpr int kGroup = kGroupOf;
  static constexpr int kZero = kZeroOf;
  static constexpr bool kHasMin = kHasMinOf;
  static constexpr bool kHasColumnScale = std::is_empty_v<typename Block::Record>;
  static constexpr bool kIsUnpacked = false;
  static constexpr std::size_t kCodesAt = Block::kSubsBytes;  // in a group
  static constexpr std::size_t kGroupBytes = Block::kGroupBytes;

  static const std::byte* group(const std::byte* block, std::size_t g) { return Block::group(block, g); }
  template <class L>
  [[gnu::always_inline]] static typename L::Bytes quad(const std::byte* lines, int q) {
    if constexpr (kIsIq4) return L::iq4(read_quad<L, kBits>(lines, q));
    return read_quad<L, kBits>(lines, q);
  }
  template <class L>
  static typename L::Floats scale(const float*, const std::byte* block, const std::byte* group, std::size_t piece,
                                  std::size_t col) {
    return scale_of<L>(*reinterpret_cast<const typename Block::Record*>(block),
                       *reinterpret_cast<const typename Block::Subs*>(group), piece, col);
  }
  template <class L>
  static typename L::Floats min(const float*, const std::byte* block, const std::byte* group, std::size_t piece,
                                std::size_t col) {
    return min_of<L>(*reinterpret_cast<const typename Block::Record*>(block),
                     *reinterpret_cast<const typename Block::Subs*>(group), piece, col);
  }
};

template <int kGroupOf, int kZeroOf, bool kHasMinOf>
struct Unpacked {
  static constexpr int kBits = 8;
  static constexpr int kDotBits = 8;
  static constexpr int kGroup = kGroupOf;
  static constexpr int kZero = kZeroOf;
  static constexpr bool kHasMin = kHasMinOf;
  static constexpr bool kHasColumnScale = false;
  static constexpr bool kIsUnpacked = true;
  static constexpr std::size_t kCodesAt = 0;
  static constexpr std::size_t kGroupBytes = group_bytes(8);

  static const std::byte* group(const std::byte* block, std::size_t g) { return block + g * group_bytes(8); }
  template <class L>
  [[gnu::always_inline]] static typename L::Bytes quad(const std::byte* lines, int q) {
    return read_quad<L, 8>(lines, q);
  }
  // `scales` and `mins` are the group's own: [pieces][kPanel].
  template <class L>
  static typename L::Floats scale(const float* scales, const std::byte*, const std::byte*, std::size_t piece,
                                  std::size_t col) {
    return L::load(scales + piece * kPanel + col);
  }
  template <class L>
  static typename L::Floats min(const float* mins, const std::byte*, const std::byte*, std::size_t piece,
                                std::size_t col) {
    return L::load(mins + piece * kPanel + col);
  }
};

}  // namespace
}  // namespace trivium::linear
