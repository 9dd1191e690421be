// Rates of products on cold weights, beside what this machine can do at most, read in the same process.
//
//   trivium_bench_linear [--isa NAME] [--format NAME,…|all] [--rows M,…] [--shape MODEL or MODEL/NAME,…]
//                        [--tactic auto|direct|unpacked] [--threads N] [--json] [--hot]
//
// One line per (format, shape, M): microseconds (best of 3 rounds), GB/s of weights and their share of the stream, GOPS
// and their share of the peak, and the roofline's share: max(bytes / stream, operations / peak) / time. Weights rotate
// over copies of 160 MB in all; the operand is written before. Shares can pass 100 % while a part of the weights is
// still in L3. With --hot the same copy is read again and again: what is left is arithmetic and caches.
//
// Ends with what docs/performance.md promises, as far as it was measured: weighted over a model's layers; the program
// fails where a promise is missed by more than 15 %.
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/team.h"
#include "ops/limits/limits.h"
#include "ops/linear/linear.h"
#include "ops/operand/operand.h"

namespace trivium::linear {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr std::size_t kColdBytes = std::size_t{160} << 20;
constexpr double kSlack = 0.85;

struct Shape {
  const char* name;
  const char* model;
  std::size_t num_cols;  // of all parts
  std::size_t depth;
  bool is_gated;
  double per_step;  // how often a model's step has it
  bool is_head;     // run for few rows only
};

constexpr Shape kShapes[] = {
    {"qkv", "smollm2", 960, 576, false, 30, false},         {"out", "smollm2", 576, 576, false, 30, false},
    {"gate-up", "smollm2", 3072, 576, true, 30, false},     {"down", "smollm2", 576, 1536, false, 30, false},
    {"head", "smollm2", 49152, 576, false, 1, true},        {"qkv", "qwen-1.5b", 2048, 1536, false, 28, false},
    {"gate-up", "qwen-1.5b", 17920, 1536, true, 28, false}, {"down", "qwen-1.5b", 1536, 8960, false, 28, false},
    {"head", "qwen-1.5b", 151936, 1536, false, 1, true},
};

using limits::Limits;

// Line-aligned memory that is never touched before it is filled.
class Memory {
 public:
  explicit Memory(std::size_t size) : size_(size), data_(static_cast<std::byte*>(::operator new[](size, kAlign))) {}
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete[](data, kAlign); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte[], Free> data_;
};

// Random bits are codes and sub-scales of every format; as float16 scales and as floats they must be finite, so the top
// bit of every exponent is cleared.
void fill_randomly(const Memory& memory, std::size_t size) {
  std::mt19937_64 engine(1);
  auto* words = reinterpret_cast<std::uint64_t*>(memory.data());
  for (std::size_t i = 0; i < size / 8; ++i) words[i] = engine() & 0xBFFFBFFFBFFFBFFFU;
  for (std::size_t at = size; at + size <= memory.size(); at += size)
    std::memcpy(memory.data() + at, memory.data(), size);
}

struct Result {
  const Format* format;
  const Shape* shape;
  std::size_t num_rows;
  double seconds;
  double bytes;
  double operations;
};

double peak_of(const Limits& limits, const Format& format) {
  if (format.operand == operand::Format::kQ8) return limits.int8_ops;
  return format.operand == operand::Format::kBf16 ? limits.bf16_ops : limits.f32_ops;
}

double roofline_s(const Limits& limits, const Result& r) {
  return std::max(r.bytes / limits.memory_bytes, r.operations / peak_of(limits, *r.format));
}

struct Options {
  Isa isa = active_isa();
  std::vector<std::string> formats, shapes;
  std::vector<std::size_t> rows = {1, 4, 16, 64, 256};
  Tactic tactic = Tactic::kAuto;
  int threads = usable_cores();
  bool has_json = false;
  bool is_hot = false;
  bool is_wide = false;
};

// One product on each copy of its weights in turn.
class Case {
 public:
  Case(const Kernels& kernels, const Format& format, const Shape& shape, std::size_t num_rows, const Options& options,
       const Memory& cold)
      : kernels_(kernels), tactic_(options.tactic), format_(format), shape_(shape), cold_(cold) {
    const std::size_t parts = shape.is_gated ? 2 : 1;
    part_cols_ = shape.num_cols / parts;
    bytes_ = parts * num_panels(part_cols_) * panel_bytes(format, shape.depth);
    copies_ = options.is_hot ? 1 : std::max<std::size_t>(1, cold.size() / bytes_);
    const operand::Format left = options.is_wide ? operand::Format::kQ8Wide : format.operand;
    product_.layout = layout_for(format, shape.depth, left);
    operand_.resize(num_rows * product_.layout.row_words());
    std::vector<float> x(num_rows * shape.depth);
    std::mt19937 engine(2);
    std::normal_distribution<float> draw;
    for (float& value : x) value = draw(engine);
    operand::write_rows(x.data(), num_rows, shape.depth, product_.layout, operand_.data());
    product_.operand = operand_.data();
    product_.num_rows = num_rows;
    out_layout_ = {operand::Format::kQ8, num_panels(part_cols_) * kPanel, {{32, 128}}, 1};
    if (options.is_wide) out_layout_ = {left, num_panels(part_cols_) * kPanel, {{64, 128}}, 1};
    out_.resize(num_rows * std::max(shape.num_cols, out_layout_.row_words()));
    product_.epilogue.kind = shape.is_gated ? EpilogueKind::kGated : EpilogueKind::kStore;
    product_.epilogue.scale = 1.0F;
    product_.epilogue.out = out_.data();
    product_.epilogue.out_stride = shape.num_cols;
    product_.epilogue.operand_layout = &out_layout_;
    product_.epilogue.operand = out_.data();
  }

  Result measure(const Limits& limits) {
    const double operations = 2.0 * static_cast<double>(product_.num_rows * shape_.num_cols * shape_.depth);
    Result result{&format_, &shape_, product_.num_rows, 1e30, static_cast<double>(bytes_), operations};
    const auto calls = static_cast<std::size_t>(std::clamp(0.06 / (1.5 * roofline_s(limits, result)), 3.0, 4000.0));
    run(std::min<std::size_t>(calls, 3));
    for (int round = 0; round < 3; ++round) result.seconds = std::min(result.seconds, run(calls));
    return result;
  }

 private:
  // Seconds per call.
  double run(std::size_t calls) {
    const std::size_t scratch_size = (scratch_bytes(product_.layout.depth) + 127) / 64 * 64;
    const Memory scratch(scratch_size * static_cast<std::size_t>(num_threads()));
    double seconds = 0;
    run_team([&](Team& team) {
      Product product = product_;
      std::byte* room = scratch.data() + scratch_size * static_cast<std::size_t>(team.index());
      team.barrier();
      const double start = now_s();
      for (std::size_t i = 0; i < calls; ++i) {
        const std::byte* panels = cold_.data() + (next_ + i) % copies_ * bytes_;
        const std::size_t half = bytes_ / 2;
        const Weight parts[2] = {{&format_, panels, part_cols_}, {&format_, panels + half, part_cols_}};
        const std::size_t sums[2] = {0, 0};
        const std::size_t count = shape_.is_gated ? 2 : 1;
        product.parts = {parts, count};
        product.sums = {sums, count};
        linear::run(kernels_, product, tactic_, team, room);
        team.barrier();
      }
      if (team.index() == 0) seconds = (now_s() - start) / static_cast<double>(calls);
    });
    next_ += calls;
    return seconds;
  }

  const Kernels& kernels_;
  Tactic tactic_;
  const Format& format_;
  const Shape& shape_;
  const Memory& cold_;
  std::size_t part_cols_;
  std::size_t bytes_;
  std::size_t copies_;
  std::size_t next_ = 0;
  Product product_{};
  operand::Layout out_layout_{};
  std::vector<std::uint32_t> operand_;
  std::vector<float> out_;
};

std::vector<std::string> split(const char* list) {
  std::vector<std::string> items;
  std::string item;
  for (const char* c = list;; ++c) {
    if (*c != ',' && *c != '\0') {
      item += *c;
      continue;
    }
    items.push_back(item);
    item.clear();
    if (*c == '\0') return items;
  }
}

bool is_wanted(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

bool is_shape_wanted(const Options& options, const Shape& shape) {
  return is_wanted(options.shapes, shape.model) ||
         is_wanted(options.shapes, std::string(shape.model) + "/" + shape.name);
}

void print(const Result& r, const Limits& limits, bool has_json) {
  const double gbs = r.bytes / r.seconds * 1e-9;
  const double gops = r.operations / r.seconds * 1e-9;
  const double peak = peak_of(limits, *r.format);
  const double of_stream = 100 * gbs * 1e9 / limits.memory_bytes;
  const double of_peak = 100 * gops * 1e9 / peak;
  const double of_roofline = 100 * roofline_s(limits, r) / r.seconds;
  if (has_json) {
    std::printf(
        "{\"format\": \"%s\", \"model\": \"%s\", \"shape\": \"%s\", \"N\": %zu, \"K\": %zu, \"M\": %zu, "
        "\"us\": %.2f, \"gb_s\": %.2f, \"of_stream\": %.1f, \"gops\": %.1f, \"of_peak\": %.1f, "
        "\"of_roofline\": %.1f}\n",
        r.format->name, r.shape->model, r.shape->name, r.shape->num_cols, r.shape->depth, r.num_rows, r.seconds * 1e6,
        gbs, of_stream, gops, of_peak, of_roofline);
    return;
  }
  std::printf(
      "%-9s %-9s %-7s N=%-6zu K=%-4zu M=%-3zu %9.1f us  %5.1f GB/s (%3.0f %%)  %6.1f GOPS (%3.0f %%)  roofline %3.0f "
      "%%\n",
      r.format->name, r.shape->model, r.shape->name, r.shape->num_cols, r.shape->depth, r.num_rows, r.seconds * 1e6,
      gbs, of_stream, gops, of_peak, of_roofline);
}

// What is promised of a format at M rows, weighted over a model's step: the roofline's share of the time, except that
// from 64 rows on it is the share of the arithmetic peak.
struct Promise {
  const char* format;
  std::size_t rows;
  double share;
};

constexpr Promise kPromises[] = {
    {"i8_g32", 1, 0.90},   {"i4_g32", 1, 0.90},    {"i4m_g32", 1, 0.90},  {"q4_k", 1, 0.90},    {"q6_k", 1, 0.90},
    {"bf16", 1, 0.90},     {"i8_g32", 4, 0.75},    {"i4m_g32", 4, 0.75},  {"i8_g32", 16, 0.75}, {"i4m_g32", 16, 0.75},
    {"i8_g32", 64, 0.70},  {"i4_g32", 64, 0.66},   {"i4m_g32", 64, 0.60}, {"bf16", 64, 0.87},   {"i8_g32", 256, 0.70},
    {"i4_g32", 256, 0.66}, {"i4m_g32", 256, 0.60}, {"bf16", 256, 0.87},
};

bool is_format_wanted(const Options& options, const Format& format) {
  if (!options.formats.empty()) return options.formats[0] == "all" || is_wanted(options.formats, format.name);
  return std::any_of(std::begin(kPromises), std::end(kPromises),
                     [&](const Promise& promise) { return std::strcmp(promise.format, format.name) == 0; });
}

// One core per thread: a scheduler that puts two on one core, or moves them, is not what is measured here.
void pin_threads() {
#if defined(__linux__)
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  run_team([&](Team& team) {
    int left = team.index();
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &usable) || left-- > 0) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      sched_setaffinity(0, sizeof one, &one);
      return;
    }
  });
#endif
}

std::vector<Result> measure_all(const Options& options, const Limits& limits, const Memory& cold) {
  std::vector<Result> results;
  const Kernels& kernels = best(options.isa);
  for (const Shape& shape : kShapes) {
    if (!is_shape_wanted(options, shape)) continue;
    for (const Format& format : formats()) {
      if (!is_format_wanted(options, format)) continue;
      if (options.is_wide && !fits(format, operand::Format::kQ8Wide)) continue;
      const std::size_t parts = shape.is_gated ? 2 : 1;
      const std::size_t bytes = parts * num_panels(shape.num_cols / parts) * panel_bytes(format, shape.depth);
      if (bytes > cold.size()) {
        std::fprintf(stderr, "%s %s %s: left out, %zu MB of weights\n", format.name, shape.model, shape.name,
                     bytes >> 20);
        continue;
      }
      for (const std::size_t rows : options.rows) {
        if (shape.is_head && rows > 64) continue;
        results.push_back(Case(kernels, format, shape, rows, options, cold).measure(limits));
        print(results.back(), limits, options.has_json);
      }
    }
  }
  return results;
}

int gate(const std::vector<Result>& results, const Limits& limits) {
  int missed = 0;
  for (const char* model : {"smollm2", "qwen-1.5b"}) {
    for (const Promise& promise : kPromises) {
      double needed = 0;
      double taken = 0;
      for (const Result& r : results) {
        if (std::strcmp(r.shape->model, model) != 0 || std::strcmp(r.format->name, promise.format) != 0) continue;
        if (r.num_rows != promise.rows) continue;
        const double ideal = promise.rows >= 64 ? r.operations / peak_of(limits, *r.format) : roofline_s(limits, r);
        needed += r.shape->per_step * ideal;
        taken += r.shape->per_step * r.seconds;
      }
      if (taken == 0) continue;
      const double share = needed / taken;
      const bool is_met = share >= kSlack * promise.share;
      missed += is_met ? 0 : 1;
      std::printf("%s %-9s %-8s M=%-3zu %3.0f %% (promised %.0f %%)\n", is_met ? "ok    " : "MISSED", model,
                  promise.format, promise.rows, 100 * share, 100 * promise.share);
    }
  }
  return missed;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json" || name == "--hot" || name == "--wide") {
      (name == "--hot" ? options.is_hot : name == "--wide" ? options.is_wide : options.has_json) = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "bench_linear: %s is unknown or lacks its value\n", name.c_str());
      std::exit(2);
    }
    const char* value = argv[++i];
    if (name == "--isa") {
      options.isa = parse_isa(value);
    } else if (name == "--format") {
      options.formats = split(value);
    } else if (name == "--shape") {
      options.shapes = split(value);
    } else if (name == "--rows") {
      options.rows.clear();
      for (const std::string& rows : split(value)) options.rows.push_back(std::strtoul(rows.c_str(), nullptr, 10));
    } else if (name == "--threads") {
      options.threads = std::atoi(value);
    } else if (name == "--tactic") {
      options.tactic = std::strcmp(value, "direct") == 0     ? Tactic::kDirect
                       : std::strcmp(value, "unpacked") == 0 ? Tactic::kUnpacked
                                                             : Tactic::kAuto;
    } else {
      std::fprintf(stderr, "bench_linear: %s is unknown\n", name.c_str());
      std::exit(2);
    }
  }
  for (const std::string& format : options.formats) {
    if (format != "all") format_named(format.c_str());  // refuses unknown names
  }
  return options;
}

void print(const Limits& limits, const Options& options) {
  std::fprintf(stderr, "%s, %d threads: stream %.1f GB/s, int8 %.0f GOPS, bf16 %.0f, f32 %.0f GFLOP/s\n",
               isa_name(options.isa), options.threads, limits.memory_bytes * 1e-9, limits.int8_ops * 1e-9,
               limits.bf16_ops * 1e-9, limits.f32_ops * 1e-9);
}

int bench_all(const Options& options) {
  set_num_threads(options.threads);
  pin_threads();
  const Memory cold(kColdBytes);
  fill_randomly(cold, std::size_t{1} << 20);
  Limits limits = limits::measure(options.isa);
  print(limits, options);
  const std::vector<Result> results = measure_all(options, limits, cold);
  limits = limits::settled(limits, limits::measure(options.isa));
  print(limits, options);
  // Promises are made for the strongest level.
  return options.isa == Isa::kAvx512Vnni && gate(results, limits) > 0 ? 1 : 0;
}

}  // namespace
}  // namespace trivium::linear

int main(int argc, char** argv) { return trivium::linear::bench_all(trivium::linear::parse(argc, argv)); }
