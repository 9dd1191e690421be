// What a Python program object holds, and the arrays that it is built from.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "program/adapters.h"
#include "program/check.h"
#include "program/instructions.h"
#include "program/program.h"

namespace trivium::bindings {

using Int32s = nanobind::ndarray<const std::int32_t, nanobind::c_contig, nanobind::device::cpu>;
using Floats = nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu>;
using Bytes = nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Arena = nanobind::ndarray<std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Seconds = nanobind::ndarray<double, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using At = std::optional<std::size_t>;

// Where a buffer begins in the arena; nothing: there is no such buffer.
inline std::size_t place(At at) { return at.value_or(program::kNowhere); }

inline const float* pointer(const std::optional<Floats>& array) { return array ? array->data() : nullptr; }

// A program with the rules that its steps are checked by, and room for what a step brings as lists.
struct Runner {
  program::Program program;
  std::optional<program::Checker> checker;
  std::vector<std::shared_ptr<program::SharedWork>> works;
  std::shared_ptr<program::Adapters> adapters;  // null: no instruction asks them
  std::size_t num_groups = 0;
  std::size_t num_ropes = 0;
  std::vector<program::PageTable> tables;
  std::vector<program::RopeChoice> choices;
  std::vector<std::vector<attention::PageCopy>> copies;
};

// Adds one method per instruction.
void def_instructions(nanobind::class_<Runner>& cls);

}  // namespace trivium::bindings
