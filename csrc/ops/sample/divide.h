// Where a running sum of weights down an order reaches a goal, without sorting: the order is divided into buckets, the
// bucket in which that happens into buckets again, and only what is then left is sorted. Included by plain files.
//
//   buckets    0        1        2 ...                    255
//              |--------|--------|--- goal falls here ---|…
//                                 0 1 2 3 …           255
//
// Everything here is an estimate: a goal that is closer to a token's edge than the margin is left to the exact sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "ops/sample/candidates.h"

namespace trivium::sample {

// So few tokens are sorted and weighed exactly; more are divided first.
inline constexpr std::size_t kFew = 256;

// How many tokens the exact ways sort at first, and how many times more each time that was not enough.
inline constexpr std::size_t kFirstSorted = 1024;
inline constexpr std::size_t kSortedGrowth = 8;

struct Goal {
  double before;  // sum of everything above what is looked at
  double goal;
  double margin;

  bool is_clear(double below, double reached) const {
    return std::fabs(reached - goal) > margin && (below == 0.0 || std::fabs(below - goal) > margin);
  }
};

// The bucket, divided into kBuckets of its own. The last one has no end: it goes on in steps of an eighth, and ends in
// a last bucket again.
inline Buckets inside(const Buckets& buckets, std::size_t bucket) {
  const double top = buckets.top - static_cast<double>(bucket) / buckets.per_power;
  return {top, bucket + 1 == kBuckets ? 8.0 : buckets.per_power * static_cast<double>(kBuckets)};
}

inline std::size_t bucket_at(double power, const Buckets& buckets) {
  const double place = (buckets.top - power) * buckets.per_power;
  return static_cast<std::size_t>(std::clamp(place, 0.0, static_cast<double>(kBuckets - 1)));
}

// Of `order`, all above order[last] and its equals up to there.
template <class T>
Cut<T> cut_at(const T* order, std::size_t last) {
  std::size_t first = last;
  while (first > 0 && order[first - 1] == order[last]) --first;
  return {order[last], last - first + 1};
}

// `count` equal members of the weight `weight` come next: how many of them does it take?
template <class T>
std::optional<Cut<T>> cut_equals(T value, double weight, std::size_t count, const Goal& goal) {
  const double needed = std::ceil((goal.goal - goal.before) / weight);
  const double ties = std::clamp(needed, 1.0, static_cast<double>(count));
  if (!goal.is_clear(goal.before + (ties - 1.0) * weight, goal.before + ties * weight)) return std::nullopt;
  return Cut<T>{value, static_cast<std::size_t>(ties)};
}

// The same for members in order, each with its weight.
template <class T>
std::optional<Cut<T>> cut_sorted(const T* order, const double* weights, std::size_t count, const Goal& goal) {
  double below = goal.before;
  for (std::size_t i = 0; i < count; ++i) {
    const double reached = below + weights[i];
    if (reached >= goal.goal) return goal.is_clear(below, reached) ? std::optional(cut_at(order, i)) : std::nullopt;
    below = reached;
  }
  return std::nullopt;
}

// What lies below all members, and by how much that may be wrong.
struct Rest {
  double weight;
  double error;
};

// Cuts where the sum reaches `share` of all; sums may be wrong by `slack` of all. A Pool holds members, all at first:
//   void sum(const Buckets&, double* sums)             sums of the weights of each bucket
//   size_t narrow(const Buckets&, size_t bucket)       keeps the members of one bucket, returns how many
//   bool are_equal()                                   whether all members have one value
//   optional<Cut> cut(const Goal&)                     by cut_equals, or cut_sorted
template <class T, class Pool>
std::optional<Cut<T>> guessed_cut(Pool& pool, Buckets buckets, double share, double slack, const Rest& rest,
                                  double* sums) {
  constexpr std::size_t kFewMembers = 64;
  constexpr int kMaxDivisions = 4;
  Goal goal{0.0, 0.0, 0.0};
  for (int division = 0;; ++division) {
    pool.sum(buckets, sums);
    if (division == 0) {
      double total = rest.weight;
      for (std::size_t b = 0; b < kBuckets; ++b) total += sums[b];
      goal = {0.0, share * total, slack * total + rest.error};
    }
    std::size_t bucket = 0;
    while (bucket < kBuckets && goal.before + sums[bucket] < goal.goal) goal.before += sums[bucket++];
    if (bucket == kBuckets) return std::nullopt;
    const std::size_t count = pool.narrow(buckets, bucket);
    if (count == 0) return std::nullopt;
    if (count <= kFewMembers || division == kMaxDivisions || pool.are_equal()) return pool.cut(goal);
    buckets = inside(buckets, bucket);
  }
}

}  // namespace trivium::sample
