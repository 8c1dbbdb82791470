// Forward routing of 16 windows side by side, a window in each lane of a vector, where poses of children and parents are
// vectors of 8.
//
// The scalar products of votes, the softmax over parents and the sums over children then need no lane but their own,
// and a child's weight is read in the order in which it is stored.
#pragma once

#include "dynamic_common.h"

namespace capsella::CAPSELLA_ISA {

class WindowLanes {
  using X = Vec<16>;

 public:
  static constexpr int64_t WINDOWS = 16, EIGHT = 8;

  WindowLanes(const Conv& conv, const DynamicOptions& options, int threads)
      : parents_(conv.c_out), softmax_(conv, options.leaky), memory_(threads * memory()) {}

  // Before the children: g [windows c_out 8] of 16 windows.
  void begin(int thread, const float* g) {
    float* lanes = reinterpret_cast<float*>(this->g(thread));
    for (int64_t w = 0; w < WINDOWS; ++w)
      for (int64_t z = 0; z < parents_ * EIGHT; ++z) lanes[z * WINDOWS + w] = g[w * parents_ * EIGHT + z];
    std::fill_n(sums(thread), parents_ * EIGHT, X{});
  }

  // One child with its weight [c_out 8 8]; pose(window) is its pose there. The sums get its votes times its couplings.
  template <class Pose>
  void add(int thread, bool first, const float* weight, Pose pose) {
    X u[EIGHT];
    for (int64_t w = 0; w < WINDOWS; ++w) {
      const float* values = pose(w);
      for (int64_t q = 0; q < EIGHT; ++q) reinterpret_cast<float*>(&u[q])[w] = values[q];
    }
    X* couplings = this->couplings(thread);
    if (first)
      softmax_.even(couplings, parents_);
    else
      couple(thread, weight, u, couplings);
    X* s = sums(thread);
    for (int64_t j = 0; j < parents_; ++j, s += EIGHT, weight += EIGHT * EIGHT) {
      X scaled[EIGHT], sum[EIGHT];
      for (int64_t q = 0; q < EIGHT; ++q) scaled[q] = couplings[j] * u[q];
      for (int64_t e = 0; e < EIGHT; ++e) sum[e] = s[e];
      for (int64_t q = 0; q < EIGHT; ++q)
        for (int64_t e = 0; e < EIGHT; ++e) sum[e] += scaled[q] * weight[q * EIGHT + e];
      for (int64_t e = 0; e < EIGHT; ++e) s[e] = sum[e];
    }
  }

  // After them: sums [windows c_out 8] += theirs.
  void end(int thread, float* sums) {
    const float* lanes = reinterpret_cast<const float*>(this->sums(thread));
    for (int64_t w = 0; w < WINDOWS; ++w)
      for (int64_t z = 0; z < parents_ * EIGHT; ++z) sums[w * parents_ * EIGHT + z] += lanes[z * WINDOWS + w];
  }

 private:
  int64_t memory() const { return (2 * EIGHT + 1) * parents_; }
  X* g(int thread) { return &memory_[thread * memory()]; }
  X* sums(int thread) { return g(thread) + EIGHT * parents_; }
  X* couplings(int thread) { return sums(thread) + EIGHT * parents_; }

  void couple(int thread, const float* weight, const X* u, X* couplings) {
    const X* g = this->g(thread);
    for (int64_t j = 0; j < parents_; ++j, g += EIGHT, weight += EIGHT * EIGHT) {
      X vote[EIGHT];
      for (int64_t e = 0; e < EIGHT; ++e) vote[e] = u[0] * weight[e];
      for (int64_t q = 1; q < EIGHT; ++q)
        for (int64_t e = 0; e < EIGHT; ++e) vote[e] += u[q] * weight[q * EIGHT + e];
      X even = vote[0] * g[0], odd = vote[1] * g[1];
      for (int64_t e = 2; e < EIGHT; e += 2) {
        even += vote[e] * g[e];
        odd += vote[e + 1] * g[e + 1];
      }
      couplings[j] = even + odd;
    }
    softmax_.apply(couplings);
  }

  int64_t parents_;
  Softmax<16, 1> softmax_;
  Scratch<X> memory_;
};

}  // namespace capsella::CAPSELLA_ISA
