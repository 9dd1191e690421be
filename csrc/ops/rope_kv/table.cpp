// The step's rotations: cosines and sines. Compiled without ISA flags; once per step, not per layer.
#include <algorithm>
#include <cmath>

#include "ops/rope_kv/rope_kv.h"

namespace trivium::rope_kv {
namespace {

void fill_row(const float* frequencies, float position, const TableArgs& args, float* out) {
  for (std::size_t i = 0; i < args.half; ++i) {
    const double angle = position * frequencies[i];  // rounded to float32 first: how these models were trained
    out[i] = static_cast<float>(std::cos(angle)) * args.factor;
    out[args.half + i] = static_cast<float>(std::sin(angle)) * args.factor;
  }
}

}  // namespace

void fill_table(const attention::Rows& rows, const TableArgs& args, Team& team) {
  const Team::Share share = team.share(static_cast<std::size_t>(rows.starts[rows.num_requests]));
  for (std::size_t b = 0; b < rows.num_requests; ++b) {
    const auto variant = args.variants == nullptr ? 0 : static_cast<std::size_t>(args.variants[b]);
    const auto end = std::min(share.end, static_cast<std::size_t>(rows.starts[b + 1]));
    for (std::size_t t = std::max(share.begin, static_cast<std::size_t>(rows.starts[b])); t < end; ++t) {
      fill_row(args.frequencies + variant * args.half, static_cast<float>(rows.positions[t]), args,
               args.out + t * 2 * args.half);
    }
  }
}

}  // namespace trivium::rope_kv
