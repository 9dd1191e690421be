// How a score and an output are summed, by what keys and values are made of. Included by ISA files after their lanes.
//
//   Unit    kStep consecutive elements of the left side (a query, or the shares of kStep tokens), broadcast
//   Right   one 64-byte vector of keys or values: kStep elements of each of 16 lanes
//   dot     acc + sum over the steps' elements, in ascending order, rounded after each multiply-add
//
// avx512vnni has a Bf16 of its own, whose dot is the processor's instruction (bf16_dot_inl.h); amx makes both products
// by instructions on tiles (amx_tiles_inl.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/kernel.h"
#include "ops/operand/operand_inl.h"

namespace trivium::attention {
namespace {

// Float32 keys and values.
struct F32 {
  static constexpr std::size_t kStep = 1;
  using Unit = float;
  using Right = Lanes;

  static Right load(const std::byte* vector) { return Lanes::load(reinterpret_cast<const float*>(vector)); }
  static Lanes dot(Lanes acc, const Right& right, const Unit* unit) { return fma(right, Lanes::broadcast(*unit), acc); }

  static void load_query(const void* query, std::size_t width, Unit* units) {
    for (std::size_t i = 0; i < width; ++i) units[i * kBundleRows] = static_cast<const float*>(query)[i];
  }
  // Shares of 32 tokens.
  static void store_shares(Unit* units, Lanes low, Lanes high) {
    low.store(units);
    high.store(units + kLanes);
  }
};

// Bf16 keys and values with float32 multiply-adds: the two halves of a word one after the other.
struct Bf16 {
  static constexpr std::size_t kStep = 2;
  struct Unit {
    float element[2];
  };
  struct Right {
    Lanes low, high;
  };

  static Right load(const std::byte* vector) { return {low_halves(vector), high_halves(vector)}; }
  static Lanes dot(Lanes acc, const Right& right, const Unit* unit) {
    acc = fma(right.low, Lanes::broadcast(unit->element[0]), acc);
    return fma(right.high, Lanes::broadcast(unit->element[1]), acc);
  }

  static void load_query(const void* query, std::size_t width, Unit* units) {
    const auto* elements = static_cast<const std::uint16_t*>(query);
    for (std::size_t i = 0; i < width; ++i) {
      units[i / 2 * kBundleRows].element[i % 2] = operand::float_of(std::uint32_t{elements[i]} << 16);
    }
  }
  static void store_shares(Unit* units, Lanes low, Lanes high) {
    float shares[2 * kLanes];
    low.store(shares);
    high.store(shares + kLanes);
    for (std::size_t i = 0; i < 2 * kLanes; ++i) {
      units[i / 2].element[i % 2] = operand::float_of(std::uint32_t{operand::bf16_of(shares[i])} << 16);
    }
  }
  // Sixteen pairs of signed bytes as pairs of bf16.
  static void widen(const std::byte* bytes, std::uint32_t* words) {
    std::uint16_t pairs[kLanes];
    __builtin_memcpy(pairs, bytes, sizeof pairs);
    for (std::size_t i = 0; i < kLanes; ++i) {
      const auto low = static_cast<float>(static_cast<std::int8_t>(pairs[i] & 0xFFU));
      const auto high = static_cast<float>(static_cast<std::int8_t>(pairs[i] >> 8));
      words[i] = (operand::bits_of(low) >> 16) | (operand::bits_of(high) & 0xFFFF0000U);
    }
  }
};

}  // namespace
}  // namespace trivium::attention
