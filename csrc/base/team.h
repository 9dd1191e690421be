// A team: all compute threads run one function side by side and meet at barriers.
//
//   run_team([&](Team& team) {
//     work on share team.index() of team.size();
//     team.barrier();                              // everything written before is seen by everybody after
//     …
//   });
//
// One call costs one hand-over to the pool, whatever number of stages it has; a barrier costs a tenth of a
// microsecond while everybody runs. A member that waits long (a displaced thread, a neighbour's larger share) sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <type_traits>

namespace trivium {

class Team {
 public:
  int index() const { return index_; }
  int size() const { return shared_ == nullptr ? 1 : shared_->size; }

  // Waits until every member is here.
  void barrier() {
    if (shared_ != nullptr) meet(*shared_);
  }

  // [begin, end) of this member's share of `count` items, cut into `size` runs whose lengths differ by one at most.
  struct Share {
    std::size_t begin;
    std::size_t end;
  };
  Share share(std::size_t count) const {
    const auto members = static_cast<std::size_t>(size());
    const auto member = static_cast<std::size_t>(index_);
    return {count * member / members, count * (member + 1) / members};
  }

  // What the members of one run share; made by run_team.
  struct Shared {
    int size;
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<unsigned> round{0};
  };

  Team(int index, Shared* shared) : index_(index), shared_(shared) {}

 private:
  static void meet(Shared& shared);

  int index_;
  Shared* shared_;  // null: a team of one
};

namespace internal {
using MemberFn = void (*)(void* context, Team& team);
void run_members(MemberFn fn, void* context);
}  // namespace internal

// Runs fn(Team&) on every thread of the pool and returns when all have. A team of one, in the caller, when there is one
// thread, or when the pool is busy for another caller. `fn` must not throw.
template <class Fn>
void run_team(Fn&& fn) {
  internal::run_members([](void* context, Team& team) { (*static_cast<std::remove_reference_t<Fn>*>(context))(team); },
                        const_cast<void*>(static_cast<const void*>(&fn)));
}

}  // namespace trivium
