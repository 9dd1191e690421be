// A small world to test attention in: sequences whose keys, values and queries follow from a seed, and what attention
// has to give for them.
#pragma once

#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "base/parallel.h"
#include "base/team.h"
#include "ops/attention/attention.h"
#include "ops/attention/plan.h"
#include "tests/test_attention_support.h"

namespace trivium::attention::tests {

struct Shape {
  std::size_t heads, kv_heads, width;
  std::size_t window;
  float soft_cap;

  Geometry geometry() const { return {heads, kv_heads, width, window}; }
  float factor() const { return query_factor(1.0F / std::sqrt(static_cast<float>(width)), soft_cap); }
};

// Keys and values of position p depend on (seed, p) alone, so that sequences of one seed have equal prefixes.
inline void fill_pages(const Store& store, const std::vector<std::int32_t>& pages, std::size_t begin, std::size_t end,
                       unsigned seed) {
  for (std::size_t p = begin; p < end; ++p) {
    const std::vector<float> x = normal(2 * store.num_heads * store.width, seed * 100003U + static_cast<unsigned>(p));
    for (std::size_t g = 0; g < store.num_heads; ++g) {
      const float* key = x.data() + 2 * g * store.width;
      write_token(store, store.num_layers - 1, static_cast<std::size_t>(pages[p / kPageLen]), g, p % kPageLen, key,
                  key + store.width);
    }
  }
}

// Queries of one row, as the kernels read them.
inline std::vector<std::byte> make_query(KVType type, const Shape& shape, unsigned seed, std::size_t position) {
  std::vector<float> x = normal(shape.heads * shape.width, seed * 70001U + static_cast<unsigned>(position) + 17U);
  for (float& value : x) value *= 2 * shape.factor();
  std::vector<std::byte> bytes(x.size() * (type == KVType::kF32 ? 4 : 2));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint16_t unit = bf16_unit(x[i]);
    if (type == KVType::kF32) std::memcpy(bytes.data() + 4 * i, &x[i], 4);
    if (type != KVType::kF32) std::memcpy(bytes.data() + 2 * i, &unit, 2);
  }
  return bytes;
}

inline double query_element(KVType type, const std::vector<std::byte>& query, std::size_t index) {
  std::uint16_t unit;
  float value;
  if (type == KVType::kF32) {
    std::memcpy(&value, query.data() + 4 * index, 4);
    return value;
  }
  std::memcpy(&unit, query.data() + 2 * index, 2);
  return bf16_value(unit);
}

// One layer's attention of a step into `output`, planned for so many members; queries of request b follow from
// seeds[b].
inline void attend_into(const Kernel& kernel, const Store& store, const Shape& shape,
                        const std::vector<Request>& requests, const std::vector<unsigned>& seeds, const Output& output,
                        int members) {
  const Step step(requests);
  std::vector<std::byte> queries;
  for (std::size_t b = 0; b < requests.size(); ++b) {
    for (std::size_t i = 0; i < requests[b].count; ++i) {
      const std::vector<std::byte> query = make_query(store.type, shape, seeds[b], requests[b].first + i);
      queries.insert(queries.end(), query.begin(), query.end());
    }
  }
  Work work;
  work.build(step.rows(), shape.geometry(), members);
  const Args args{&store, store.num_layers - 1, queries.data(), shape.soft_cap, output};
  const std::size_t bytes = (scratch_bytes(store.width) + 63) / 64 * 64;
  std::vector<std::byte> scratch(bytes * static_cast<std::size_t>(num_threads()) + 64);
  const auto begin = (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64) % 64;
  run_team([&](Team& team) {
    run(kernel, work, args, team, scratch.data() + begin + bytes * static_cast<std::size_t>(team.index()));
  });
}

// Rows [T, H * D].
inline std::vector<float> attend(const Kernel& kernel, const Store& store, const Shape& shape,
                                 const std::vector<Request>& requests, const std::vector<unsigned>& seeds) {
  const std::size_t row = shape.heads * shape.width;
  std::size_t num_tokens = 0;
  for (const Request& request : requests) num_tokens += request.count;
  std::vector<float> out(num_tokens * row, NAN);
  attend_into(kernel, store, shape, requests, seeds, {out.data(), row, nullptr, nullptr}, num_threads());
  return out;
}

// Row `position` of a sequence in double, and how far a kernel may be from it: the bound of attention.h.
struct Expected {
  std::vector<double> value;
  std::vector<double> bound;
};

inline Expected expect_row(const Store& store, const Shape& shape, const std::vector<std::int32_t>& pages,
                           unsigned seed, std::size_t position) {
  const std::size_t width = shape.width;
  const std::size_t first = shape.window == 0 || position < shape.window ? 0 : position + 1 - shape.window;
  const std::vector<std::byte> query = make_query(store.type, shape, seed, position);
  Expected row{std::vector<double>(shape.heads * width), std::vector<double>(shape.heads * width)};
  std::vector<float> key(width), value(width);
  for (std::size_t h = 0; h < shape.heads; ++h) {
    std::vector<double> sum(width), greatest(width);
    double total = 0;
    double size = 0;  // greatest sum of |q k|, natural units
    for (int pass = 0; pass < 2; ++pass) {
      static thread_local double top;
      if (pass == 0) top = -INFINITY;
      for (std::size_t p = first; p <= position; ++p) {
        read_token(store, store.num_layers - 1, static_cast<std::size_t>(pages[p / kPageLen]),
                   h / (shape.heads / shape.kv_heads), p % kPageLen, key.data(), value.data());
        double score = 0;
        double absolute = 0;
        for (std::size_t i = 0; i < width; ++i) {
          const double term = query_element(store.type, query, h * width + i) * key[i] * std::numbers::ln2;
          score += term;
          absolute += std::abs(term);
        }
        if (shape.soft_cap != 0) score = double{shape.soft_cap} * std::tanh(score / 2);
        size = std::max(size, shape.soft_cap == 0 ? absolute : absolute * shape.soft_cap / 2);
        top = std::max(top, score);
        if (pass == 0) continue;
        const double share = std::exp(score - top);
        total += share;
        for (std::size_t i = 0; i < width; ++i) {
          sum[i] += share * value[i];
          greatest[i] = std::max(greatest[i], static_cast<double>(std::abs(value[i])));
        }
      }
    }
    const double eps = std::ldexp(1.0, -24);
    const auto count = static_cast<double>(position + 1 - first);
    const double cap = 8 * static_cast<double>(shape.soft_cap);
    const double of_float = 2 * eps * ((static_cast<double>(width) + 4) * size + count + cap + 64);
    const double of_shares = store.type == KVType::kF32 ? 0.0 : std::ldexp(1.0, -8);
    for (std::size_t i = 0; i < width; ++i) {
      row.value[h * width + i] = sum[i] / total;
      row.bound[h * width + i] = greatest[i] * (of_float + of_shares) + 1e-30;
    }
  }
  return row;
}

}  // namespace trivium::attention::tests
