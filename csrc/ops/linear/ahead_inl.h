// Fetching what comes next while a tile computes. Internal linkage: included by ISA files only.
#pragma once

#include <cstddef>

#include "ops/linear/blocks.h"
#include "ops/linear/kernels.h"

namespace trivium::linear {
namespace {

class Ahead {
 public:
  // Spreads the lines of args.ahead evenly over `steps` calls of fetch.
  Ahead(const TileArgs& args, std::size_t steps) : at_(args.ahead), end_(args.ahead_end) {
    const std::size_t lines = (static_cast<std::size_t>(end_ - at_) + kLine - 1) / kLine;
    per_step_ = steps == 0 ? 0 : (lines + steps - 1) / steps;
  }

  template <class L, Into into>
  void fetch() {
    for (std::size_t i = per_step_; i != 0 && at_ < end_; --i, at_ += kLine) L::template fetch<into>(at_);
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
  std::size_t per_step_;
};

}  // namespace
}  // namespace trivium::linear
