// What dynamic routing (Sabour et al. 2017, Procedure 1) needs whether weights are tied or not.
//
// Procedure 1 adds v to the logits as û·v in every iteration. û never changes, so the logits of an iteration are
// û·g, with g the sum of the v before it: an iteration is one pass over the children that needs g alone.
#pragma once

#include <algorithm>

#include "packing.h"
#include "scratch.h"

namespace capsella::CAPSELLA_ISA {

// Groups of children, begin ... end - 1, whose sums are made together.
struct Chunks {
  int64_t begin, end;
};

template <int L>
inline Vec<L> load(const float* from) {
  Vec<L> x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

template <int L>
inline void store(float* to, Vec<L> x) {
  std::memcpy(to, &x, sizeof(x));
}

// The poses of the children of every window, where they lie in [b h w c_in p].
class WindowPoses {
 public:
  WindowPoses(const Conv& conv, const float* poses)
      : p_(conv.p()), width_(conv.c_in * conv.p()), poses_(poses), corners_(conv.windows()), steps_(conv.slots()) {
    for (int64_t n = 0; n < conv.windows(); ++n) corners_[n] = Window(conv, n).position(conv, 0);
    for (int64_t k = 0; k < conv.slots(); ++k)
      steps_[k] = k / conv.kernel_width * conv.width + k % conv.kernel_width;
  }

  // The position in [b h w] of slot k of window n.
  int64_t position(int64_t n, int64_t k) const { return corners_[n] + steps_[k]; }
  const float* at(int64_t n, int64_t k, int64_t m) const {
    return poses_ + position(n, k) * width_ + m * p_;
  }

 private:
  int64_t p_, width_;  // floats of a child's pose, and of all poses at one position
  const float* poses_;
  Scratch<int64_t> corners_;  // [n]
  Scratch<int64_t> steps_;    // [k]
};

// Couplings: vectors whose lanes are children, one for each parent; or for each pair of parents (`Beside` = 2), whose
// lanes are children by children, each with both parents.
template <int L, int Beside = 1>
class Softmax {
  using V = Vec<L>;

 public:
  Softmax(const Conv& conv, bool leaky) : parents_(conv.c_out), vectors_(conv.c_out / Beside), leaky_(leaky) {}

  // Couplings [count] of the first iteration.
  void even(V* couplings, int64_t count) const {
    std::fill_n(couplings, count, splat<L>(1.0f / float(parents_ + leaky_)));
  }

  // Logits, vectors `stride` apart, to couplings, in place; a leak is one more parent, with logit 0.
  void apply(V* logits, int64_t stride = 1) const {
    V largest = leaky_ ? V{} : logits[0];
    for (int64_t j = 0; j < vectors_; ++j) largest = vmax<L>(largest, logits[j * stride]);
    largest = together<Max>(largest);
    V sum{};
    for (int64_t j = 0; j < vectors_; ++j) {
      logits[j * stride] = vexp<L>(logits[j * stride] - largest);
      sum += logits[j * stride];
    }
    sum = together<Add>(sum);
    const V inverse = 1.0f / (leaky_ ? sum + vexp<L>(-largest) : sum);
    for (int64_t j = 0; j < vectors_; ++j) logits[j * stride] *= inverse;
  }

  // The gradient of couplings to that of their logits, in place.
  void gradient(const V* couplings, V* gradient, int64_t stride = 1) const {
    V mean{};
    for (int64_t j = 0; j < vectors_; ++j) mean += couplings[j * stride] * gradient[j * stride];
    mean = together<Add>(mean);
    for (int64_t j = 0; j < vectors_; ++j)
      gradient[j * stride] = couplings[j * stride] * (gradient[j * stride] - mean);
  }

 private:
  // Of the lanes of a child, all joined.
  template <class Op>
  static V together(V x) {
    if constexpr (Beside == 1) return x;
    return Op::apply(x, swapped(x, std::make_index_sequence<L>{}));
  }
  template <size_t... l>
  static V swapped(V x, std::index_sequence<l...>) {
    return __builtin_shufflevector(x, x, int(l ^ 1)...);
  }

  int64_t parents_, vectors_;
  bool leaky_;
};

// What the backward pass knows of every window and iteration t, in vectors [c_out d] of `size`: the gradient of s, and
// g, which is 0 in the first iteration and not kept.
template <int L>
class Terms {
  using V = Vec<L>;

 public:
  Terms(int64_t windows, int iterations, int64_t size)
      : iterations_(iterations), size_(size), memory_(windows * (2 * iterations - 1) * size) {}
  int iterations() const { return iterations_; }
  V* sum_gradient(int64_t n, int t) { return &memory_[(n * (2 * iterations_ - 1) + t) * size_]; }
  const V* sum_gradient(int64_t n, int t) const { return const_cast<Terms*>(this)->sum_gradient(n, t); }
  V* g(int64_t n, int t) { return sum_gradient(n, iterations_ - 1 + t); }
  const V* g(int64_t n, int t) const { return const_cast<Terms*>(this)->g(n, t); }

 private:
  int iterations_;
  int64_t size_;
  Scratch<V> memory_;
};

}  // namespace capsella::CAPSELLA_ISA
