// The sampling contract once more, token by token: slow, obvious, the judge of csrc/ops/sample. Written from the text
// in trivium/sampling/pipeline.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "ops/sample/philox.h"
#include "ops/sample/sample.h"

namespace trivium::sample::oracle {

using Tokens = std::map<std::int32_t, double>;  // id to value, ids ascending
using Ids = std::vector<std::int32_t>;

struct Report {
  double logprob = 0.0;
  std::int64_t rank = 0;
  Ids top_ids;
  std::vector<double> top_logprobs;
};

struct Answer {
  explicit Answer(Error what = Error::kNone) : error(what) {}

  Error error;
  std::int32_t token = -1;
  std::optional<Report> report;
  double chosen = 0.0;
};

inline double weight_of(double x) {
  if (x < -708.0) return 0.0;
  const double n = std::nearbyint(x * 1.4426950408889634);
  const double r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  double factorial = 479001600.0;
  double p = 1.0 / factorial * r;
  for (int k = 11; k >= 1; --k) {
    factorial /= k + 1;
    p = (p + 1.0 / factorial) * r;
  }
  return std::ldexp(p + 1.0, static_cast<int>(n));
}

inline double left_to_right(const Tokens& values) {
  double total = 0.0;
  for (const auto& [id, value] : values) total += value;
  return total;
}

// Ids by rank: greater value first, then lower id.
inline Ids rank_order(const Tokens& y) {
  Ids order;
  for (const auto& [id, value] : y) order.push_back(id);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return y.at(a) > y.at(b); });
  return order;
}

// The shortest beginning of `order` whose weights reach the goal.
inline Ids until(const Ids& order, const Tokens& w, double goal) {
  Ids kept;
  double before = 0.0;
  for (const std::int32_t id : order) {
    if (!kept.empty() && !(before < goal)) break;
    kept.push_back(id);
    before += w.at(id);
  }
  return kept;
}

inline Tokens only(const Tokens& values, const Ids& ids) {
  Tokens kept;
  for (const std::int32_t id : ids) kept[id] = values.at(id);
  return kept;
}

// Logits after bias, bad words, min tokens and penalties. `known`: tokens 0 … position - 1.
inline std::vector<double> edited(const std::vector<float>& x, const Row& row, const RowLists& lists,
                                  const Ids& known) {
  std::vector<double> y(x.begin(), x.end());
  const auto at = [&](std::int32_t id) -> double& { return y[static_cast<std::size_t>(id)]; };
  for (std::size_t i = 0; i < lists.bias_ids.size(); ++i) at(lists.bias_ids[i]) += lists.biases[i];
  const Ids output(known.begin() + row.prompt_len, known.end());
  std::size_t start = 0;
  for (const std::int32_t length : lists.spelling_lengths) {
    const Ids spelling(lists.spelling_tokens.begin() + static_cast<std::ptrdiff_t>(start),
                       lists.spelling_tokens.begin() + static_cast<std::ptrdiff_t>(start) + length);
    start += static_cast<std::size_t>(length);
    const std::size_t rest = spelling.size() - 1;
    if (rest > output.size() ||
        !std::equal(spelling.begin(), spelling.end() - 1, output.end() - static_cast<std::ptrdiff_t>(rest)))
      continue;
    at(spelling.back()) = -std::numeric_limits<double>::infinity();
  }
  for (const std::int32_t id : lists.held_back) at(id) = -std::numeric_limits<double>::infinity();
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(x.size()); ++id) {
    if (row.repetition_penalty == 1.0 || std::count(known.begin(), known.end(), id) == 0) continue;
    at(id) = at(id) > 0.0 ? at(id) / row.repetition_penalty : at(id) * row.repetition_penalty;
  }
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(x.size()); ++id) {
    const auto count = std::count(output.begin(), output.end(), id);
    if (count > 0) at(id) = (at(id) - row.frequency_penalty * static_cast<double>(count)) - row.presence_penalty;
  }
  return y;
}

// d and w of the tokens that may be drawn.
struct Kept {
  Tokens d;
  Tokens w;
};

inline Kept filtered(const Tokens& y, const Row& row) {
  const double greatest = y.at(rank_order(y)[0]);
  Kept kept;
  for (const auto& [id, value] : y) {
    kept.d[id] = row.temperature == 1.0 ? value - greatest : (value - greatest) / row.temperature;
    kept.w[id] = weight_of(kept.d[id]);
  }
  Ids order = rank_order(y);
  const auto shorten = [&](const Ids& ids) {
    order = ids;
    kept = {only(kept.d, ids), only(kept.w, ids)};
  };
  if (row.top_k > 0 && static_cast<std::size_t>(row.top_k) < order.size()) {
    shorten(Ids(order.begin(), order.begin() + row.top_k));
  }
  if (row.top_p < 1.0) shorten(until(order, kept.w, row.top_p * left_to_right(kept.w)));
  if (row.min_p > 0.0) {
    Ids likely;
    std::copy_if(order.begin(), order.end(), std::back_inserter(likely),
                 [&](std::int32_t id) { return kept.w.at(id) >= row.min_p; });
    shorten(likely);
  }
  if (row.typical_p < 1.0) {
    const double total = left_to_right(kept.w);
    double negative_entropy = 0.0;
    for (const auto& [id, w] : kept.w) {
      if (w > 0.0) negative_entropy += (w / total) * (kept.d.at(id) - std::log(total));
    }
    Tokens nearness;
    for (const auto& [id, d] : kept.d) nearness[id] = -std::fabs((d - std::log(total)) - negative_entropy);
    shorten(until(rank_order(nearness), kept.w, row.typical_p * total));
  }
  return kept;
}

inline std::int32_t draw(const Tokens& w, double random) {
  const double goal = random * left_to_right(w);
  double running = 0.0;
  std::int32_t last = -1;
  for (const auto& [id, weight] : w) {
    running += weight;
    if (running > goal) return id;
    if (weight > 0.0) last = id;
  }
  return last;
}

inline double logprob(double d, double total) {
  const double value = std::min(d - std::log(total), 0.0);
  return std::isfinite(value) ? value : -9999.0;
}

// `y` ranks the tokens, `d` are their scaled values.
inline Report describe(const Tokens& y, const Tokens& d, double total, std::int32_t token, std::int32_t count) {
  Report report;
  const Ids order = rank_order(y);
  report.logprob = logprob(d.at(token), total);
  report.rank = std::find(order.begin(), order.end(), token) - order.begin() + 1;
  for (std::size_t i = 0; i < std::min(order.size(), static_cast<std::size_t>(count)); ++i) {
    if (!std::isfinite(y.at(order[i]))) continue;
    report.top_ids.push_back(order[i]);
    report.top_logprobs.push_back(logprob(d.at(order[i]), total));
  }
  return report;
}

inline Answer sample(const std::vector<float>& x, const Row& row, const RowLists& lists, const Ids& known,
                     const std::vector<bool>* allowed) {
  Tokens raw, raw_d, raw_w;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) return Answer(Error::kNan);
    raw[static_cast<std::int32_t>(i)] = static_cast<double>(x[i]);
  }
  const double greatest = raw.at(rank_order(raw)[0]);
  if (std::isinf(greatest)) return Answer(greatest > 0 ? Error::kInfinite : Error::kMinusInfinite);
  for (const auto& [id, value] : raw) raw_w[id] = weight_of(raw_d[id] = value - greatest);
  const double raw_total = left_to_right(raw_w);

  Answer answer;
  const bool wants_processed = (row.wants & kWantsProcessed) != 0 && row.target < 0;
  if (row.target >= 0) {
    answer.token = row.target;
  } else {
    const std::vector<double> y = edited(x, row, lists, known);
    Tokens possible;
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (std::isfinite(y[i]) && (allowed == nullptr || (*allowed)[i])) possible[static_cast<std::int32_t>(i)] = y[i];
    }
    if (possible.empty()) return Answer(Error::kForbidden);
    if (row.is_greedy()) {
      answer.token = rank_order(possible)[0];
      if (wants_processed)
        answer.report = describe({{answer.token, 0.0}}, {{answer.token, 0.0}}, 1.0, answer.token, row.num_logprobs);
    } else {
      const Kept kept = filtered(possible, row);
      answer.token = draw(kept.w, uniform(row.seed, row.choice, row.position));
      Tokens left;
      for (const auto& [id, w] : kept.w) left[id] = possible.at(id);
      if (wants_processed)
        answer.report = describe(left, kept.d, left_to_right(kept.w), answer.token, row.num_logprobs);
    }
  }
  if (!wants_processed) answer.report = describe(raw, raw_d, raw_total, answer.token, row.num_logprobs);
  if (row.num_logprobs < 0) answer.report.reset();
  if ((row.wants & kWantsChosen) != 0) answer.chosen = logprob(raw_d.at(answer.token), raw_total);
  return answer;
}

}  // namespace trivium::sample::oracle
