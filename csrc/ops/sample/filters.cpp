// The filters of the contract but for typical.
#include <cmath>
#include <optional>

#include "ops/sample/candidates.h"
#include "ops/sample/divide.h"

namespace trivium::sample {
namespace {

// Sixteen buckets per halving of the weight: 16 halvings, and the rest in the last bucket.
constexpr Buckets kFirstBuckets{0.0, 16.0};

// The greatest T at or below `value`, at least the lowest finite one; and the least at or above.
template <class T>
T down_to(double value) {
  if (value <= static_cast<double>(kLowestFinite<T>)) return kLowestFinite<T>;
  const T near = static_cast<T>(value);
  return static_cast<double>(near) > value ? std::nextafter(near, -kInfinity<T>) : near;
}
template <class T>
T up_to(double value) {
  return -down_to<T>(-value);
}

// Below every value whose power is at least `power`, and not far below; above every one whose power is at most that.
// The error of the powers is some 2^-51 of what is subtracted.
template <class T>
T below_power(const Scale& scale, double power) {
  const double distance = power / scale.rate();
  return down_to<T>(scale.greatest + distance - 1e-9 * (std::fabs(scale.greatest) + std::fabs(distance)));
}
template <class T>
T above_power(const Scale& scale, double power) {
  const double distance = power / scale.rate();
  return up_to<T>(scale.greatest + distance + 1e-9 * (std::fabs(scale.greatest) + std::fabs(distance)));
}

// Tokens by their values, for guessed_cut.
template <class T>
class ValuePool {
 public:
  explicit ValuePool(const Candidates<T>& candidates) : c_(candidates), members_(candidates.tokens) {}

  void sum(const Buckets& buckets, double* sums) const {
    c_.passes.spread(members_.values, members_.size, c_.scale, buckets, sums);
  }

  std::size_t narrow(const Buckets& buckets, std::size_t bucket) {
    const double first = static_cast<double>(bucket) / buckets.per_power;
    const double last = static_cast<double>(bucket + 1) / buckets.per_power;
    const T low = bucket + 1 == kBuckets ? kLowestFinite<T> : below_power<T>(c_.scale, buckets.top - last);
    const T high = bucket == 0 ? kInfinity<T> : above_power<T>(c_.scale, buckets.top - first);
    T* near = c_.lists.members[next_].at_least(members_.size + kOverrun);
    next_ = 1 - next_;
    const std::size_t size = c_.passes.collect(members_, low, high, near, nullptr);
    std::size_t count = 0;
    for (std::size_t i = 0; i < size; ++i) {
      // As Passes::spread computes it.
      const double power = std::max((static_cast<double>(near[i]) - c_.scale.greatest) * c_.scale.rate(), kLowestPower);
      if (bucket_at(power, buckets) == bucket) near[count++] = near[i];
    }
    values_ = near;
    members_ = {near, nullptr, count, nullptr};
    return count;
  }

  bool are_equal() const {
    return std::all_of(values_, values_ + members_.size, [&](T x) { return x == values_[0]; });
  }

  std::optional<Cut<T>> cut(const Goal& goal) const {
    double* weights = c_.scratch.weights.at_least(members_.size);
    if (are_equal()) {
      c_.passes.guess(values_, 1, c_.scale, weights);
      return cut_equals(values_[0], weights[0], members_.size, goal);
    }
    std::sort(values_, values_ + members_.size, [](T a, T b) { return a > b; });
    c_.passes.guess(values_, members_.size, c_.scale, weights);
    return cut_sorted(values_, weights, members_.size, goal);
  }

 private:
  const Candidates<T>& c_;
  Values<T> members_;
  T* values_ = nullptr;  // of the members, once narrowed
  int next_ = 0;
};

// The contract's own sums. None: nothing is cut.
template <class T>
std::optional<Cut<T>> exact_top_p(const Candidates<T>& c, double top_p) {
  double* ends = c.scratch.sums.at_least(ceil_div(c.tokens.size, kBlock));
  const double goal = top_p * c.passes.total(c.tokens.values, c.tokens.size, c.scale, ends);
  for (std::size_t count = kFirstSorted;; count *= kSortedGrowth) {
    const Values<T> head = leading(c.passes, c.lists, c.tokens, count);
    T* order = c.lists.members[0].at_least(head.size);
    std::copy_n(head.values, head.size, order);
    std::sort(order, order + head.size, [](T a, T b) { return a > b; });
    double* weights = c.scratch.weights.at_least(head.size);
    c.passes.weigh(order, head.size, c.scale, nullptr, weights);
    double running = 0.0;
    for (std::size_t i = 0; i < head.size; ++i) {
      running += weights[i];
      if (running >= goal) return cut_at(order, i);
    }
    if (count >= c.tokens.size) return std::nullopt;
  }
}

template <class T>
void keep(Candidates<T>& c, Cut<T> cut) {
  T* values = c.next_values();
  std::int32_t* ids = c.next_ids();
  std::size_t size = c.passes.collect(c.tokens, cut.value, kInfinity<T>, values, ids);
  if (c.passes.count_equal({values, nullptr, size, nullptr}, cut.value) > cut.ties) {
    size = apply_cut({values, ids, size, nullptr}, cut, values, ids);
  }
  c.take(size);
}

}  // namespace

template <class T>
void keep_top_k(Candidates<T>& c, std::size_t top_k) {
  if (top_k >= c.tokens.size) return;
  const Values<T> head = leading(c.passes, c.lists, c.tokens, top_k);
  if (head.size < top_k) return;  // the others are -inf
  T* order = c.lists.members[0].at_least(head.size);
  std::copy_n(head.values, head.size, order);
  std::nth_element(order, order + (top_k - 1), order + head.size, [](T a, T b) { return a > b; });
  const T value = order[top_k - 1];
  const auto above =
      static_cast<std::size_t>(std::count_if(order, order + (top_k - 1), [value](T x) { return x > value; }));
  T* values = c.next_values();
  c.take(apply_cut(head, {value, top_k - above}, values, c.next_ids()));
}

template <class T>
void keep_top_p(Candidates<T>& c, double top_p) {
  std::optional<Cut<T>> cut;
  if (c.tokens.size > kFew && c.tokens.size <= kMaxGuessed) {
    ValuePool<T> pool(c);
    cut = guessed_cut<T>(pool, kFirstBuckets, top_p, c.scratch.sums.at_least(kBuckets));
  }
  if (!cut) cut = exact_top_p(c, top_p);
  if (cut) keep(c, *cut);
}

template <class T>
void keep_min_p(Candidates<T>& c, double min_p) {
  // Everything that may weigh enough, and a little more; then by exact weights.
  T* values = c.next_values();
  std::int32_t* ids = c.next_ids();
  const T low = below_power<T>(c.scale, std::log2(min_p) - 1e-9);
  const std::size_t near = c.passes.collect(c.tokens, low, kInfinity<T>, values, ids);
  double* weights = c.scratch.weights.at_least(near);
  c.passes.weigh(values, near, c.scale, nullptr, weights);
  std::size_t count = 0;
  for (std::size_t i = 0; i < near; ++i) {
    if (!(weights[i] >= min_p)) continue;
    values[count] = values[i];
    ids[count++] = ids[i];
  }
  c.take(count);
}

template void keep_top_k(Candidates<float>& candidates, std::size_t top_k);
template void keep_top_k(Candidates<double>& candidates, std::size_t top_k);
template void keep_top_p(Candidates<float>& candidates, double top_p);
template void keep_top_p(Candidates<double>& candidates, double top_p);
template void keep_min_p(Candidates<float>& candidates, double min_p);
template void keep_min_p(Candidates<double>& candidates, double min_p);

}  // namespace trivium::sample
