// What the sampler asks of an instruction set: passes over a row, each one loop, every one with a scalar version.
//
// Two kinds of arithmetic. The contract's own (`weigh`, `total`) has the same bits at every level: IEEE double
// operations, each rounded, no fused multiply-add, sums from left to right. Estimates (the others) are several times
// faster, may differ between levels, and never decide a close call: see slack_of and kRoughSlack.
//
// Letters: N values of one row, T float or double. Values may be -inf (weight 0), not NaN but for `greatest`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/isa.h"

namespace trivium::sample {

// Values per chunk, and greatest values that are kept of a chunk, so that later passes can skip it:
//
//   x        chunk c is x[128 c] … x[128 c + 127], missing ones count as -inf
//   maxima   [16 c + j] = greatest of x[128 c + 16 i + j], i = 0 … 7
inline constexpr std::size_t kChunk = 128;
inline constexpr std::size_t kMaximaPerChunk = 16;

// Values per partial sum.
inline constexpr std::size_t kBlock = 256;

// Classes that `spread` divides weights into.
inline constexpr std::size_t kBuckets = 256;

// Elements past the last one that an output of `collect` or `pick` must have room for: vectors are stored whole.
inline constexpr std::size_t kOverrun = 16;

// How far an estimated sum of weights, or a difference of two, may be from the exact one, as a share of all weights.
// The exact sum of N weights is within N * 2^-53 of the true one; an estimated one is within 2e-12, which bounds the
// error of estimated weights (tests/test_sample_passes.cpp) and of adding them in blocks.
constexpr double slack_of(std::size_t size) { return 2.0 * (static_cast<double>(size) * 0x1p-53 + 2e-12); }

// Rows of more are left to the exact sums.
inline constexpr std::size_t kMaxGuessed = std::size_t{1} << 21;

// The same for sums of `rough_sums`. With d = (x - greatest) / temperature and u = 2^-24, a weight is wrong by |d| u
// for rounding x - greatest, and by 4 u for the rest. Weighted by themselves, the |d| average to the entropy of the
// distribution less log(sum of the weights), so to log(2^21) < 14.6 at most: sums are within 14.6 u + 4 u, and chains
// of eight additions add 7 u. A difference of two is within twice that: 52 u < 3.2e-6.
inline constexpr double kRoughSlack = 4e-6;

// Exponents of estimates are clamped here; 2^21 such weights are below any rounding.
inline constexpr double kLowestPower = -1000.0;
inline constexpr double kLowestRoughPower = -120.0;

inline constexpr double kLog2E = 1.4426950408889634;

// The weight of x is exp((x - greatest) / temperature); estimates take 2^((x - greatest) * rate) for it.
struct Scale {
  double greatest;     // at least every value, finite
  double temperature;  // > 0

  double rate() const { return kLog2E / temperature; }
};

// Bucket of x: (top - power) * per_power, cut to whole numbers 0 … kBuckets - 1, power = max((x - greatest) * rate,
// kLowestPower), every operation rounded. Never decreases when x does, so buckets are runs of rank order.
struct Buckets {
  double top;
  double per_power;
};

// Values in ascending order of ids; ids[i] is the id of values[i], or i itself where ids is null. `maxima` may be null;
// ids must be readable up to kOverrun past the last.
template <class T>
struct Values {
  const T* values;
  const std::int32_t* ids;
  std::size_t size;
  const T* maxima;
};

template <class T>
struct Passes {
  // The greatest value, -inf if N is 0. Writes maxima [16 * ceil(N / 128)]; says whether a value is NaN, and then
  // neither result nor maxima mean anything.
  T (*greatest)(const T* x, std::size_t size, T* maxima, bool* has_nan);

  // Place of the first value that equals `wanted`; N if none does.
  std::size_t (*find)(const T* x, std::size_t size, T wanted);

  // Copies the values in [low, high] and their ids, in order, and returns how many. low must not be -inf, `ids` may be
  // null. Skips chunks by x.maxima where given.
  std::size_t (*collect)(const Values<T>& x, T low, T high, T* values, std::int32_t* ids);

  // Copies the values whose bit is set (bit i % 32 of word i / 32) and their ids, in order; returns how many.
  std::size_t (*pick)(const T* x, std::size_t size, const std::uint32_t* bits, T* values, std::int32_t* ids);

  // Numbers of values above `bound`; equal to `wanted`, which must not be -inf. Skip chunks by x.maxima where given.
  std::size_t (*count_above)(const Values<T>& x, T bound);
  std::size_t (*count_equal)(const Values<T>& x, T wanted);

  // The contract's weight of each value; and (x - greatest) / temperature where `scaled` is not null.
  void (*weigh)(const T* x, std::size_t size, const Scale& scale, double* scaled, double* weights);

  // The contract's sum of all weights, and in ends [ceil(N / kBlock)] the running sum behind each block.
  double (*total)(const T* x, std::size_t size, const Scale& scale, double* ends);

  // Estimated weights, within 1.5e-12; and estimated sums of each block.
  void (*guess)(const T* x, std::size_t size, const Scale& scale, double* weights);
  void (*guess_sums)(const T* x, std::size_t size, const Scale& scale, double* sums);

  // Estimated sums of the weights of each bucket, [kBuckets].
  void (*spread)(const T* x, std::size_t size, const Scale& scale, const Buckets& buckets, double* sums);
};

// The passes of one level.
struct PassTable {
  Passes<float> f32;
  Passes<double> f64;

  // Rough estimates of the sums of each block, of the values below `limit`. Twice as fast as guess_sums.
  void (*rough_sums)(const float* x, std::size_t size, const Scale& scale, float limit, double* sums);
};

struct Kernel {
  Isa isa;
  const char* name;
  const PassTable& (*table)();
};

// Every compiled level, strongest first, scalar last.
std::span<const Kernel> all();

// The strongest that runs where `isa` runs.
const Kernel& best(Isa isa);

}  // namespace trivium::sample
