// Where a random number falls in the running sum of the weights.
#include <algorithm>
#include <optional>
#include <type_traits>

#include "ops/sample/candidates.h"

namespace trivium::sample {
namespace {

// Of so few tokens the exact sums cost no more than the estimates.
constexpr std::size_t kFew = 1024;

// By estimated sums of each block, which are within `slack` of the total.
template <class T>
std::optional<std::size_t> guessed_place(const Candidates<T>& c, double random, const double* sums, double slack) {
  const std::size_t size = c.tokens.size;
  const std::size_t blocks = ceil_div(size, kBlock);
  double total = 0.0;
  for (std::size_t b = 0; b < blocks; ++b) total += sums[b];
  const double goal = random * total;
  const double margin = slack * total;
  double before = 0.0;
  std::size_t block = 0;
  while (block < blocks && !(before + sums[block] > goal)) before += sums[block++];
  if (block == blocks) return std::nullopt;
  const std::size_t first = block * kBlock;
  const std::size_t count = std::min(kBlock, size - first);
  double weights[kBlock];
  c.passes.guess(c.tokens.values + first, count, c.scale, weights);
  for (std::size_t i = 0; i < count; ++i) {
    const double reached = before + weights[i];
    if (reached > goal) {
      const bool is_clear = reached - goal > margin && (first + i == 0 || goal - before > margin);
      return is_clear ? std::optional(first + i) : std::nullopt;
    }
    before = reached;
  }
  return std::nullopt;
}

// By rough estimates, and by better ones where these do not tell.
template <class T>
std::optional<std::size_t> guessed_place(const Candidates<T>& c, double random) {
  const std::size_t size = c.tokens.size;
  double* sums = c.scratch.sums.at_least(ceil_div(size, kBlock));
  if constexpr (std::is_same_v<T, float>) {
    c.table.rough_sums(c.tokens.values, size, c.scale, kInfinity<float>, sums);
    if (const auto place = guessed_place(c, random, sums, kRoughSlack)) return place;
  }
  c.passes.guess_sums(c.tokens.values, size, c.scale, sums);
  return guessed_place(c, random, sums, slack_of(size));
}

// The contract's own sums.
template <class T>
std::size_t exact_place(const Candidates<T>& c, double random, const double* ends) {
  const std::size_t size = c.tokens.size;
  const std::size_t blocks = ceil_div(size, kBlock);
  const double goal = random * ends[blocks - 1];
  const auto block = static_cast<std::size_t>(std::upper_bound(ends, ends + blocks, goal) - ends);
  double weights[kBlock];
  const auto weigh = [&](std::size_t b) {
    const std::size_t first = b * kBlock;
    const std::size_t count = std::min(kBlock, size - first);
    c.passes.weigh(c.tokens.values + first, count, c.scale, nullptr, weights);
    return count;
  };
  if (block < blocks) {
    double running = block == 0 ? 0.0 : ends[block - 1];
    const std::size_t count = weigh(block);
    for (std::size_t i = 0; i < count; ++i) {
      running += weights[i];
      if (running > goal) return block * kBlock + i;
    }
  }
  // Rounding left none: the last token that weighs anything.
  for (std::size_t b = blocks; b-- > 0;) {
    for (std::size_t i = weigh(b); i-- > 0;) {
      if (weights[i] > 0.0) return b * kBlock + i;
    }
  }
  return size - 1;
}

}  // namespace

template <class T>
std::size_t draw(const Candidates<T>& c, double random, const double* ends) {
  const std::size_t size = c.tokens.size;
  if (ends == nullptr && size > kFew && size <= kMaxGuessed) {
    if (const auto place = guessed_place(c, random)) return *place;
  }
  if (ends == nullptr) {
    double* sums = c.scratch.sums.at_least(ceil_div(size, kBlock));
    c.passes.total(c.tokens.values, size, c.scale, sums);
    ends = sums;
  }
  return exact_place(c, random, ends);
}

template std::size_t draw(const Candidates<float>& c, double random, const double* ends);
template std::size_t draw(const Candidates<double>& c, double random, const double* ends);

}  // namespace trivium::sample
