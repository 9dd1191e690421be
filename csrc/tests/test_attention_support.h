// Stores, page tables and steps for tests of attention and of what feeds it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/pages.h"
#include "tests/draw.h"

namespace trivium::attention::tests {

using trivium::tests::normal;

// A store with its memory, aligned to cache lines.
struct OwnedStore {
  std::vector<std::byte> memory;
  Store store;

  OwnedStore(KVType type, std::size_t layers, std::size_t pages, std::size_t heads, std::size_t width)
      : store{type, layers, pages, heads, width, nullptr} {
    memory.resize(store.num_bytes() + 64);
    const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    store.data = memory.data() + (64 - at % 64) % 64;
  }
  OwnedStore(const OwnedStore&) = delete;
  OwnedStore& operator=(const OwnedStore&) = delete;

  // The greatest finite numbers in every byte, positive and negative: what a slot may hold that holds no token.
  void fill_with_garbage() {
    const std::size_t count = store.num_bytes() / 2;
    auto* units = reinterpret_cast<std::uint16_t*>(store.data);
    for (std::size_t i = 0; i < count; ++i) units[i] = i % 3 == 0 ? 0xFF7F : 0x7F7F;
  }
};

// One request of a step: tokens [first, first + count) run now, in these pages.
struct Request {
  std::size_t first;
  std::size_t count;
  std::vector<std::int32_t> pages;
};

// The arrays of a step.
struct Step {
  std::vector<std::int32_t> starts{0};
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> kv_lens;
  std::vector<std::int32_t> table;
  std::size_t pages_per_request = 0;

  explicit Step(const std::vector<Request>& requests) {
    for (const Request& request : requests) pages_per_request = std::max(pages_per_request, request.pages.size());
    for (const Request& request : requests) {
      for (std::size_t i = 0; i < request.count; ++i) {
        positions.push_back(static_cast<std::int32_t>(request.first + i));
      }
      starts.push_back(static_cast<std::int32_t>(positions.size()));
      kv_lens.push_back(static_cast<std::int32_t>(request.first + request.count));
      std::vector<std::int32_t> row = request.pages;
      row.resize(pages_per_request, -1);
      table.insert(table.end(), row.begin(), row.end());
    }
  }

  std::size_t num_tokens() const { return positions.size(); }
  Rows rows() const {
    return {starts.data(), positions.data(), kv_lens.data(), table.data(), kv_lens.size(), pages_per_request};
  }
};

// `count` page ids from `first` on, in a shuffled order.
inline std::vector<std::int32_t> shuffled_pages(std::size_t first, std::size_t count, unsigned seed) {
  std::vector<std::int32_t> pages(count);
  std::iota(pages.begin(), pages.end(), static_cast<std::int32_t>(first));
  std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
  return pages;
}

inline std::size_t pages_for(std::size_t tokens) { return (tokens + kPageLen - 1) / kPageLen; }

inline std::uint16_t bf16_unit(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

inline float bf16_value(std::uint16_t unit) {
  const std::uint32_t bits = std::uint32_t{unit} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline const char* name_of(KVType type) { return type == KVType::kF32 ? "f32" : type == KVType::kBf16 ? "bf16" : "i8"; }

inline constexpr KVType kTypes[] = {KVType::kF32, KVType::kBf16, KVType::kI8};

}  // namespace trivium::attention::tests
