// Rates of every listed GEMM kernel on cold weights, beside what this machine can do at most, read in the same process.
//
// Prints one line per kernel and shape: microseconds (median), GB/s of weights, GFLOP/s, and both as a share of the
// stream and of the multiply-add rate. Shares can pass 100 % while a part of the weights is still in L3.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/parallel.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/pack.h"

namespace trivium::gemm {
namespace {

constexpr std::size_t kColdFloats = std::size_t{48} << 20;  // 192 MiB of copies, larger than most L3 caches

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

// Bytes per second of reading `values` once with all threads.
double stream_rate(const std::vector<float>& values) {
  std::vector<float> sums(values.size() / 4096);
  const double seconds = median_s(5, [&](std::size_t) {
    parallel_for(sums.size(), 256, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        float lanes[32] = {};  // 8 of 16 SSE registers
        for (std::size_t j = 0; j < 4096; j += 32) {
          for (std::size_t l = 0; l < 32; ++l) lanes[l] += values[i * 4096 + j + l];
        }
        for (const float lane : lanes) sums[i] += lane;
      }
    });
  });
  return static_cast<double>(values.size()) * sizeof(float) / seconds;
}

// Multiply-add rate with everything in L1: a 12-row product against one small panel, all threads.
double peak_rate(const Kernel& kernel) {
  constexpr std::size_t kDepth = 64;
  const std::vector<float> a(12 * kDepth, 1.0F);
  const std::vector<float> b(kPanelWidth * kDepth, 1.0F);
  constexpr std::size_t kTasks = 4096;
  const double seconds = median_s(5, [&](std::size_t) {
    parallel_for(kTasks, 64, [&](std::size_t begin, std::size_t end) {
      float out[12 * kPanelWidth];
      for (std::size_t i = begin; i < end; ++i) {
        kernel.run(
            {{a.data(), 12, kDepth, kDepth}, b.data(), 0, kPanelWidth, {out, 12, kPanelWidth, kPanelWidth}, false});
      }
    });
  });
  return 2.0 * 12 * kPanelWidth * kDepth * kTasks / seconds;
}

void run_shape(const Kernel& kernel, std::vector<float>& cold, std::size_t cols, std::size_t depth, double stream,
               double peak) {
  const std::size_t size = packed_size(cols, depth);
  const std::size_t copies = std::max<std::size_t>(1, cold.size() / size);
  for (const std::size_t rows : {1, 2, 4, 8, 16, 64, 256}) {
    const std::vector<float> a(rows * depth, 0.5F);
    std::vector<float> out(rows * cols);
    const double work = 2.0 * static_cast<double>(rows * cols * depth);
    const int rounds = std::clamp(static_cast<int>(0.2 * peak / work), 5, 200);
    const double seconds = median_s(rounds, [&](std::size_t i) {
      gemm_packed(kernel, {a.data(), rows, depth, depth}, cold.data() + i % copies * size,
                  {out.data(), rows, cols, cols});
    });
    const double bytes = static_cast<double>(size) * sizeof(float) / seconds;
    std::printf("%-18s N=%-6zu K=%-5zu M=%-4zu %9.1f us  %6.1f GB/s (%3.0f %%)  %7.1f GFLOP/s (%3.0f %%)\n",
                kernel.name, cols, depth, rows, seconds * 1e6, bytes * 1e-9, 100 * bytes / stream,
                work / seconds * 1e-9, 100 * work / seconds / peak);
  }
}

void run(int threads) {
  set_num_threads(threads);
  std::vector<float> cold(kColdFloats, 0.001F);
  const double stream = stream_rate(cold);
  std::printf("%d threads, stream %.1f GB/s\n", threads, stream * 1e-9);
  for (const Kernel& kernel : all()) {
    if (!includes(active_isa(), kernel.isa) || kernel.isa == Isa::kScalar) continue;
    const double peak = peak_rate(kernel);
    std::printf("%s: multiply-adds at %.1f GFLOP/s\n", kernel.name, peak * 1e-9);
    run_shape(kernel, cold, 576, 576, stream, peak);
    run_shape(kernel, cold, 3072, 576, stream, peak);
    run_shape(kernel, cold, 576, 1536, stream, peak);
    run_shape(kernel, cold, 1536, 8960, stream, peak);
  }
}

}  // namespace
}  // namespace trivium::gemm

int main(int argc, char** argv) {
  trivium::gemm::run(argc > 1 ? std::atoi(argv[1]) : trivium::usable_cores());
  return 0;
}
