// Times of the sampler per row and thread, beside the rate at which a row can be read, measured in the same process.
//
// Two shapes of logits: `peaked` looks like a language model's (a few likely tokens far above the rest), `flat` like an
// untrained one's (normal, spread 1). Prints one line per level, vocabulary and case: microseconds per row (best of
// calls over 16 rows, times threads / rows). Usage: trivium_bench_sample [threads] [vocabulary …].
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "ops/sample/sample.h"

namespace trivium::sample {
namespace {

constexpr std::size_t kRows = 16;
constexpr int kRounds = 41;
constexpr std::size_t kMaxTops = 20;

double now_us() {
  return 1e6 * std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Fn>
double best_us(Fn&& fn) {
  std::vector<double> times;
  fn();
  for (int i = 0; i < kRounds; ++i) {
    const double start = now_us();
    fn();
    times.push_back(now_us() - start);
  }

  return *std::min_element(times.begin(), times.end());
}

std::vector<float> make_logits(std::size_t vocab_size, bool is_peaked) {
  std::mt19937 engine(7);
  std::normal_distribution<float> rest(0.0F, is_peaked ? 2.5F : 1.0F);
  std::exponential_distribution<float> more(0.25F);
  std::uniform_real_distribution<float> chance;
  std::vector<float> logits(kRows * vocab_size);
  for (float& logit : logits) logit = rest(engine) + (is_peaked && chance(engine) < 0.002F ? more(engine) : 0.0F);
  return logits;
}

Row plain_row() {
  Row row{};
  row.temperature = 0.8;
  row.top_p = 1.0;
  row.typical_p = 1.0;
  row.repetition_penalty = 1.0;
  row.position = 1000;
  row.prompt_len = 500;
  row.target = -1;
  row.num_logprobs = -1;
  row.mask_row = -1;
  return row;
}

struct Case {
  const char* name;
  void (*change)(Row& row);
};

constexpr Case kCases[] = {
    {"greedy", [](Row& row) { row.temperature = 0.0; }},
    {"temperature", [](Row&) {}},
    {"top-k 50", [](Row& row) { row.top_k = 50; }},
    {"top-p 0.95", [](Row& row) { row.top_p = 0.95; }},
    {"top-k 50, top-p 0.95", [](Row& row) { row.top_k = 50, row.top_p = 0.95; }},
    {"min-p 0.05", [](Row& row) { row.min_p = 0.05; }},
    {"typical 0.95", [](Row& row) { row.typical_p = 0.95; }},
    {"greedy, penalties", [](Row& row) { row.temperature = 0.0, row.repetition_penalty = 1.1; }},
    {"temperature, penalties", [](Row& row) { row.frequency_penalty = 0.5; }},
    {"greedy, mask of 100", [](Row& row) { row.temperature = 0.0, row.mask_row = 0; }},
    {"temperature, mask of all", [](Row& row) { row.mask_row = 1; }},
    {"greedy, 5 raw logprobs", [](Row& row) { row.temperature = 0.0, row.num_logprobs = 5; }},
    {"top-p 0.95, 5 raw logprobs", [](Row& row) { row.top_p = 0.95, row.num_logprobs = 5; }},
    {"5 processed logprobs", [](Row& row) { row.num_logprobs = 5, row.wants = kWantsProcessed; }},
};

// What every call needs besides logits.
struct Setting {
  std::size_t vocab_size;
  std::size_t words;
  std::vector<std::uint32_t> masks;
  std::vector<std::int32_t> history;
  std::vector<RowLists> lists;
  std::vector<std::int32_t> ids, num_tops, top_ids;
  std::vector<std::int64_t> ranks;
  std::vector<double> chosen, logprobs, top_logprobs;

  explicit Setting(std::size_t size)
      : vocab_size(size),
        words((size + 31) / 32),
        masks(2 * words, ~0U),
        history(1000),
        lists(kRows),
        ids(2 * kRows),
        num_tops(kRows),
        top_ids(kRows * kMaxTops),
        ranks(kRows),
        chosen(kRows),
        logprobs(kRows),
        top_logprobs(kRows * kMaxTops) {
    std::mt19937 engine(3);
    std::fill_n(masks.begin(), words, 0U);
    for (int i = 0; i < 100; ++i) masks[engine() % (words - 1)] |= 1U << (engine() % 32);
    for (std::int32_t& token : history) token = static_cast<std::int32_t>(engine() % size);
    for (RowLists& row : lists) row.history = history;
  }

  double time(const Kernel& kernel, const std::vector<float>& logits, const Case& what) {
    std::vector<Row> rows(kRows, plain_row());
    std::uint64_t seed = 0;
    for (Row& row : rows) what.change(row), row.seed = ++seed;
    const bool has_lists = rows[0].has_penalty();
    const Outputs out{ids.data(),      ids.data() + kRows, chosen.data(),       logprobs.data(), ranks.data(),
                      num_tops.data(), top_ids.data(),     top_logprobs.data(), kMaxTops};
    const double us = best_us([&] {
      for (Row& row : rows) ++row.position;
      sample(kernel, {logits.data(), kRows, vocab_size, vocab_size}, rows,
             has_lists ? std::span<const RowLists>(lists) : std::span<const RowLists>(), {masks.data(), 2, words}, out);
    });
    return us * num_threads() / kRows;
  }
};

// Microseconds to read one row of 16, as fast as this level's pass for the greatest value does.
double read_us(const Kernel& kernel, const std::vector<float>& logits, std::size_t vocab_size) {
  std::vector<float> maxima(vocab_size / 8 + 128);
  const double us = best_us([&] {
    for (std::size_t i = 0; i < kRows; ++i) {
      bool has_nan = false;
      kernel.table().f32.greatest(logits.data() + i * vocab_size, vocab_size, maxima.data(), &has_nan);
    }
  });
  return us / kRows;
}

void run(std::size_t vocab_size) {
  Setting setting(vocab_size);
  const std::vector<float> peaked = make_logits(vocab_size, true);
  const std::vector<float> flat = make_logits(vocab_size, false);
  for (const Kernel& kernel : all()) {
    if (!includes(active_isa(), kernel.isa)) continue;
    const double read = read_us(kernel, peaked, vocab_size);
    std::printf("%s: V=%zu, %d threads; one pass over a row takes %.1f us (%.0f GB/s)\n", kernel.name, vocab_size,
                num_threads(), read, static_cast<double>(vocab_size) * 4e-3 / read);
    std::printf("  %-28s %10s %10s   us per row and thread\n", "", "peaked", "flat");
    for (const Case& what : kCases) {
      const double us = setting.time(kernel, peaked, what);
      std::printf("  %-28s %10.1f %10.1f\n", what.name, us, setting.time(kernel, flat, what));
    }
  }
}

}  // namespace
}  // namespace trivium::sample

int main(int argc, char** argv) {
  trivium::set_num_threads(argc > 1 ? std::atoi(argv[1]) : trivium::usable_cores());
  if (argc <= 2) trivium::sample::run(49152);
  for (int i = 2; i < argc; ++i) trivium::sample::run(static_cast<std::size_t>(std::atol(argv[i])));
  return 0;
}
