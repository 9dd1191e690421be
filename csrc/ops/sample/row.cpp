#include "ops/sample/row.h"

#include <cmath>

#include "ops/sample/philox.h"

namespace trivium::sample {
namespace {

// Rank 1: the first of the greatest values.
template <class T>
std::size_t first_greatest(const Passes<T>& passes, const Values<T>& tokens, double greatest) {
  const T wanted = static_cast<T>(greatest);
  const std::size_t chunk = passes.find(tokens.maxima, num_maxima(tokens.size), wanted) / kMaximaPerChunk;
  const std::size_t first = chunk * kChunk;
  return first + passes.find(tokens.values + first, tokens.size - first, wanted);
}

// A token that was the only one that could be drawn.
void report_certain(std::int32_t token_id, std::int32_t num_logprobs, const Report& report) {
  *report.logprob = 0.0;
  *report.rank = 1;
  *report.num_tops = num_logprobs > 0 ? 1 : 0;
  if (num_logprobs > 0) report.top_ids[0] = token_id;
  if (num_logprobs > 0) report.top_logprobs[0] = 0.0;
}

}  // namespace

double logprob_of(double value, const Scale& scale, double total) {
  double scaled = value - scale.greatest;
  if (scale.temperature != 1.0) scaled /= scale.temperature;
  const double logprob = std::min(scaled - std::log(total), 0.0);
  return std::isfinite(logprob) ? logprob + 0.0 : kImpossible;  // + 0.0: no negative zero
}

template <class T>
void describe(const Candidates<T>& c, std::size_t place, double total, std::size_t num_logprobs, const Report& report) {
  const T own = c.tokens.values[place];
  Values<T> before = c.tokens;
  before.size = place;
  std::size_t ahead = c.passes.count_above(c.tokens, own);
  if (own == -kInfinity<T>) {
    for (std::size_t i = 0; i < place; ++i) ahead += before.values[i] == own ? 1 : 0;
  } else {
    ahead += c.passes.count_equal(before, own);
  }
  *report.logprob = logprob_of(static_cast<double>(own), c.scale, total);
  *report.rank = static_cast<std::int64_t>(ahead) + 1;
  std::size_t count = num_logprobs;
  const Ranked<T>* order = count == 0 ? nullptr : ranked(c.passes, c.lists, c.tokens, count);
  *report.num_tops = static_cast<std::int32_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    report.top_ids[i] = order[i].id;
    report.top_logprobs[i] = logprob_of(static_cast<double>(order[i].value), c.scale, total);
  }
}

Error RawRow::look() {
  bool has_nan = false;
  float* maxima = scratch_.raw_maxima.at_least(num_maxima(vocab_size_));
  greatest_ = passes_.f32.greatest(logits_, vocab_size_, maxima, &has_nan);
  maxima_ = maxima;
  if (has_nan) return Error::kNan;
  if (greatest_ == kInfinity<float>) return Error::kInfinite;
  return greatest_ == -kInfinity<float> ? Error::kMinusInfinite : Error::kNone;
}

Candidates<float> RawRow::candidates() const {
  const Values<float> all{logits_, nullptr, vocab_size_, maxima_};
  return {passes_, passes_.f32, scratch_.f32, scratch_, all, {static_cast<double>(greatest_), 1.0}};
}

const double* RawRow::ends() {
  if (ends_ == nullptr) {
    double* ends = scratch_.raw_sums.at_least(ceil_div(vocab_size_, kBlock));
    passes_.f32.total(logits_, vocab_size_, {static_cast<double>(greatest_), 1.0}, ends);
    ends_ = ends;
  }
  return ends_;
}

double RowSampler::raw_logprob() {
  return logprob_of(static_cast<double>(logits_[token_id_]), raw_.candidates().scale, raw_.total());
}

void RowSampler::report_raw(const Report& report) {
  if (!wants_report()) return;
  describe(raw_.candidates(), static_cast<std::size_t>(token_id_), raw_.total(),
           static_cast<std::size_t>(row_.num_logprobs), report);
}

template <class T>
std::size_t RowSampler::choose(Candidates<T>& c) {
  if (row_.is_greedy()) return first_greatest(c.passes, c.tokens, c.scale.greatest);
  c.scale.temperature = row_.temperature;
  if (row_.top_k > 0) keep_top_k(c, static_cast<std::size_t>(row_.top_k));
  if (row_.top_p < 1.0) keep_top_p(c, row_.top_p);
  if (row_.min_p > 0.0) keep_min_p(c, row_.min_p);
  if (row_.typical_p < 1.0) keep_typical(c, row_.typical_p);
  const bool is_raw = static_cast<const void*>(c.tokens.values) == logits_ && row_.temperature == 1.0;
  return draw(c, uniform(row_.seed, row_.choice, row_.position), is_raw && wants_raw() ? raw_.ends() : nullptr);
}

template <class T>
Error RowSampler::draw_from(const Passes<T>& passes, Lists<T>& lists, const T* logits, const T* maxima, double greatest,
                            const Report& report) {
  Candidates<T> c{passes_, passes, lists, scratch_, {logits, nullptr, vocab_size_, maxima}, {greatest, 1.0}};
  if (mask_ != nullptr) {
    T* values = c.next_values();
    c.take(passes.pick(logits, vocab_size_, mask_, values, c.next_ids()));
    bool has_nan = false;
    T* most = lists.maxima.at_least(num_maxima(c.tokens.size));
    c.scale.greatest = static_cast<double>(passes.greatest(c.tokens.values, c.tokens.size, most, &has_nan));
    c.tokens.maxima = most;
  }
  if (!(c.scale.greatest > -kInfinity<double>)) return Error::kForbidden;
  const std::size_t place = choose(c);
  token_id_ = c.id_at(place);
  if (wants_report() && wants_processed()) {
    if (row_.is_greedy()) {
      report_certain(token_id_, row_.num_logprobs, report);
    } else {
      double* ends = scratch_.sums.at_least(ceil_div(c.tokens.size, kBlock));
      const double total = passes.total(c.tokens.values, c.tokens.size, c.scale, ends);
      describe(c, place, total, static_cast<std::size_t>(row_.num_logprobs), report);
    }
  } else {
    report_raw(report);
  }
  return Error::kNone;
}

Error RowSampler::run(const Report& report) {
  if (const Error error = raw_.look(); error != Error::kNone) return error;
  if (row_.target >= 0) {
    token_id_ = row_.target;
    report_raw(report);
    return Error::kNone;
  }
  const Values<float> all = raw_.candidates().tokens;
  const double greatest = raw_.candidates().scale.greatest;
  if (lists_.is_empty() && !row_.has_penalty()) {
    return draw_from(passes_.f32, scratch_.f32, logits_, all.maxima, greatest, report);
  }
  double* edited = scratch_.edited.at_least(vocab_size_);
  for (std::size_t i = 0; i < vocab_size_; ++i) edited[i] = static_cast<double>(logits_[i]);
  edit(edited, vocab_size_, row_, lists_, scratch_.marks);
  bool has_nan = false;
  double* maxima = scratch_.f64.maxima.at_least(num_maxima(vocab_size_));
  const double edited_greatest = mask_ != nullptr ? 0.0 : passes_.f64.greatest(edited, vocab_size_, maxima, &has_nan);
  return draw_from(passes_.f64, scratch_.f64, edited, maxima, edited_greatest, report);
}

template void describe(const Candidates<float>& c, std::size_t place, double total, std::size_t num_logprobs,
                       const Report& report);
template void describe(const Candidates<double>& c, std::size_t place, double total, std::size_t num_logprobs,
                       const Report& report);

}  // namespace trivium::sample
