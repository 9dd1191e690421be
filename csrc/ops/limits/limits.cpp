// Selection, threads and clock. Compiled without ISA flags.
#include "ops/limits/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "base/parallel.h"
#include "base/team.h"

namespace trivium::limits {

#define TRIV_KERNEL(isa, function) Functions function();
#include "ops/limits/kernels.inc"
#undef TRIV_KERNEL

namespace {

constexpr Kernel kKernels[] = {
#define TRIV_KERNEL(isa, function) {isa, #function, function},
#include "ops/limits/kernels.inc"
#undef TRIV_KERNEL
};

constexpr std::size_t kBlock = 4096;                                // words that a member reads at a time
constexpr std::size_t kMemoryWords = (std::size_t{160} << 20) / 8;  // several times any cache that we know
constexpr std::size_t kCacheWords = (std::size_t{2} << 20) / 8;     // per thread: beyond its own cache
constexpr std::size_t kMostCacheWords = (std::size_t{16} << 20) / 8;
constexpr double kRound_s = 2e-3;
constexpr int kRounds = 6;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Keeps the compiler from dropping sums that nobody needs.
std::atomic<std::uint64_t> sink{0};

double read_rate(const Functions& kernel, const std::vector<std::uint64_t>& words, std::size_t passes) {
  const std::size_t blocks = words.size() / kBlock;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {  // the first one warms up
    const double start = now_s();
    run_team([&](Team& team) {
      const Team::Share share = team.share(blocks);
      std::uint64_t sum = 0;
      for (std::size_t pass = 0; pass < passes; ++pass) {
        sum += kernel.read(words.data() + share.begin * kBlock, (share.end - share.begin) * kBlock);
      }
      sink.fetch_add(sum, std::memory_order_relaxed);
    });
    const double seconds = now_s() - start;
    const double bytes = static_cast<double>(blocks * kBlock * 8 * passes);
    if (round > 0) best = std::max(best, bytes / seconds);
  }
  return best;
}

double compute_rate(const Functions& kernel, Arithmetic arithmetic) {
  double best = 0;
  std::size_t loops = 1000;
  for (int round = 0; round < kRounds;) {
    std::vector<double> operations(static_cast<std::size_t>(num_threads()));
    const double start = now_s();
    run_team(
        [&](Team& team) { operations[static_cast<std::size_t>(team.index())] = kernel.compute(arithmetic, loops); });
    const double seconds = now_s() - start;
    double total = 0;
    for (const double each : operations) total += each;
    if (seconds < kRound_s) {
      loops *= 2;  // too short to tell
    } else {
      best = std::max(best, total / seconds);
      ++round;
    }
  }
  return best;
}

}  // namespace

std::span<const Kernel> all() { return kKernels; }

const Kernel& best(Isa isa) {
  for (const Kernel& kernel : kKernels) {
    if (includes(isa, kernel.isa)) return kernel;
  }
  return kKernels[std::size(kKernels) - 1];
}

Limits measure(Isa isa) {
  const Functions kernel = best(isa).functions();
  const std::size_t cached = std::min(kCacheWords * static_cast<std::size_t>(num_threads()), kMostCacheWords);
  Limits found{};
  found.cache_bytes = read_rate(kernel, std::vector<std::uint64_t>(cached, 1), 16);
  found.int8_ops = compute_rate(kernel, Arithmetic::kInt8);
  found.bf16_ops = compute_rate(kernel, Arithmetic::kBf16);
  found.f32_ops = compute_rate(kernel, Arithmetic::kF32);
  found.memory_bytes = read_rate(kernel, std::vector<std::uint64_t>(kMemoryWords, 1), 1);
  return found;
}

Limits settled(const Limits& before, const Limits& after) {
  return {(before.memory_bytes + after.memory_bytes) / 2, (before.cache_bytes + after.cache_bytes) / 2,
          std::max(before.int8_ops, after.int8_ops), std::max(before.bf16_ops, after.bf16_ops),
          std::max(before.f32_ops, after.f32_ops)};
}

}  // namespace trivium::limits
