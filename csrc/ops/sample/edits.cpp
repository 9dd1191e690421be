// Edits of single logits, in double, in the order of the contract. Only the tokens that a row names are touched.
#include <algorithm>

#include "ops/sample/candidates.h"

namespace trivium::sample {
namespace {

constexpr double kForbidden = -std::numeric_limits<double>::infinity();

// A mark counts a token's occurrences in the output; this bit says that it occurs anywhere.
constexpr std::uint32_t kSeen = 1U << 31;

std::size_t index(std::int32_t token) { return static_cast<std::size_t>(token); }

// Whether the tokens before `position` end with `rest`, all of it in the output.
bool ends_with(const Row& row, const RowLists& lists, std::span<const std::int32_t> rest) {
  const std::size_t end = lists.history_start + lists.history.size();
  if (row.position < row.prompt_len + rest.size()) return false;
  if (rest.empty()) return true;
  if (end != row.position || rest.size() > lists.history.size()) return false;
  return std::equal(rest.begin(), rest.end(), lists.history.end() - static_cast<std::ptrdiff_t>(rest.size()));
}

void ban_words(double* logits, const Row& row, const RowLists& lists) {
  std::size_t start = 0;
  for (const std::int32_t length : lists.spelling_lengths) {
    const auto spelling = lists.spelling_tokens.subspan(start, static_cast<std::size_t>(length));
    start += spelling.size();
    if (spelling.empty()) continue;
    if (ends_with(row, lists, spelling.first(spelling.size() - 1))) logits[index(spelling.back())] = kForbidden;
  }
}

void penalise(double* logits, const Row& row, const RowLists& lists, std::uint32_t* marks) {
  const double repetition = row.repetition_penalty;
  const bool is_counted = row.frequency_penalty != 0.0 || row.presence_penalty != 0.0;
  const std::size_t output = row.prompt_len > lists.history_start ? row.prompt_len - lists.history_start : 0;
  for (std::size_t i = 0; i < lists.history.size(); ++i) {
    const std::size_t token = index(lists.history[i]);
    if (repetition != 1.0 && (marks[token] & kSeen) == 0) {
      double& logit = logits[token];
      logit = logit > 0.0 ? logit / repetition : logit * repetition;
    }
    marks[token] |= kSeen;
    if (i >= output) ++marks[token];
  }
  for (const std::int32_t seen : lists.history) {
    const std::size_t token = index(seen);
    const std::uint32_t count = marks[token] & ~kSeen;
    marks[token] = 0;
    if (!is_counted || count == 0) continue;
    const double less = logits[token] - row.frequency_penalty * static_cast<double>(count);
    logits[token] = less - row.presence_penalty;
  }
}

}  // namespace

void edit(double* logits, std::size_t vocab_size, const Row& row, const RowLists& lists, Buffer<std::uint32_t>& marks) {
  for (std::size_t i = 0; i < lists.bias_ids.size(); ++i) logits[index(lists.bias_ids[i])] += lists.biases[i];
  ban_words(logits, row, lists);
  for (const std::int32_t token : lists.held_back) logits[index(token)] = kForbidden;
  if (row.has_penalty()) penalise(logits, row, lists, marks.zeros(vocab_size));
}

}  // namespace trivium::sample
