// Whether a step fits the program it is to run on: every rule, checked before any memory is touched.
//
// A step that breaks a rule is a bug of whoever built it; the message names the field, the value and the limit.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "program/adapters.h"
#include "program/program.h"

namespace trivium::program {

struct GroupLimits {
  std::size_t num_pages;
  std::size_t window;  // 0: everything is seen
};

struct Limits {
  std::size_t max_tokens;
  std::size_t max_rows;
  std::size_t vocab_size;
  std::size_t page_len;
  std::vector<GroupLimits> groups;
};

class Checker {
 public:
  // `adapters`: null where the program has none.
  explicit Checker(Limits limits, std::shared_ptr<const Adapters> adapters = nullptr)
      : limits_(std::move(limits)), adapters_(std::move(adapters)) {}

  // Throws std::invalid_argument for the first rule that is broken. Allocates only when a step writes more pages than
  // any before it.
  void check(const Step& step);

 private:
  void check_requests(const Step& step) const;
  void check_tokens(const Step& step) const;
  void check_rows(const Step& step) const;
  void check_adapters(const Step& step) const;
  void check_copies(const Step& step, std::size_t group) const;
  void check_group(const Step& step, std::size_t group);

  Limits limits_;
  std::shared_ptr<const Adapters> adapters_;
  std::vector<std::int32_t> written_;  // pages that the step's tokens are stored in
};

}  // namespace trivium::program
