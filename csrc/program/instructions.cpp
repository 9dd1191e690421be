#include "program/instructions.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/isa.h"

namespace trivium::program {

void Embed::run(const Frame& frame, Team& team) const {
  const Step& step = frame.step;
  float* out = frame.at<float>(out_at);
  const Team::Share share = team.share(step.num_tokens);
  for (std::size_t t = share.begin; t < share.end; ++t) {
    float* row = out + t * width;
    linear::unpack_row(table, width, static_cast<std::size_t>(step.token_ids[t]), row);
    for (std::size_t i = 0; i < width; ++i) row[i] *= scale;
    const float* given = step.embeds == nullptr ? nullptr : step.embeds + t * width;
    if (given != nullptr && !std::isnan(given[0])) std::copy(given, given + width, row);
  }
}

void Norm::run(const Frame& frame, Team& team) const {
  norm::Args args{};
  args.a = frame.at<const float>(a_at);
  args.b = frame.at<const float>(b_at);
  args.b_weight = b_weight;
  args.weight = weight;
  args.rows = gathers ? frame.step.logit_rows : nullptr;
  args.num_rows = frame.count(gathers ? Rows::kWanted : rows);
  args.width = width;
  args.eps = eps;
  args.b_eps = b_eps;
  args.sum = frame.at<float>(sum_at);
  args.floats = frame.at<float>(floats_at);
  args.layout = &layout;
  args.operand = frame.at<void>(operand_at);
  static const norm::Kernel& kernel = norm::best(active_isa());
  norm::run(kernel, args, team, frame.scratch);
}

std::size_t Norm::scratch_bytes() const { return norm::scratch_bytes(layout.depth > width ? layout.depth : width); }

void AdapterDelta::prepare(const Step& step, int) {
  if (plans) adapters->plan(step);
}

void AdapterDelta::run(const Frame& frame, Team& team) const {
  if (!adapters->touches(sites)) return;
  const Adapters::RowOrder& found = adapters->rows(rows);
  const adapter::Args args{sites,
                           depth,
                           found.order,
                           found.groups,
                           adapters->max_rank(),
                           frame.at<const float>(x_at),
                           adapters->hidden(),
                           frame.at<float>(out_at)};
  static const adapter::Kernel& kernel = adapter::best(active_isa());
  adapter::run(kernel, args, team);
}

// The product over a frame's memory, or (null) over none, to be checked.
linear::Product Project::product(const Frame* frame) const {
  const auto at = [&](std::size_t offset) { return frame == nullptr ? nullptr : frame->at<void>(offset); };
  linear::Product made{};
  made.parts = parts;
  made.sums = sums;
  made.layout = layout;
  made.operand = at(operand_at);
  made.num_rows = frame == nullptr ? 1 : frame->count(rows);
  made.epilogue.kind = kind;
  made.epilogue.bias = bias;
  const bool has_delta = adapters == nullptr || frame == nullptr || adapters->touches(delta_sites);
  made.epilogue.delta = has_delta ? static_cast<const float*>(at(delta_at)) : nullptr;
  made.epilogue.delta_stride = delta_stride;
  made.epilogue.scale = scale;
  made.epilogue.soft_cap = soft_cap;
  made.epilogue.activation = activation;
  made.epilogue.out = static_cast<float*>(at(out_at));
  made.epilogue.out_stride = out_stride;
  made.epilogue.operand_layout = out_operand_at == kNowhere ? nullptr : &out_layout;
  made.epilogue.operand = at(out_operand_at);
  return made;
}

linear::Tactic Project::tactic_for(std::size_t num_rows) const {
  for (const auto& [limit, chosen] : tactics) {
    if (num_rows <= limit) return chosen;
  }
  return tactic;
}

void Project::check() const {
  linear::check(product(nullptr));
  std::size_t num_cols = 0;
  for (const linear::Weight& part : parts) num_cols += part.num_cols;
  TRIV_CHECK(delta_at == kNowhere || delta_stride >= num_cols, "project: a delta of %zu columns for %zu", delta_stride,
             num_cols);
  const bool is_gated = kind == linear::EpilogueKind::kGated;
  TRIV_CHECK(out_at != kNowhere || (is_gated && out_operand_at != kNowhere), "project: its rows are written nowhere");
  const std::size_t out_cols = is_gated ? parts[0].num_cols : num_cols;
  TRIV_CHECK(out_at == kNowhere || out_stride >= out_cols, "project: rows of %zu floats for %zu columns", out_stride,
             out_cols);
}

void Project::run(const Frame& frame, Team& team) const {
  static const linear::Kernels& kernels = linear::best(active_isa());
  const std::size_t count = frame.count(rows);
  if (count > 0) linear::run(kernels, product(&frame), tactic_for(count), team, frame.scratch);
}

std::size_t Project::scratch_bytes() const { return linear::scratch_bytes(layout.depth); }

namespace {

attention::Rows rows_of(const Step& step, std::size_t group) {
  const PageTable& table = step.page_tables[group];
  return {step.starts, step.positions, step.kv_lens, table.pages, step.num_requests, table.pages_per_request};
}

}  // namespace

void RopeTable::run(const Frame& frame, Team& team) const {
  const RopeChoice& choice = frame.step.ropes[rope];
  const rope_kv::TableArgs args{choice.frequencies, choice.variants, half, factor, frame.at<float>(out_at)};
  rope_kv::fill_table(rows_of(frame.step, 0), args, team);
}

void RopeKv::run(const Frame& frame, Team& team) const {
  rope_kv::Args args{};
  args.qkv = frame.at<const float>(qkv_at);
  args.qkv_stride = qkv_stride;
  args.num_heads = num_heads;
  args.norm = norm;
  args.q_weight = q_weight;
  args.k_weight = k_weight;
  args.eps = eps;
  args.table = frame.at<const float>(table_at);
  args.half = half;
  args.query_factor = query_factor;
  args.queries = frame.at<void>(queries_at);
  args.store = &store;
  args.layer = layer;
  static const rope_kv::Kernel& kernel = rope_kv::best(active_isa());
  rope_kv::run(kernel, rows_of(frame.step, group), args, team);
}

void Attend::prepare(const Step& step, int members) {
  if (plans) shared->work.build(rows_of(step, shared->group), shared->geometry, members);
}

void Attend::run(const Frame& frame, Team& team) const {
  attention::Args args{};
  args.store = &store;
  args.layer = layer;
  args.queries = frame.at<const void>(queries_at);
  args.soft_cap = soft_cap;
  args.out.floats = frame.at<float>(floats_at);
  args.out.stride = shared->geometry.num_heads * shared->geometry.width;
  args.out.layout = &layout;
  args.out.operand = frame.at<void>(operand_at);
  static const attention::Kernel& kernel = attention::best(active_isa());
  attention::run(kernel, shared->work, args, team, frame.scratch);
}

namespace {

float apply(PlainOp op, float a, float b, float number) {
  switch (op) {
    case PlainOp::kAdd:
      return a + b;
    case PlainOp::kMul:
      return a * b;
    case PlainOp::kScale:
      return a * number;
    case PlainOp::kSoftCap:
      return number * std::tanh(a / number);
    case PlainOp::kSilu:
      return a / (1.0F + std::exp(-a)) * b;
    case PlainOp::kGeluTanh:
      return 0.5F * a * (1.0F + std::tanh(0.7978845608F * a * (1.0F + 0.044715F * a * a))) * b;
  }
  return 0.0F;
}

}  // namespace

void Plain::run(const Frame& frame, Team& team) const {
  const float* a = frame.at<const float>(a_at);
  const float* b = frame.at<const float>(b_at);
  float* out = frame.at<float>(out_at);
  const Team::Share share = team.share(frame.count(rows));
  for (std::size_t i = share.begin * width; i < share.end * width; ++i) {
    out[i] = apply(op, a[i], b == nullptr ? 0.0F : b[i], number);
  }
}

void PlainNorm::run(const Frame& frame, Team& team) const {
  norm::Args args{};
  args.a = frame.at<const float>(x_at);
  args.weight = weight;
  args.num_rows = frame.count(rows) * count;
  args.width = width;
  args.eps = eps;
  args.floats = frame.at<float>(out_at);
  static const norm::Kernel& kernel = norm::best(active_isa());
  norm::run(kernel, args, team, frame.scratch);
}

void Split::run(const Frame& frame, Team& team) const {
  std::size_t whole = 0;
  for (const std::size_t size : sizes) whole += size;
  const Team::Share share = team.share(frame.count(rows));
  //   run r of a row    | sizes[0] | sizes[1] | …        piece i of run r goes to outs[i] at (row * count + r) *
  //   sizes[i]
  for (std::size_t r = share.begin * count; r < share.end * count; ++r) {
    const float* from = frame.at<const float>(x_at) + r * whole;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::copy(from, from + sizes[i], frame.at<float>(outs_at[i]) + r * sizes[i]);
      from += sizes[i];
    }
  }
}

}  // namespace trivium::program
