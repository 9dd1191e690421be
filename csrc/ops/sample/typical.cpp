// Locally typical sampling (Meister et al. 2022, section 3): tokens whose surprise is near the expected one stay.
#include <cmath>
#include <optional>

#include "ops/sample/candidates.h"
#include "ops/sample/divide.h"

namespace trivium::sample {
namespace {

// A token's key is minus its distance from the expected surprise, in nats: greatest key first, then lower id, is the
// order of the contract. Eight buckets per nat: 32 nats, and the rest in the last one.
constexpr Buckets kFirstBuckets{0.0, 8.0};

// Tokens by their keys, for guessed_cut.
class KeyPool {
 public:
  KeyPool(const double* keys, const double* weights, std::size_t size, Scratch& scratch)
      : keys_(keys), weights_(weights), size_(size), scratch_(scratch) {}

  void sum(const Buckets& buckets, double* sums) const {
    std::fill_n(sums, kBuckets, 0.0);
    for (std::size_t i = 0; i < size_; ++i) sums[bucket_at(keys_[i], buckets)] += weights_[i];
  }

  std::size_t narrow(const Buckets& buckets, std::size_t bucket) {
    double* keys = scratch_.keys.members[next_].at_least(size_);
    double* weights = scratch_.key_weights[next_].at_least(size_);
    next_ = 1 - next_;
    std::size_t count = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      if (bucket_at(keys_[i], buckets) != bucket) continue;
      keys[count] = keys_[i];
      weights[count++] = weights_[i];
    }
    keys_ = keys;
    weights_ = weights;
    size_ = count;
    return count;
  }

  bool are_equal() const {
    return std::all_of(keys_, keys_ + size_, [&](double key) { return key == keys_[0]; }) &&
           std::all_of(weights_, weights_ + size_, [&](double weight) { return weight == weights_[0]; });
  }

  std::optional<Cut<double>> cut(const Goal& goal) const {
    if (are_equal()) return cut_equals(keys_[0], weights_[0], size_, goal);
    // Tokens above and below the expected surprise may share a key but not their weight, and their order by id is not
    // known here. Only where the whole group is kept does that not matter.
    Ranked<double>* order = scratch_.keys.ranked.at_least(size_);
    for (std::size_t i = 0; i < size_; ++i) order[i] = {keys_[i], static_cast<std::int32_t>(i)};
    std::sort(order, order + size_, [](const auto& a, const auto& b) { return a.value > b.value; });
    double* keys = scratch_.keys.members[next_].at_least(size_);
    double* weights = scratch_.key_weights[next_].at_least(size_);
    for (std::size_t i = 0; i < size_; ++i) {
      keys[i] = order[i].value;
      weights[i] = weights_[static_cast<std::size_t>(order[i].id)];
    }
    const std::optional<Cut<double>> cut = cut_sorted(keys, weights, size_, goal);
    const bool is_tied = cut && std::count(keys, keys + size_, cut->value) > 1;
    return is_tied ? std::nullopt : cut;
  }

 private:
  const double* keys_;
  const double* weights_;
  std::size_t size_;
  Scratch& scratch_;
  int next_ = 0;
};

// The contract's own order and sums. None: nothing is cut.
std::optional<Cut<double>> exact_cut(const Passes<double>& passes, Scratch& scratch, const Values<double>& keys,
                                     const double* weights, double goal) {
  for (std::size_t sorted = kFirstSorted;; sorted *= kSortedGrowth) {
    std::size_t count = sorted;
    const Ranked<double>* order = ranked(passes, scratch.keys, keys, count);
    double running = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      running += weights[order[i].id];
      if (running < goal) continue;
      std::size_t first = i;
      while (first > 0 && order[first - 1].value == order[i].value) --first;
      return Cut<double>{order[i].value, i - first + 1};
    }
    if (sorted >= keys.size) return std::nullopt;
  }
}

// Replaces (x - greatest) / temperature by the key, and returns the exact sum of the weights.
double make_keys(double* keys, const double* weights, std::size_t size) {
  double total = 0.0;
  for (std::size_t i = 0; i < size; ++i) total += weights[i];
  const double log_total = std::log(total);
  double negative_entropy = 0.0;
  for (std::size_t i = 0; i < size; ++i) {
    keys[i] -= log_total;
    if (weights[i] > 0.0) negative_entropy += (weights[i] / total) * keys[i];
  }
  for (std::size_t i = 0; i < size; ++i) keys[i] = -std::fabs(keys[i] - negative_entropy);
  return total;
}

}  // namespace

template <class T>
void keep_typical(Candidates<T>& c, double typical_p) {
  const std::size_t size = c.tokens.size;
  double* weights = c.scratch.weights.at_least(size);
  double* keys = c.scratch.scaled.at_least(size);
  c.passes.weigh(c.tokens.values, size, c.scale, keys, weights);
  const double total = make_keys(keys, weights, size);
  bool has_nan = false;
  double* maxima = c.scratch.keys.maxima.at_least(num_maxima(size));
  c.table.f64.greatest(keys, size, maxima, &has_nan);
  const Values<double> all{keys, nullptr, size, maxima};

  std::optional<Cut<double>> cut;
  if (size > kFew && size <= kMaxGuessed) {
    KeyPool pool(keys, weights, size, c.scratch);
    cut = guessed_cut<double>(pool, kFirstBuckets, typical_p, slack_of(size), {0.0, 0.0},
                              c.scratch.sums.at_least(kBuckets));
  }
  if (!cut) cut = exact_cut(c.table.f64, c.scratch, all, weights, typical_p * total);
  if (!cut) return;
  double* kept = c.scratch.keys.head.at_least(size + kOverrun);
  std::int32_t* places = c.scratch.keys.head_ids.at_least(size + kOverrun);
  std::size_t count = c.table.f64.collect(all, cut->value, kInfinity<double>, kept, places);
  count = apply_cut({kept, places, count, nullptr}, *cut, kept, places);
  T* values = c.next_values();
  std::int32_t* ids = c.next_ids();
  for (std::size_t i = 0; i < count; ++i) {
    const auto place = static_cast<std::size_t>(places[i]);
    values[i] = c.tokens.values[place];
    ids[i] = c.id_at(place);
  }
  c.take(count);
}

template void keep_typical(Candidates<float>& candidates, double typical_p);
template void keep_typical(Candidates<double>& candidates, double typical_p);

}  // namespace trivium::sample
