#include "program/adapters.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace trivium::program {
namespace {

std::int32_t slot_of(const Step& step, std::size_t request) {
  return step.adapters == nullptr ? -1 : step.adapters[request];
}

}  // namespace

Adapters::Adapters(std::size_t max_rows, std::size_t max_sites, std::vector<AdaptedProduct> products)
    : max_rows_(max_rows), max_sites_(max_sites), products_(std::move(products)), is_touched_(products_.size()) {
  for (RowOrder* rows : {&tokens_, &wanted_}) {
    rows->order.reserve(max_rows);
    rows->groups.reserve(max_rows);
  }
  requests_.reserve(max_rows);
}

void Adapters::load(std::size_t slot, PreparedAdapter factors) {
  TRIV_CHECK(slot < kMaxAdapters, "adapters: slot %zu; there are %zu", slot, kMaxAdapters);
  TRIV_CHECK(slot >= slots_.size() || slots_[slot] == nullptr, "adapters: slot %zu is taken; unload it first", slot);
  TRIV_CHECK(factors != nullptr && factors->size() == products_.size() && !factors->empty(),
             "adapters: factors of %zu products, not of %zu", factors == nullptr ? 0 : factors->size(),
             products_.size());
  std::size_t max_rank = max_rank_;
  for (const adapter::Factors& each : *factors) max_rank = std::max(max_rank, adapter::padded_rank(each.rank));
  hidden_.resize(max_rows_ * max_sites_ * max_rank);
  max_rank_ = max_rank;
  if (slot >= slots_.size()) slots_.resize(slot + 1);
  slots_[slot] = std::move(factors);
}

void Adapters::unload(std::size_t slot) {
  TRIV_CHECK(slot < slots_.size() && slots_[slot] != nullptr, "adapters: slot %zu holds none", slot);
  slots_[slot] = nullptr;
}

void Adapters::plan(const Step& step) {
  requests_.clear();
  for (std::size_t b = 0; b < step.num_requests; ++b) requests_.push_back(b);
  std::sort(requests_.begin(), requests_.end(), [&](std::size_t one, std::size_t other) {
    return std::pair(slot_of(step, one), one) < std::pair(slot_of(step, other), other);
  });
  std::fill(is_touched_.begin(), is_touched_.end(), std::uint8_t{0});
  for (const std::size_t b : requests_) {
    if (slot_of(step, b) < 0) continue;
    const std::vector<adapter::Factors>& factors = *slots_[static_cast<std::size_t>(slot_of(step, b))];
    for (std::size_t p = 0; p < factors.size(); ++p) {
      if (factors[p].rank > 0) is_touched_[p] = 1;
    }
  }
  sort(step, Rows::kTokens, tokens_);
  sort(step, Rows::kWanted, wanted_);
}

// Rows of a request follow each other, among the tokens as among the wanted rows, which ascend.
void Adapters::sort(const Step& step, Rows rows, RowOrder& found) const {
  const std::int32_t* wanted_end = step.logit_rows + step.num_rows;
  const auto row_of = [&](std::int32_t token) {
    if (rows == Rows::kTokens) return token;
    return static_cast<std::int32_t>(std::lower_bound(step.logit_rows, wanted_end, token) - step.logit_rows);
  };
  found.order.clear();
  found.groups.clear();
  for (const std::size_t b : requests_) {
    const std::size_t begin = found.order.size();
    const std::int32_t end = row_of(step.starts[b + 1]);
    for (std::int32_t row = row_of(step.starts[b]); row < end; ++row) {
      found.order.push_back(static_cast<std::uint32_t>(row));
    }
    const std::int32_t slot = slot_of(step, b);
    const adapter::Factors* factors = slot < 0 ? nullptr : slots_[static_cast<std::size_t>(slot)]->data();
    if (!found.groups.empty() && found.groups.back().factors == factors) {
      found.groups.back().end = found.order.size();
    } else {
      found.groups.push_back({factors, begin, found.order.size()});
    }
  }
}

bool Adapters::touches(std::span<const adapter::Site> sites) const {
  return std::any_of(sites.begin(), sites.end(),
                     [&](const adapter::Site& site) { return is_touched_[site.product] != 0; });
}

}  // namespace trivium::program
