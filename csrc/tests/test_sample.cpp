// The sampler against its oracle, at every level, over random requests on exactly sized buffers.
#include "ops/sample/sample.h"

#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "ops/sample/candidates.h"
#include "tests/check.h"
#include "tests/sample_oracle.h"

namespace trivium::sample {
namespace {

std::size_t ceil_words(std::size_t vocab_size) { return (vocab_size + 31) / 32; }

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + engine_() % values.size());
  }
  std::int32_t token(std::size_t vocab_size) { return static_cast<std::int32_t>(engine_() % vocab_size); }
  double uniform() { return std::uniform_real_distribution<double>(0.0, 1.0)(engine_); }
  float normal(float spread) { return spread == 0.0F ? 0.0F : std::normal_distribution<float>(0.0F, spread)(engine_); }
  std::uint64_t word() { return std::uint64_t{engine_()} << 32 | engine_(); }

 private:
  std::mt19937 engine_;
};

// One request with everything it points to.
struct Request {
  Row row{};
  std::vector<float> logits;
  std::vector<bool> allowed;
  std::vector<std::uint32_t> words;
  oracle::Ids known, bias_ids, held_back, spelling_tokens, spelling_lengths;
  std::vector<double> biases;

  RowLists lists() const {
    RowLists lists;
    lists.bias_ids = bias_ids;
    lists.biases = biases;
    lists.held_back = held_back;
    lists.history = known;
    lists.spelling_tokens = spelling_tokens;
    lists.spelling_lengths = spelling_lengths;
    return lists;
  }
};

void roll_logits(Dice& dice, std::size_t vocab_size, Request& request) {
  const float spread = dice.one_of({0.0F, 0.01F, 1.0F, 3.0F, 30.0F});
  const float steps = dice.one_of({0.0F, 1.0F, 10.0F});  // few steps: ties
  const bool has_impossible = dice.uniform() < 0.3;
  request.logits.resize(vocab_size);
  for (float& logit : request.logits) {
    logit = dice.normal(spread);
    if (steps > 0) logit = std::round(logit * steps) / steps;
    if (has_impossible && dice.uniform() < 0.4) logit = -INFINITY;
  }
  if (dice.uniform() < 0.04) request.logits[dice.word() % vocab_size] = dice.one_of({INFINITY, NAN});
}

void roll_lists(Dice& dice, std::size_t vocab_size, Request& request) {
  request.known.resize(6 + dice.word() % 20);
  for (std::int32_t& token : request.known) token = dice.token(vocab_size);
  request.row.position = static_cast<std::uint32_t>(request.known.size());
  request.row.prompt_len = dice.one_of({1U, 4U, request.row.position});
  request.row.repetition_penalty = dice.one_of({1.0, 1.0, 1.3, 0.7});
  request.row.presence_penalty = dice.one_of({0.0, 0.0, 1.5, -0.7});
  request.row.frequency_penalty = dice.one_of({0.0, 0.0, 0.3, -1.1});
  if (dice.uniform() < 0.3) {
    request.bias_ids = {0};
    if (vocab_size > 2) request.bias_ids = {0, static_cast<std::int32_t>(vocab_size - 1)};
    for (std::size_t i = 0; i < request.bias_ids.size(); ++i) request.biases.push_back(dice.one_of({-100.0, 2.5, 7.0}));
  }
  if (dice.uniform() < 0.3) request.held_back = {dice.token(vocab_size), dice.token(vocab_size)};
  if (dice.uniform() < 0.3) {
    const std::size_t last = request.known.size() - 1;
    request.spelling_tokens = {dice.token(vocab_size),  request.known[last], dice.token(vocab_size),
                               request.known[last - 1], request.known[last], dice.token(vocab_size)};
    request.spelling_lengths = {1, 2, 3};
  }
}

Request roll(Dice& dice, std::size_t vocab_size) {
  Request request;
  Row& row = request.row;
  row.temperature = dice.one_of({0.0, 1e-4, 0.3, 1.0, 1.0, 5.0});
  row.top_p = dice.one_of({1.0, 1.0, 0.1, 0.5, 0.9, 0.999999, 1e-12});
  row.min_p = dice.one_of({0.0, 0.0, 0.05, 1.0, 1e-300});
  row.typical_p = dice.one_of({1.0, 1.0, 0.2, 0.95});
  row.top_k = dice.one_of({0, 0, -1, 1, 5, 50, 1000, 100000});
  row.seed = dice.word();
  row.choice = dice.one_of({0U, 1U, 127U});
  row.target = dice.uniform() < 0.2 ? dice.token(vocab_size) : -1;
  row.num_logprobs = dice.one_of({-1, 0, 1, 5, 20});
  row.wants = dice.one_of({0U, kWantsProcessed, kWantsChosen, kWantsProcessed | kWantsChosen});
  row.mask_row = -1;
  roll_logits(dice, vocab_size, request);
  roll_lists(dice, vocab_size, request);
  if (dice.uniform() < 0.4) {
    const double share = dice.one_of({0.02, 0.5, 1.0});
    request.words.resize(ceil_words(vocab_size), 0);
    request.allowed.resize(vocab_size);
    for (std::size_t i = 0; i < vocab_size; ++i) {
      request.allowed[i] = dice.uniform() < share;
      if (request.allowed[i]) request.words[i / 32] |= 1U << (i % 32);
    }
    if (vocab_size % 32 != 0) request.words.back() |= ~0U << (vocab_size % 32);  // bits of no token
  }
  return request;
}

constexpr std::size_t kTops = 20;

struct Result {
  std::vector<std::int32_t> ids, errors, num_tops, top_ids;
  std::vector<std::int64_t> ranks;
  std::vector<double> chosen, logprobs, top_logprobs;

  explicit Result(std::size_t rows)
      : ids(rows, -7),
        errors(rows, -7),
        num_tops(rows, -7),
        top_ids(rows * kTops, -7),
        ranks(rows, -7),
        chosen(rows, NAN),
        logprobs(rows, NAN),
        top_logprobs(rows * kTops, NAN) {}

  Outputs outputs() {
    return {ids.data(),     errors.data(),       chosen.data(), logprobs.data(), ranks.data(), num_tops.data(),
            top_ids.data(), top_logprobs.data(), kTops};
  }

  bool equals(std::size_t i, const oracle::Answer& wanted) const {
    if (ids[i] != wanted.token || errors[i] != static_cast<std::int32_t>(wanted.error)) return false;
    if (chosen[i] != wanted.chosen) return false;
    if (!wanted.report) return true;
    const oracle::Report& report = *wanted.report;
    bool is_equal = logprobs[i] == report.logprob && ranks[i] == report.rank &&
                    num_tops[i] == static_cast<std::int32_t>(report.top_ids.size());
    for (std::size_t t = 0; is_equal && t < report.top_ids.size(); ++t) {
      is_equal = top_ids[i * kTops + t] == report.top_ids[t] && top_logprobs[i * kTops + t] == report.top_logprobs[t];
    }
    return is_equal;
  }
};

// Runs requests of one vocabulary as one batch whose rows stand `gap` floats apart.
Result run(const Kernel& kernel, const std::vector<Request>& requests, std::size_t gap) {
  const std::size_t vocab_size = requests[0].logits.size();
  const std::size_t stride = vocab_size + gap;
  std::vector<float> logits((requests.size() - 1) * stride + vocab_size, NAN);
  std::vector<Row> rows;
  std::vector<RowLists> lists;
  std::vector<std::uint32_t> masks;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::copy(requests[i].logits.begin(), requests[i].logits.end(),
              logits.begin() + static_cast<std::ptrdiff_t>(i * stride));
    rows.push_back(requests[i].row);
    lists.push_back(requests[i].lists());
    if (requests[i].words.empty()) continue;
    rows.back().mask_row = static_cast<std::int32_t>(masks.size() / requests[i].words.size());
    masks.insert(masks.end(), requests[i].words.begin(), requests[i].words.end());
  }
  Result result(requests.size());
  const std::size_t words = ceil_words(vocab_size);
  sample(kernel, {logits.data(), rows.size(), vocab_size, stride}, rows, lists,
         {masks.data(), masks.size() / words, words}, result.outputs());
  return result;
}

std::string refusal(const Row& row, const RowLists& lists) {
  const std::vector<float> logits(8);
  const std::uint32_t word = 0;
  Result result(1);
  try {
    sample(best(Isa::kScalar), {logits.data(), 1, 8, 8}, std::span(&row, 1), std::span(&lists, 1), {&word, 1, 1},
           result.outputs());
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(every_mixture_of_parameters_gives_the_oracles_answer_at_every_level) {
  set_num_threads(3);
  Dice dice(11);
  for (const std::size_t vocab_size : {1, 2, 31, 33, 127, 128, 129, 257, 700, 2100}) {
    for (int round = 0; round < 12; ++round) {
      std::vector<Request> requests;
      for (int i = 0; i < 8; ++i) requests.push_back(roll(dice, vocab_size));
      for (const Kernel& kernel : all()) {
        if (!includes(detected_isa(), kernel.isa)) continue;
        const Result result = run(kernel, requests, round % 3);
        for (std::size_t i = 0; i < requests.size(); ++i) {
          const Request& r = requests[i];
          const auto wanted =
              oracle::sample(r.logits, r.row, r.lists(), r.known, r.words.empty() ? nullptr : &r.allowed);
          EXPECT(result.equals(i, wanted), "%s: V=%zu, round %d, row %zu: token %d, not %d", kernel.name, vocab_size,
                 round, i, result.ids[i], wanted.token);
        }
      }
    }
  }
}

TEST(a_large_vocabulary_is_decided_on_estimates_as_by_the_exact_sums) {
  set_num_threads(2);
  Dice dice(12);
  for (int round = 0; round < 6; ++round) {
    std::vector<Request> requests;
    for (int i = 0; i < 4; ++i) requests.push_back(roll(dice, 9000));
    for (const Kernel& kernel : all()) {
      if (!includes(detected_isa(), kernel.isa)) continue;
      const Result result = run(kernel, requests, 0);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        const Request& r = requests[i];
        const auto wanted = oracle::sample(r.logits, r.row, r.lists(), r.known, r.words.empty() ? nullptr : &r.allowed);
        EXPECT(result.equals(i, wanted), "%s: round %d, row %zu: token %d, not %d", kernel.name, round, i,
               result.ids[i], wanted.token);
      }
    }
  }
}

TEST(draws_on_the_edges_between_tokens_are_those_of_the_exact_sums) {
  Dice dice(13);
  std::vector<float> x(9000);
  for (float& value : x) value = dice.normal(1.0F);
  oracle::Tokens weights;
  const double greatest = static_cast<double>(*std::max_element(x.begin(), x.end()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    weights[static_cast<std::int32_t>(i)] = oracle::weight_of(static_cast<double>(x[i]) - greatest);
  }
  std::vector<double> ends;
  for (const auto& [id, weight] : weights) ends.push_back((ends.empty() ? 0.0 : ends.back()) + weight);
  for (const Kernel& kernel : all()) {
    if (!includes(detected_isa(), kernel.isa)) continue;
    const PassTable& table = kernel.table();
    Scratch scratch;
    const Candidates<float> all_tokens{
        table, table.f32, scratch.f32, scratch, {x.data(), nullptr, x.size(), nullptr}, {greatest, 1.0}};
    for (std::size_t i = 0; i < x.size(); i += 111) {
      const double edge = ends[i] / ends.back();
      for (const double random : {edge, std::nextafter(edge, 0.0), std::nextafter(edge, 1.0)}) {
        if (random >= 1.0) continue;
        const std::size_t place = draw(all_tokens, random, nullptr);
        const std::int32_t wanted = oracle::draw(weights, random);
        EXPECT(place == static_cast<std::size_t>(wanted), "%s: edge %zu: token %zu, not %d", kernel.name, i, place,
               wanted);
      }
    }
  }
}

TEST(arguments_that_do_not_fit_are_refused_with_their_values) {
  Row row{};
  row.top_p = row.typical_p = row.repetition_penalty = 1.0;
  row.target = row.num_logprobs = row.mask_row = -1;
  row.position = 4;
  EXPECT(refusal(row, {}).empty(), "%s", refusal(row, {}).c_str());

  const std::int32_t ids[] = {3, 8};
  RowLists lists;
  lists.held_back = ids;
  EXPECT(refusal(row, lists).find("held-back tokens of row 0 name token 8; the vocabulary has 8") != std::string::npos,
         "%s", refusal(row, lists).c_str());
  lists = {};
  lists.history = std::span(ids, 1);
  lists.history_start = 4;
  EXPECT(refusal(row, lists).find("past its position 4") != std::string::npos, "%s", refusal(row, lists).c_str());
  Row other = row;
  other.target = 8;
  EXPECT(refusal(other, {}).find("token 8") != std::string::npos, "%s", refusal(other, {}).c_str());
  other = row;
  other.mask_row = 1;
  EXPECT(refusal(other, {}).find("mask 1 of 1") != std::string::npos, "%s", refusal(other, {}).c_str());
  other = row;
  other.num_logprobs = 21;
  EXPECT(refusal(other, {}).find("21 alternatives") != std::string::npos, "%s", refusal(other, {}).c_str());
}

TEST(philox_gives_the_published_words) {
  // Salmon et al. 2011, the known-answer vectors of their library.
  const auto zeros = philox4x32({0, 0, 0, 0}, {0, 0});
  const std::array<std::uint32_t, 4> of_zeros{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  EXPECT(zeros == of_zeros, "%08x", zeros[0]);
  const auto ones = philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U});
  const std::array<std::uint32_t, 4> of_ones{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  EXPECT(ones == of_ones, "%08x", ones[0]);
}

}  // namespace trivium::sample
