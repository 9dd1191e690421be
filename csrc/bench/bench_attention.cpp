// Times of attention on cold, shuffled pages, beside what this machine can do at most, read in the same process.
//
//   decode     one token per request; GB/s of keys and values that have to be read, and their share of a stream read
//   prefix     64 requests of one token over one shared prefix; the prefix counts once
//   prefill    one prompt; GFLOP/s of the causal work (4 * H * D per pair of positions), and its share of the
//              multiply-add rate of the level (bfloat16 dot products, where it has them)
//
// Layers are taken in turn, so that nothing is left in a cache from the round before. Medians.
// Usage: trivium_bench_attention [threads] [part of a line's name …].
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/team.h"
#include "ops/attention/attention.h"
#include "ops/attention/plan.h"
#include "ops/limits/limits.h"

namespace trivium::attention {
namespace {

constexpr std::size_t kColdBytes = std::size_t{192} << 20;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Fn>
double median_s(int rounds, Fn&& fn) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const double start = now_s();
    fn(static_cast<std::size_t>(i));
    times.push_back(now_s() - start);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds / 2)];
}

struct Model {
  std::size_t heads, kv_heads, width;
};

constexpr Model kModels[] = {{9, 3, 64}, {12, 2, 128}, {4, 1, 256}};

// The arrays of a step: `count` requests that run `tokens` tokens each, over a context that ends with them; the first
// `shared` positions lie in pages that all have.
struct Batch {
  std::vector<std::int32_t> starts{0}, positions, kv_lens, table;
  std::size_t pages_each, num_pages;

  Batch(std::size_t count, std::size_t context, std::size_t tokens, std::size_t shared)
      : pages_each((context + kPageLen - 1) / kPageLen) {
    const std::size_t common = shared / kPageLen;
    num_pages = common + count * (pages_each - common);
    std::vector<std::int32_t> ids(num_pages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    for (std::size_t b = 0; b < count; ++b) {
      for (std::size_t i = 0; i < tokens; ++i) positions.push_back(static_cast<std::int32_t>(context - tokens + i));
      starts.push_back(static_cast<std::int32_t>(positions.size()));
      kv_lens.push_back(static_cast<std::int32_t>(context));
      for (std::size_t page = 0; page < pages_each; ++page) {
        table.push_back(ids[page < common ? page : common + b * (pages_each - common) + page - common]);
      }
    }
  }
  Rows rows() const {
    return {starts.data(), positions.data(), kv_lens.data(), table.data(), kv_lens.size(), pages_each};
  }
};

struct Case {
  const char* name;
  KVType type;
  Model model;
  std::size_t count, context, tokens, shared;
};

using Memory = std::unique_ptr<std::byte, decltype(&std::free)>;

// Memory as the runtime's: in large pages where the system has them, so that random pieces do not wait for page walks.
Memory make_memory(std::size_t size) {
  constexpr std::size_t kLargePage = std::size_t{2} << 20;
  const std::size_t rounded = (size + kLargePage - 1) / kLargePage * kLargePage;
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kLargePage, rounded)), &std::free);
#if defined(__linux__)
  ::madvise(memory.get(), rounded, MADV_HUGEPAGE);
#endif
  return memory;
}

// A store of random finite numbers, with as many layers as it takes to be cold.
Memory make_store(const Case& c, std::size_t num_pages, Store& store) {
  store = {c.type, 1, num_pages, c.model.kv_heads, c.model.width, nullptr};
  const std::size_t layer_bytes = store.num_bytes();
  store.num_layers = std::max<std::size_t>(2, kColdBytes / layer_bytes);
  Memory memory = make_memory(store.num_bytes());
  store.data = memory.get();
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < store.num_bytes() / 4; ++i) {
    // Two bf16, or one float, of size about 1 either sign; as int8 anything goes, and its scales are finite.
    state = state * 1664525U + 1013904223U;
    const std::uint32_t word = ((state ^ state >> 13) & 0x807F807FU) | 0x3F003F00U;
    std::memcpy(store.data + 4 * i, &word, sizeof word);
  }
  return memory;
}

void print(const std::string& name, const Kernel& kernel, const Case& c, double seconds, std::size_t num_pages,
           std::size_t head_bytes, const limits::Limits& limits) {
  const double bytes = static_cast<double>(num_pages * c.model.kv_heads * head_bytes) / seconds;
  double pairs = 0;  // of positions
  for (std::size_t i = 0; i < c.tokens; ++i) pairs += static_cast<double>(c.context - i);
  const double work = 4.0 * static_cast<double>(c.model.heads * c.model.width * c.count) * pairs / seconds;
  std::printf("%-48s %-21s %10.1f us %6.1f GB/s (%3.0f %%) %7.1f GFLOP/s (%3.0f %%)\n", name.c_str(), kernel.name,
              seconds * 1e6, bytes * 1e-9, 100 * bytes / limits.memory_bytes, work * 1e-9,
              100 * work / (c.type == KVType::kF32 ? limits.f32_ops : limits.bf16_ops));
}

std::string name_of(const Case& c) {
  char text[96];
  std::snprintf(text, sizeof text, "%s %s %zu/%zux%zu batch %zu context %zu", c.name,
                c.type == KVType::kF32    ? "f32"
                : c.type == KVType::kBf16 ? "bf16"
                                          : "i8",
                c.model.heads, c.model.kv_heads, c.model.width, c.count, c.context);
  return text;
}

void run_case(const Kernel& kernel, const Case& c, const limits::Limits& limits) {
  const Batch batch(c.count, c.context, c.tokens, c.shared);
  Store store;
  const Memory memory = make_store(c, batch.num_pages, store);
  const std::size_t row = c.model.heads * c.model.width;
  const std::size_t num_tokens = c.count * c.tokens;
  // About 0.1 as bf16 pairs and as floats: scores of a few units.
  const std::vector<std::uint32_t> queries(num_tokens * row, 0x3DCD3DCDU);
  std::vector<float> out(num_tokens * row);
  Work work;
  work.build(batch.rows(), {c.model.heads, c.model.kv_heads, c.model.width, 0}, num_threads());
  const std::size_t bytes = scratch_bytes(c.model.width);
  std::vector<std::byte> scratch(bytes * static_cast<std::size_t>(num_threads()) + 64);
  std::byte* const begin = scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64) % 64;
  const auto attend = [&](std::size_t round) {
    const Args args{&store, round % store.num_layers, queries.data(), 0.0F, {out.data(), row, nullptr, nullptr}};
    run_team(
        [&](Team& team) { run(kernel, work, args, team, begin + bytes * static_cast<std::size_t>(team.index())); });
  };
  attend(0);
  const double start = now_s();
  attend(1);
  const double once = now_s() - start;
  const double seconds =
      median_s(std::clamp(static_cast<int>(0.3 / once), 5, 300), [&](std::size_t i) { attend(i + 2); });
  print(name_of(c), kernel, c, seconds, batch.num_pages, store.head_bytes(), limits);
}

// How long planning takes: once per step, not per layer.
void run_plan(std::size_t count, std::size_t context, std::size_t shared) {
  const Batch batch(count, context, 1, shared);
  Work work;
  const double seconds = median_s(101, [&](std::size_t) { work.build(batch.rows(), {9, 3, 64, 0}, num_threads()); });
  std::printf("plan: batch %zu context %zu, %zu shared: %.1f us\n", count, context, shared, seconds * 1e6);
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Model& model : kModels) {
    for (const std::size_t count : {1, 16, 64}) {
      for (const std::size_t context : {512, 2048})
        list.push_back({"decode", KVType::kBf16, model, count, context, 1, 0});
    }
    list.push_back({"decode", KVType::kI8, model, 16, 2048, 1, 0});
    list.push_back({"decode", KVType::kF32, model, 16, 2048, 1, 0});
    list.push_back({"prefix", KVType::kBf16, model, 64, 2112, 1, 2048});
    for (const KVType type : {KVType::kBf16, KVType::kI8, KVType::kF32}) {
      for (const std::size_t context : {512, 2048}) list.push_back({"prefill", type, model, 1, context, context, 0});
    }
  }
  return list;
}

void run_all(int threads, const std::vector<std::string>& wanted) {
  set_num_threads(threads);
  const Kernel& kernel = best(active_isa());
  const limits::Limits limits = limits::measure(kernel.isa);
  std::printf("%d threads, %s: reads %.1f GB/s of memory; multiply-adds of bf16 %.1f, of float32 %.1f GFLOP/s\n",
              threads, isa_name(kernel.isa), limits.memory_bytes * 1e-9, limits.bf16_ops * 1e-9, limits.f32_ops * 1e-9);
  run_plan(1, 2048, 0);
  run_plan(64, 2048, 0);
  run_plan(64, 2112, 2048);
  for (const Case& c : cases()) {
    const std::string name = name_of(c);
    const auto is_in = [&](const std::string& part) { return name.find(part) != std::string::npos; };
    if (std::all_of(wanted.begin(), wanted.end(), is_in)) run_case(kernel, c, limits);
  }
}

}  // namespace
}  // namespace trivium::attention

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : trivium::usable_cores();
  trivium::attention::run_all(threads, {argv + std::min(argc, 2), argv + argc});
  return 0;
}
