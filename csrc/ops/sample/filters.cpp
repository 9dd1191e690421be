// The filters of the contract but for typical.
#include <cmath>
#include <optional>
#include <type_traits>

#include "ops/sample/candidates.h"
#include "ops/sample/divide.h"

namespace trivium::sample {
namespace {

// Of all tokens, eight buckets per halving of the weight: 32 halvings, and the rest in the last bucket.
constexpr Buckets kAllBuckets{0.0, 8.0};

// So far below the greatest value are the tokens whose weights are looked at one by one, if these are few: 11 nats.
constexpr double kNearPowers = 16.0;
constexpr Buckets kNearBuckets{0.0, static_cast<double>(kBuckets) / kNearPowers};
constexpr std::size_t kMostNear = 8192;

// The T nearest to `value`, as a finite one.
template <class T>
T rounded(double value) {
  constexpr double most = static_cast<double>(std::numeric_limits<T>::max());
  return static_cast<T>(std::clamp(value, -most, most));
}

// As Passes::spread computes them.
template <class T>
double power_of(T x, const Scale& scale) {
  return std::max((static_cast<double>(x) - scale.greatest) * scale.rate(), kLowestPower);
}

// The least finite value for which `holds`, which is false up to some value and true from there on. Steps away from
// `guess` until that value lies between, then halves.
template <class T, class Fn>
T first_that(double guess, Fn holds) {
  T low = rounded<T>(guess);
  T high = low;
  T step = std::max(std::fabs(low) * static_cast<T>(1e-6), static_cast<T>(1e-30));
  for (; !holds(high); step *= 4) {
    low = high;
    high = std::min(high + step, std::numeric_limits<T>::max());
  }
  for (; holds(low); step *= 4) {
    if (low == kLowestFinite<T>) return low;
    high = low;
    low = std::max(low - step, kLowestFinite<T>);
  }
  for (;;) {
    const T middle = (low < 0) == (high < 0) ? low + (high - low) / 2 : (low + high) / 2;
    if (!(low < middle && middle < high)) return high;
    (holds(middle) ? high : low) = middle;
  }
}

// Tokens by their values, for guessed_cut.
template <class T>
class ValuePool {
 public:
  ValuePool(const Candidates<T>& candidates, const Values<T>& members) : c_(candidates), members_(members) {}

  void sum(const Buckets& buckets, double* sums) const {
    c_.passes.spread(members_.values, members_.size, c_.scale, buckets, sums);
  }

  std::size_t narrow(const Buckets& buckets, std::size_t bucket) {
    const T low = bucket + 1 == kBuckets ? kLowestFinite<T> : first_of(buckets, bucket);
    const T high = bucket == 0 ? kInfinity<T> : std::nextafter(first_of(buckets, bucket - 1), -kInfinity<T>);
    values_ = c_.lists.members[next_].at_least(members_.size + kOverrun);
    next_ = 1 - next_;
    members_ = {values_, nullptr, c_.passes.collect(members_, low, high, values_, nullptr), nullptr};
    return members_.size;
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
  // The least value of the bucket, or of one above where it has none.
  T first_of(const Buckets& buckets, std::size_t bucket) const {
    const double end = buckets.top - static_cast<double>(bucket + 1) / buckets.per_power;
    return first_that<T>(c_.scale.greatest + end / c_.scale.rate(),
                         [&](T x) { return bucket_at(power_of(x, c_.scale), buckets) <= bucket; });
  }

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

// Keeps what the cut keeps of `from`, which holds all tokens above it.
template <class T>
void keep(Candidates<T>& c, const Values<T>& from, Cut<T> cut) {
  T* values = c.next_values();
  std::int32_t* ids = c.next_ids();
  std::size_t size = c.passes.collect(from, cut.value, kInfinity<T>, values, ids);
  if (c.passes.count_equal({values, nullptr, size, nullptr}, cut.value) > cut.ties) {
    size = apply_cut({values, ids, size, nullptr}, cut, values, ids);
  }
  c.take(size);
}

// Where few tokens hold nearly all weight, the rest need only be summed, and roughly. False: no cut was found.
bool keep_top_p_of_near(Candidates<float>& c, double top_p) {
  const auto low = rounded<float>(c.scale.greatest - kNearPowers / c.scale.rate());
  const std::size_t groups = num_maxima(c.tokens.size);
  if (c.tokens.maxima == nullptr) return false;
  if (c.passes.count_above({c.tokens.maxima, nullptr, groups, nullptr}, low) > kMostNear / 2) return false;
  float* values = c.lists.head.at_least(c.tokens.size + kOverrun);
  std::int32_t* ids = c.lists.head_ids.at_least(c.tokens.size + kOverrun);
  const std::size_t size = c.passes.collect(c.tokens, low, kInfinity<float>, values, ids);
  if (size > kMostNear) return false;
  const std::size_t blocks = ceil_div(c.tokens.size, kBlock);
  double* sums = c.scratch.sums.at_least(std::max(blocks, kBuckets));
  c.table.rough_sums(c.tokens.values, c.tokens.size, c.scale, low, sums);
  double rest = 0.0;
  for (std::size_t b = 0; b < blocks; ++b) rest += sums[b];
  const Values<float> near{values, ids, size, nullptr};
  ValuePool<float> pool(c, near);
  // As for kRoughSlack: the |d| of the rest, weighted, average to 14.6 - log(rest) at most. That is below 45 unless the
  // rest is below 1e-13; so it is wrong by (45 + 9) * 2^-24 < kRoughSlack of itself.
  const auto cut =
      guessed_cut<float>(pool, kNearBuckets, top_p, slack_of(c.tokens.size), {rest, kRoughSlack * rest}, sums);
  if (cut) keep(c, near, *cut);
  return cut.has_value();
}

template <class T>
std::optional<Cut<T>> guessed_top_p(const Candidates<T>& c, double top_p) {
  ValuePool<T> pool(c, c.tokens);
  return guessed_cut<T>(pool, kAllBuckets, top_p, slack_of(c.tokens.size), {0.0, 0.0},
                        c.scratch.sums.at_least(kBuckets));
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
  const bool is_guessed = c.tokens.size > kFew && c.tokens.size <= kMaxGuessed;
  if constexpr (std::is_same_v<T, float>) {
    if (is_guessed && keep_top_p_of_near(c, top_p)) return;
  }
  std::optional<Cut<T>> cut;
  if (is_guessed) cut = guessed_top_p(c, top_p);
  if (!cut) cut = exact_top_p(c, top_p);
  if (cut) keep(c, c.tokens, *cut);
}

template <class T>
void keep_min_p(Candidates<T>& c, double min_p) {
  // Everything that may weigh enough, and a little more; then by exact weights.
  T* values = c.next_values();
  std::int32_t* ids = c.next_ids();
  const double power = std::max(std::log2(min_p) - 1e-9, kLowestPower);
  const T low =
      first_that<T>(c.scale.greatest + power / c.scale.rate(), [&](T x) { return power_of(x, c.scale) >= power; });
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
