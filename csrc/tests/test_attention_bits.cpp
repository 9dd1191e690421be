// The law: a row's bits depend on its query, its position and its request's keys alone.
#include "ops/operand/operand_inl.h"
#include "tests/check.h"
#include "tests/test_attention_model.h"

namespace trivium::attention {
namespace {

using namespace tests;

constexpr Shape kShapes[] = {
    {9, 3, 64, 0, 0}, {7, 1, 80, 0, 0}, {4, 2, 24, 100, 0}, {8, 1, 16, 0, 20}, {3, 3, 32, 70, 0}};

bool runs_here(const Kernel& kernel) { return includes(detected_isa(), kernel.isa); }

std::size_t length_for(const Kernel& kernel) { return kernel.isa == Isa::kScalar ? 70 : 330; }

// A sequence in pages of its own, and every row of it run alone, as a step of one token by one thread.
struct World {
  const Kernel& kernel;
  Shape shape;
  std::size_t length;
  OwnedStore owned;
  std::vector<std::int32_t> pages;
  std::vector<float> rows;

  World(const Kernel& k, const Shape& s, KVType type, std::size_t num_tokens)
      : kernel(k),
        shape(s),
        length(num_tokens),
        owned(type, 1, 8 * pages_for(num_tokens), s.kv_heads, s.width),
        pages(shuffled_pages(0, pages_for(num_tokens), 3)) {
    owned.fill_with_garbage();
    set_num_threads(1);
    for (std::size_t p = 0; p < length; ++p) {
      fill_pages(owned.store, pages, p, p + 1, 1);  // later slots still hold garbage
      const std::vector<float> row = run({{p, 1, pages}}, {1});
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  std::size_t row_size() const { return shape.heads * shape.width; }
  std::vector<float> run(const std::vector<Request>& requests, const std::vector<unsigned>& seeds) const {
    return attend(kernel, owned.store, shape, requests, seeds);
  }
  // Rows [first, first + count) of the sequence against `out`, which begins with them.
  bool has_rows(std::size_t first, std::size_t count, const float* out) const {
    return std::memcmp(out, rows.data() + first * row_size(), count * row_size() * sizeof(float)) == 0;
  }
  // The pages [begin, end) of other memory that hold a copy of the sequence's tokens.
  std::vector<std::int32_t> copy(std::size_t first_page) {
    std::vector<std::int32_t> copied(pages.size());
    for (std::size_t i = 0; i < pages.size(); ++i) copied[i] = static_cast<std::int32_t>(first_page + i);
    fill_pages(owned.store, copied, 0, length, 1);
    return copied;
  }
};

template <class Fn>
void for_each_world(Fn&& fn) {
  for (const Kernel& kernel : all()) {
    if (!runs_here(kernel)) continue;
    for (const Shape& shape : kShapes) {
      for (const KVType type : kTypes) {
        World world(kernel, shape, type, length_for(kernel));
        fn(world);
      }
    }
  }
}

#define EXPECT_ROWS(condition, world, ...)                                                                    \
  do {                                                                                                        \
    EXPECT(condition, "%s: %s H=%zu D=%zu window %zu, %d threads", (world).kernel.name,                       \
           name_of((world).owned.store.type), (world).shape.heads, (world).shape.width, (world).shape.window, \
           num_threads());                                                                                    \
  } while (false)

}  // namespace

TEST(rows_of_chunks_have_the_bits_of_rows_alone) {
  for_each_world([](World& world) {
    for (const std::size_t chunk : {std::size_t{7}, std::size_t{64}, world.length}) {
      set_num_threads(static_cast<int>(chunk % 4) + 1);
      for (std::size_t first = 0; first < world.length; first += chunk) {
        const std::size_t count = std::min(chunk, world.length - first);
        const std::vector<float> out = world.run({{first, count, world.pages}}, {1});
        EXPECT_ROWS(world.has_rows(first, count, out.data()), world);
      }
    }
  });
}

TEST(threads_change_no_bit) {
  for_each_world([](World& world) {
    for (const int threads : {2, 3, 4, 7}) {
      set_num_threads(threads);
      const std::size_t last = world.length - 1;
      const std::vector<float> decoded = world.run({{last, 1, world.pages}}, {1});
      EXPECT_ROWS(world.has_rows(last, 1, decoded.data()), world);
      const std::vector<float> chunk = world.run({{20, 30, world.pages}}, {1});
      EXPECT_ROWS(world.has_rows(20, 30, chunk.data()), world);
    }
  });
}

TEST(a_team_of_another_size_than_planned_gives_the_same_bits) {
  const Shape shape{3, 1, 32, 0, 0};
  World world(best(active_isa()), shape, KVType::kBf16, 600);
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    std::vector<float> out(world.row_size(), NAN);
    attend_into(world.kernel, world.owned.store, shape, {{599, 1, world.pages}}, {1},
                {out.data(), world.row_size(), nullptr, nullptr}, 5);
    EXPECT_ROWS(world.has_rows(599, 1, out.data()), world);
  }
}

// Requests that decode, verify and prefill in one step; some share pages with each other, some hold copies.
TEST(neighbours_and_shared_pages_change_no_bit) {
  for_each_world([](World& world) {
    const std::vector<std::int32_t> copied = world.copy(pages_for(world.length));
    const std::size_t last = world.length - 1;
    const std::vector<Request> requests{
        {last, 1, world.pages}, {last - 30, 1, world.pages}, {last, 1, copied},     {last - 5, 4, world.pages},
        {10, 40, copied},       {0, 3, world.pages},         {last - 3, 4, copied}, {63, 2, world.pages}};
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      const std::vector<float> out = world.run(requests, std::vector<unsigned>(requests.size(), 1));
      const float* at = out.data();
      for (const Request& request : requests) {
        EXPECT_ROWS(world.has_rows(request.first, request.count, at), world);
        at += request.count * world.row_size();
      }
    }
  });
}

// Two sequences that agree on their first 128 positions: in shared pages, and each in pages of its own.
TEST(forks_of_a_prefix_have_the_bits_of_sequences_of_their_own) {
  for_each_world([](World& world) {
    constexpr std::size_t kShared = 64;
    const std::size_t size = pages_for(world.length);
    const std::size_t last = world.length - 1;
    // Pages 2 * size on: a fork's own pages, filled from another seed after the shared ones.
    std::vector<std::int32_t> fork = world.pages;
    std::vector<std::int32_t> own = shuffled_pages(3 * size, size, 9);
    for (std::size_t i = kShared / kPageLen; i < size; ++i) fork[i] = static_cast<std::int32_t>(2 * size + i);
    fill_pages(world.owned.store, fork, kShared, world.length, 2);
    fill_pages(world.owned.store, own, 0, kShared, 1);
    fill_pages(world.owned.store, own, kShared, world.length, 2);
    set_num_threads(1);
    const std::vector<float> expected = world.run({{last, 1, own}}, {2});
    for (const int threads : {1, 2, 4}) {
      set_num_threads(threads);
      const std::vector<float> out = world.run({{last, 1, fork}, {last, 1, world.pages}, {last, 1, fork}}, {2, 1, 2});
      EXPECT_ROWS(std::memcmp(out.data(), expected.data(), 4 * expected.size()) == 0, world);
      EXPECT_ROWS(world.has_rows(last, 1, out.data() + world.row_size()), world);
      EXPECT_ROWS(std::memcmp(out.data() + 2 * world.row_size(), expected.data(), 4 * expected.size()) == 0, world);
    }
  });
}

TEST(numbers_of_a_neighbour_that_are_not_finite_stay_with_it) {
  for (const Kernel& kernel : all()) {
    if (!runs_here(kernel)) continue;
    for (const KVType type : kTypes) {
      const Shape shape{2, 1, 16, 0, 0};
      World world(kernel, shape, type, 37);
      // The slots after position 36 of its page: as another request of the same page left them.
      std::vector<float> bad(16, NAN);
      for (std::size_t slot = 38 % kPageLen; slot < kPageLen; ++slot) {
        write_token(world.owned.store, 0, static_cast<std::size_t>(world.pages[2]), 0, slot, bad.data(), bad.data());
      }
      const std::vector<float> out = world.run({{36, 1, world.pages}}, {1});
      EXPECT_ROWS(world.has_rows(36, 1, out.data()), world);
    }
  }
}

TEST(operands_hold_the_rows_that_floats_hold) {
  constexpr operand::Layout kLayouts[] = {{operand::Format::kF32, 192, {}, 0},
                                          {operand::Format::kBf16, 192, {}, 0},
                                          {operand::Format::kQ8, 192, {{32, 128}, {32, 0}}, 2},
                                          {operand::Format::kQ8Wide, 192, {{64, 128}, {64, 0}}, 2}};
  const Shape shape{3, 1, 64, 0, 0};
  for (const Kernel& kernel : all()) {
    if (!runs_here(kernel)) continue;
    World world(kernel, shape, KVType::kBf16, 40);
    const std::vector<Request> requests{{13, 25, world.pages}};
    const std::vector<float> floats = world.run(requests, {1});
    const std::size_t count = 25;
    for (const operand::Layout& layout : kLayouts) {
      std::vector<std::uint32_t> expected(count * layout.row_words() + 1, 0xABABABABU);
      std::vector<std::uint32_t> out = expected;
      for (std::size_t t = 0; t < count; ++t) {
        const operand::Row row = operand::row_at(layout, expected.data(), count, t);
        operand::write_groups(layout, row, 0, floats.data() + t * 192, 192);
      }
      attend_into(kernel, world.owned.store, shape, requests, {1}, {nullptr, 0, &layout, out.data()}, num_threads());
      EXPECT(out == expected, "%s: format %d", kernel.name, static_cast<int>(layout.format));
      std::vector<std::uint32_t> beside(count * layout.row_words() + 1, 0xABABABABU);
      std::vector<float> both(floats.size());
      attend_into(kernel, world.owned.store, shape, requests, {1}, {both.data(), 192, &layout, beside.data()},
                  num_threads());
      EXPECT(both == floats && beside == expected, "%s: format %d, with floats", kernel.name,
             static_cast<int>(layout.format));
    }
  }
}

}  // namespace trivium::attention
