// From the gradients of all iterations of one window to those of its children and of the weight.
#pragma once

#include "mixture_backward.h"

namespace capsella::CAPSELLA_ISA {

// Gradient of the vote V [d] of child i for the parents of a block, from its share s and its pull e in every iteration:
// g [d] = sum_t s (grad mu + 2 grad sigma^2 (V - mu)) - e P (V - m), m the centre and P its precisions.
template <class W>
[[gnu::always_inline]] inline void vote_gradient(const W& w, int64_t i, int64_t block, const VecOf<W>* votes,
                                                 const Carried<W::lanes>& carried, VecOf<W>* g) {
  using V = VecOf<W>;
  for_parts(w, [&](auto part, int64_t from) {
    V sum[part.capacity], vote[part.capacity];
    part.each([&](int64_t d) { sum[d] = V{}; vote[d] = votes[from + d]; });
    for (int t = 0; t < w.options.iterations; ++t) {
      const int64_t at = t * w.blocks + block, first = at * w.D() + from;
      const V s = carried.shares[at * w.children + i], s2 = s + s;
      const V pull = t == w.options.iterations - 1 ? V{} : carried.pulls[at * w.children + i];
      const V *grad_mean = carried.grad_means + first, *grad_variance = carried.grad_variances + first;
      const V *mu = &w.means[first], *precision = &w.precisions[first];
      if constexpr (W::Formulas::shrinks) {
        const V* centre = &w.shrunk[first];
        part.each([&](int64_t d) { sum[d] -= pull * precision[d] * (mu[d] - centre[d]); });
      }
      part.each([&](int64_t d) {
        sum[d] += s * grad_mean[d] + (s2 * grad_variance[d] - pull * precision[d]) * (vote[d] - mu[d]);
      });
    }
    part.each([&](int64_t d) { g[from + d] = sum[d]; });
  });
}

// grad_weight [q e] += M^T g and grad_pose [r q] = g W^T, of one child and a block of parents.
template <class W>
[[gnu::always_inline]] inline void product_gradients(const W& w, const float* pose, const VecOf<W>* weight,
                                                     const VecOf<W>* g, VecOf<W>* grad_weight, VecOf<W>* grad_pose) {
  using V = VecOf<W>;
  for (int64_t q = 0; q < w.Q(); ++q)
    for (int64_t e = 0; e < w.E(); ++e) {
      V sum = grad_weight[q * w.E() + e];
      for (int64_t r = 0; r < w.R(); ++r) sum += pose[r * w.Q() + q] * g[r * w.E() + e];
      grad_weight[q * w.E() + e] = sum;
    }
  for (int64_t r = 0; r < w.R(); ++r)
    for (int64_t q = 0; q < w.Q(); ++q) {
      V sum{};
      for (int64_t e = 0; e < w.E(); ++e) sum += g[r * w.E() + e] * weight[q * w.E() + e];
      grad_pose[r * w.Q() + q] = sum;
    }
}

// From all iterations' gradients of a window to those of its children's poses, added to grad_poses [i p], and of the
// weight, added to grad_weight [blocks weights q e], and of the votes' bias, to grad_bias [blocks i d]: what a block of
// parents gives.
template <bool Paired, class W>
void input_gradients(const W& w, int64_t block, const Carried<W::lanes>& carried, VecOf<W>* grad_weight,
                     [[maybe_unused]] VecOf<W>* grad_bias, float* grad_poses) {
  using V = VecOf<W>;
  const int64_t P = w.R() * w.Q();
  for (int64_t i = 0; i < w.children; ++i) {
    V votes[W::capacity], grad[W::capacity], grad_pose[W::pose_capacity];
    vote_of<Paired>(w, block, i, votes);
    vote_gradient(w, i, block, votes, carried, grad);
    if constexpr (W::Formulas::biased)
      if (w.packed.bias)
        for (int64_t d = 0; d < w.D(); ++d) grad_bias[w.bias_at(block, i) + d] += grad[d];
    const V* weight = w.weight_of(block, i);
    product_gradients(w, &w.poses[i * P], weight, grad, grad_weight + (weight - w.packed.weight), grad_pose);
    float sums[W::pose_capacity];
    reduce_rows<Add, W::lanes>(grad_pose, P, sums);
    for (int64_t p = 0; p < P; ++p) grad_poses[i * P + p] += sums[p];
  }
}

}  // namespace capsella::CAPSELLA_ISA
