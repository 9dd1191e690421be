// Pages: what is written is read back, copies and exports are whole, imports are checked.
#include <cmath>
#include <stdexcept>

#include "base/parallel.h"
#include "base/team.h"
#include "ops/attention/pages.h"
#include "tests/check.h"
#include "tests/test_attention_support.h"

namespace trivium::attention {
namespace {

using namespace tests;

void fill(const Store& store, unsigned seed) {
  for (std::size_t layer = 0; layer < store.num_layers; ++layer) {
    for (std::size_t page = 0; page < store.num_pages; ++page) {
      for (std::size_t head = 0; head < store.num_heads; ++head) {
        for (std::size_t slot = 0; slot < kPageLen; ++slot) {
          const std::vector<float> x = normal(2 * store.width, seed++);
          write_token(store, layer, page, head, slot, x.data(), x.data() + store.width);
        }
      }
    }
  }
}

bool has_equal_pages(const Store& a, std::size_t page_a, const Store& b, std::size_t page_b) {
  for (std::size_t layer = 0; layer < a.num_layers; ++layer) {
    const std::size_t size = a.num_heads * a.head_bytes();
    if (std::memcmp(head_at(a, layer, page_a, 0), head_at(b, layer, page_b, 0), size) != 0) return false;
  }
  return true;
}

template <class Fn>
bool is_refused(Fn&& fn) {
  try {
    fn();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

}  // namespace

TEST(every_token_has_a_place_of_its_own) {
  for (const KVType type : kTypes) {
    for (const std::size_t width : {2, 8, 18, 64, 80}) {
      OwnedStore owned(type, 2, 3, 2, width);
      fill(owned.store, 7);
      std::size_t wrong = 0;
      unsigned seed = 7;
      for (std::size_t i = 0; i < 2 * 3 * 2 * kPageLen; ++i, ++seed) {
        std::vector<float> key(width), value(width);
        read_token(owned.store, i / 96, i / 32 % 3, i / 16 % 2, i % 16, key.data(), value.data());
        const std::vector<float> x = normal(2 * width, seed);
        // Half a unit of the coarsest type: 8 bits of the greatest of the row, which is below 5.
        for (std::size_t k = 0; k < width; ++k) {
          wrong += std::abs(key[k] - x[k]) <= 5.0F / 254 ? 0 : 1;
          wrong += std::abs(value[k] - x[width + k]) <= 5.0F / 254 ? 0 : 1;
        }
      }
      EXPECT(wrong == 0, "%s D=%zu: %zu wrong", name_of(type), width, wrong);
    }
  }
}

TEST(heads_have_the_size_that_is_drawn) {
  EXPECT(head_layout(KVType::kBf16, 64).num_bytes == 4096, "%zu", head_layout(KVType::kBf16, 64).num_bytes);
  EXPECT(head_layout(KVType::kF32, 64).num_bytes == 8192, "%zu", head_layout(KVType::kF32, 64).num_bytes);
  EXPECT(head_layout(KVType::kI8, 64).num_bytes == 2048 + 128, "%zu", head_layout(KVType::kI8, 64).num_bytes);
  EXPECT(head_layout(KVType::kBf16, 8).num_bytes == (8 + 16) * 32, "%zu", head_layout(KVType::kBf16, 8).num_bytes);
  for (const std::size_t width : {0, 3, 514}) {
    EXPECT(is_refused([&] { head_layout(KVType::kBf16, width); }), "width %zu", width);
  }
}

TEST(copied_and_moved_pages_are_whole) {
  for (const KVType type : kTypes) {
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      OwnedStore owned(type, 5, 4, 2, 8);
      OwnedStore other(type, 5, 4, 2, 8);
      fill(owned.store, 1);
      fill(other.store, 1);
      // The target of the first is the source of the second.
      const std::vector<PageCopy> copies{{0, 2}, {2, 3}, {1, 1}};
      run_team([&](Team& team) { copy_pages(owned.store, copies, team); });
      for (const std::size_t page : {0, 2, 3}) {
        EXPECT(has_equal_pages(owned.store, page, other.store, 0), "%s: page %zu", name_of(type), page);
      }
      EXPECT(has_equal_pages(owned.store, 1, other.store, 1), "%s: page 1", name_of(type));
      std::vector<std::byte> content(page_bytes(owned.store));
      export_page(owned.store, 1, content);
      import_page(owned.store, 2, content);
      EXPECT(has_equal_pages(owned.store, 2, other.store, 1), "%s: imported", name_of(type));
    }
  }
}

TEST(imports_refuse_what_is_no_page) {
  for (const KVType type : kTypes) {
    OwnedStore owned(type, 2, 2, 1, 8);
    fill(owned.store, 1);
    std::vector<std::byte> content(page_bytes(owned.store));
    EXPECT(is_refused([&] { export_page(owned.store, 2, content); }), "%s: page 2 of 2", name_of(type));
    EXPECT(is_refused([&] { import_page(owned.store, 1, std::span(content).first(content.size() - 1)); }), "%s: size",
           name_of(type));
    std::vector<float> bad(8, 1.0F);
    bad[7] = INFINITY;
    write_token(owned.store, 1, 0, 0, 15, bad.data(), bad.data());
    export_page(owned.store, 0, content);
    OwnedStore before(type, 2, 2, 1, 8);
    fill(before.store, 1);
    EXPECT(is_refused([&] { import_page(owned.store, 1, content); }), "%s: infinity", name_of(type));
    EXPECT(has_equal_pages(owned.store, 1, before.store, 1), "%s: something was written", name_of(type));
  }
}

}  // namespace trivium::attention
