#include "program/program.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/parallel.h"

namespace trivium::program {
namespace {

constexpr std::size_t kLine = 64;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

void Program::add(std::unique_ptr<Instruction> instruction) { instructions_.push_back(std::move(instruction)); }

void Program::seal() {
  scratch_bytes_ = kLine;
  for (const auto& instruction : instructions_) scratch_bytes_ = std::max(scratch_bytes_, instruction->scratch_bytes());
  // A line between members, so that none writes where another reads.
  scratch_bytes_ = (scratch_bytes_ + kLine - 1) / kLine * kLine + kLine;
  scratch_.assign(scratch_bytes_ * static_cast<std::size_t>(num_threads()) + kLine, std::byte{0});
}

std::byte* Program::scratch_of(int member) {
  const std::size_t start = (kLine - reinterpret_cast<std::uintptr_t>(scratch_.data()) % kLine) % kLine;
  return scratch_.data() + start + scratch_bytes_ * static_cast<std::size_t>(member);
}

void Program::copy_pages(const Step& step, Team& team) const {
  bool has_copies = false;
  for (std::size_t group = 0; group < step.copies.size(); ++group) {
    if (step.copies[group].empty()) continue;
    attention::copy_pages(stores_[group], step.copies[group], team);
    has_copies = true;
  }
  if (has_copies) team.barrier();
}

void Program::run(const Step& step, std::byte* arena, Part part, double* seconds) {
  TRIV_CHECK(!scratch_.empty(), "program: run before it was sealed");
  TRIV_CHECK(part.begin <= part.end && part.end <= size(), "program: part [%zu, %zu) of %zu instructions", part.begin,
             part.end, size());
  if (scratch_.size() < scratch_bytes_ * static_cast<std::size_t>(num_threads()) + kLine) seal();  // more threads now
  run_team([&](Team& team) {
    const Frame frame{step, arena, scratch_of(team.index())};
    if (part.begin == 0) copy_pages(step, team);
    if (team.index() == 0) {
      for (const auto& instruction : instructions_) instruction->prepare(step, team.size());
    }
    team.barrier();
    double begun = now_s();
    for (std::size_t i = part.begin; i < part.end; ++i) {
      instructions_[i]->run(frame, team);
      team.barrier();
      if (seconds == nullptr || team.index() != 0) continue;
      const double ended = now_s();
      seconds[i] += ended - begun;
      begun = ended;
    }
  });
}

}  // namespace trivium::program
