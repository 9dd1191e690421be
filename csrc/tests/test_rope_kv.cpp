// What attention is fed: norm, rotation, rounding and storing against float64; equal bits on every level, for every
// split.
#include "ops/rope_kv/rope_kv.h"

#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "base/team.h"
#include "tests/check.h"
#include "tests/test_attention_support.h"

namespace trivium::rope_kv {
namespace {

using attention::kPageLen;
using attention::KVType;
using namespace attention::tests;

struct Shape {
  std::size_t heads, kv_heads, width, half;
  NormKind norm;
};

constexpr Shape kShapes[] = {{9, 3, 64, 32, NormKind::kNone}, {4, 2, 128, 64, NormKind::kHead},
                             {6, 3, 80, 10, NormKind::kFull}, {4, 1, 8, 4, NormKind::kHead},
                             {5, 5, 18, 0, NormKind::kNone},  {2, 1, 256, 128, NormKind::kFull}};

bool runs_here(const Kernel& kernel) { return includes(detected_isa(), kernel.isa); }

// Two requests of one token, one of seven that begins in an odd slot, one of twenty.
Step make_step() { return Step({{5, 1, {3}}, {16, 1, {4, 0}}, {13, 7, {1, 2}}, {0, 20, {5, 6}}}); }

struct Case {
  Shape shape;
  KVType type;
  Step step = make_step();
  std::vector<float> qkv, q_weight, k_weight, table;

  Case(const Shape& s, KVType t) : shape(s), type(t) {
    const std::size_t row = (s.heads + 2 * s.kv_heads) * s.width;
    qkv = normal(step.num_tokens() * row, 1);
    q_weight = normal(s.heads * s.width, 2);
    k_weight = normal(s.kv_heads * s.width, 3);
    table = normal(step.num_tokens() * 2 * s.half, 4);
  }
  std::size_t row_size() const { return (shape.heads + 2 * shape.kv_heads) * shape.width; }
  std::size_t query_bytes() const { return type == KVType::kF32 ? 4 : 2; }
};

struct Result {
  std::vector<std::byte> queries;
  OwnedStore store;

  explicit Result(const Case& c)
      : queries(c.step.num_tokens() * c.shape.heads * c.shape.width * c.query_bytes()),
        store(c.type, 2, 8, c.shape.kv_heads, c.shape.width) {}
  bool operator==(const Result& other) const {
    return queries == other.queries &&
           std::memcmp(store.store.data, other.store.store.data, store.store.num_bytes()) == 0;
  }
};

void run_case(const Kernel& kernel, const Case& c, Result& out) {
  Args args{};
  args.qkv = c.qkv.data();
  args.qkv_stride = c.row_size();
  args.num_heads = c.shape.heads;
  args.norm = c.shape.norm;
  args.q_weight = c.q_weight.data();
  args.k_weight = c.k_weight.data();
  args.eps = 1e-6F;
  args.table = c.shape.half == 0 ? nullptr : c.table.data();
  args.half = c.shape.half;
  args.query_factor = 0.25F;
  args.queries = out.queries.data();
  args.store = &out.store.store;
  args.layer = 1;
  run_team([&](Team& team) { run(kernel, c.step.rows(), args, team); });
}

// One head by definition, in double.
std::vector<double> expected_head(const Case& c, std::size_t token, std::size_t first, std::size_t count,
                                  std::size_t head, const std::vector<float>& weight) {
  const std::size_t width = c.shape.width;
  const float* row = c.qkv.data() + token * c.row_size() + first;
  std::vector<double> x(row + head * width, row + (head + 1) * width);
  if (c.shape.norm != NormKind::kNone) {
    const bool is_full = c.shape.norm == NormKind::kFull;
    const std::size_t begin = is_full ? 0 : head * width;
    const std::size_t size = is_full ? count * width : width;
    double sum = 0;
    for (std::size_t i = begin; i < begin + size; ++i) sum += double{row[i]} * row[i];
    const double root = std::sqrt(sum / static_cast<double>(size) + 1e-6);
    for (std::size_t i = 0; i < width; ++i) x[i] *= weight[(is_full ? head * width : 0) + i] / root;
  }
  const float* table = c.table.data() + token * 2 * c.shape.half;
  for (std::size_t i = 0; i < c.shape.half; ++i) {
    const double a = x[i];
    const double b = x[c.shape.half + i];
    x[i] = a * table[i] - b * table[c.shape.half + i];
    x[c.shape.half + i] = b * table[i] + a * table[c.shape.half + i];
  }
  return x;
}

// |got - expected| within one rounding of the type, and 2^-18 of the head's size for the float32 before it.
bool is_close(KVType type, const std::vector<double>& expected, const std::vector<float>& got) {
  double greatest = 0;
  for (const double value : expected) greatest = std::max(greatest, std::abs(value));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double rounding = type == KVType::kF32    ? 0.0
                            : type == KVType::kBf16 ? std::ldexp(std::abs(expected[i]), -8) * 1.01
                                                    : greatest / 127 / 2 * 1.01;
    if (!(std::abs(got[i] - expected[i]) <= rounding + std::ldexp(greatest, -18))) return false;
  }
  return true;
}

std::vector<float> query_of(const Case& c, const Result& result, std::size_t token, std::size_t head) {
  std::vector<float> query(c.shape.width);
  const std::size_t first = (token * c.shape.heads + head) * c.shape.width;
  for (std::size_t i = 0; i < query.size(); ++i) {
    const std::byte* at = result.queries.data() + (first + i) * c.query_bytes();
    std::uint16_t unit;
    std::memcpy(&unit, at, sizeof unit);
    query[i] = bf16_value(unit);
    if (c.type == KVType::kF32) std::memcpy(&query[i], at, sizeof(float));
  }
  return query;
}

std::size_t count_wrong(const Case& c, const Result& result) {
  std::size_t wrong = 0;
  const std::size_t width = c.shape.width;
  std::vector<float> key(width), value(width);
  for (std::size_t b = 0; b + 1 < c.step.starts.size(); ++b) {
    for (auto t = static_cast<std::size_t>(c.step.starts[b]); t < static_cast<std::size_t>(c.step.starts[b + 1]); ++t) {
      for (std::size_t h = 0; h < c.shape.heads; ++h) {
        std::vector<double> expected = expected_head(c, t, 0, c.shape.heads, h, c.q_weight);
        for (double& x : expected) x *= 0.25;
        wrong += is_close(c.type == KVType::kI8 ? KVType::kBf16 : c.type, expected, query_of(c, result, t, h)) ? 0 : 1;
      }
      const auto position = static_cast<std::size_t>(c.step.positions[t]);
      const std::int32_t page = c.step.table[b * c.step.pages_per_request + position / kPageLen];
      for (std::size_t g = 0; g < c.shape.kv_heads; ++g) {
        attention::read_token(result.store.store, 1, static_cast<std::size_t>(page), g, position % kPageLen, key.data(),
                              value.data());
        const std::size_t first_key = c.shape.heads * width;
        const float* v = c.qkv.data() + t * c.row_size() + first_key + (c.shape.kv_heads + g) * width;
        wrong += is_close(c.type, expected_head(c, t, first_key, c.shape.kv_heads, g, c.k_weight), key) ? 0 : 1;
        wrong += is_close(c.type, std::vector<double>(v, v + width), value) ? 0 : 1;
      }
    }
  }
  return wrong;
}

}  // namespace

TEST(queries_keys_and_values_are_those_of_the_definition) {
  set_num_threads(2);
  for (const Kernel& kernel : all()) {
    if (!runs_here(kernel)) continue;
    for (const Shape& shape : kShapes) {
      for (const KVType type : kTypes) {
        const Case c(shape, type);
        Result result(c);
        run_case(kernel, c, result);
        const std::size_t wrong = count_wrong(c, result);
        EXPECT(wrong == 0, "%s: %s D=%zu: %zu heads wrong", kernel.name, name_of(type), shape.width, wrong);
      }
    }
  }
}

TEST(levels_and_threads_store_the_same_bits) {
  for (const Shape& shape : kShapes) {
    for (const KVType type : kTypes) {
      const Case c(shape, type);
      set_num_threads(1);
      Result expected(c);
      run_case(best(Isa::kScalar), c, expected);
      for (const Kernel& kernel : all()) {
        if (!runs_here(kernel)) continue;
        for (const int threads : {1, 2, 3, 4, 9}) {
          set_num_threads(threads);
          Result result(c);
          run_case(kernel, c, result);
          EXPECT(result == expected, "%s: %s D=%zu, %d threads", kernel.name, name_of(type), shape.width, threads);
        }
      }
    }
  }
}

TEST(a_value_in_an_even_slot_clears_its_unwritten_neighbour) {
  for (const KVType type : {KVType::kBf16, KVType::kI8}) {
    OwnedStore owned(type, 1, 1, 1, 8);
    std::memset(owned.store.data, 0x7F, owned.store.num_bytes());
    const std::vector<float> x = normal(8, 1);
    std::vector<float> key(8), value(8);
    attention::write_token(owned.store, 0, 0, 0, 6, x.data(), x.data());
    attention::read_token(owned.store, 0, 0, 0, 7, key.data(), value.data());
    for (const float v : value) EXPECT(v == 0.0F, "%s: %g", name_of(type), static_cast<double>(v));
  }
}

TEST(numbers_that_are_not_finite_stay_so) {
  for (const KVType type : kTypes) {
    for (const float bad : {NAN, INFINITY}) {
      OwnedStore owned(type, 1, 1, 1, 8);
      std::vector<float> x = normal(8, 1);
      x[3] = bad;
      std::vector<float> key(8), value(8);
      attention::write_token(owned.store, 0, 0, 0, 0, x.data(), x.data());
      attention::read_token(owned.store, 0, 0, 0, 0, key.data(), value.data());
      EXPECT(!std::isfinite(key[3]) && !std::isfinite(value[3]), "%s", name_of(type));
    }
  }
}

TEST(a_table_holds_cosines_and_sines_of_float32_angles) {
  const Step step = make_step();
  constexpr std::size_t kHalf = 5;
  std::vector<float> frequencies = normal(3 * kHalf, 1);
  const std::vector<std::int32_t> variants{2, 0, 0, 1};
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    std::vector<float> out(step.num_tokens() * 2 * kHalf, NAN);
    run_team([&](Team& team) {
      fill_table(step.rows(), {frequencies.data(), variants.data(), kHalf, 1.25F, out.data()}, team);
    });
    std::size_t wrong = 0;
    for (std::size_t b = 0; b < variants.size(); ++b) {
      for (auto t = static_cast<std::size_t>(step.starts[b]); t < static_cast<std::size_t>(step.starts[b + 1]); ++t) {
        for (std::size_t i = 0; i < kHalf; ++i) {
          const float angle =
              static_cast<float>(step.positions[t]) * frequencies[static_cast<std::size_t>(variants[b]) * kHalf + i];
          const float* row = out.data() + t * 2 * kHalf;
          wrong += row[i] == static_cast<float>(std::cos(double{angle})) * 1.25F ? 0 : 1;
          wrong += row[kHalf + i] == static_cast<float>(std::sin(double{angle})) * 1.25F ? 0 : 1;
        }
      }
    }
    EXPECT(wrong == 0, "%d threads: %zu wrong", threads, wrong);
  }
}

}  // namespace trivium::rope_kv
