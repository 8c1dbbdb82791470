// From the gradients of all iterations of one window to those of its children and of the weight.
#pragma once

#include "em_backward.h"

namespace capsella::CAPSELLA_ISA {

// What `vote_gradient` needs beside the gradients themselves, side by side.
template <class W>
void prepare_vote_gradients(W& w) {
  for (int t = 0; t < w.options.iterations; ++t)
    for (int64_t block = 0; block < w.blocks; ++block)
      for (int64_t d = 0; d < w.D(); ++d) {
        w.means[(t * w.blocks + block) * w.D() + d] = *w.mean_at(t, block, d);
        w.precisions[(t * w.blocks + block) * w.D() + d] = 1.0f / w.floored(*w.variance_at(t, block, d));
      }
}

// Gradient of the vote of child i for the parents of a block, from its share s and its pull e in every iteration:
// g [d] = sum_t s (grad mu + 2 grad sigma^2 (V - mu)) - e (V - mu) / sigma^2.
template <class W>
void vote_gradient(const W& w, int64_t i, int64_t block, const Carried<W::lanes>& carried, VecOf<W>* g) {
  using V = VecOf<W>;
  const V* votes = &w.votes[(block * w.children + i) * w.D()];
  for (int64_t d = 0; d < w.D(); ++d) g[d] = V{};
  for (int t = 0; t < w.options.iterations; ++t) {
    const int64_t at = t * w.blocks + block;
    const V s = carried.shares[at * w.children + i], s2 = s + s;
    const V pull = t == w.options.iterations - 1 ? V{} : carried.pulls[at * w.children + i];
    const V *gm = carried.grad_means + at * w.D(), *gv = carried.grad_variances + at * w.D();
    const V *mu = &w.means[at * w.D()], *precision = &w.precisions[at * w.D()];
    for (int64_t d = 0; d < w.D(); ++d)
      g[d] += s * gm[d] + (s2 * gv[d] - pull * precision[d]) * (votes[d] - mu[d]);
  }
}

// From all iterations' gradients to those of the window's poses [i p] and activations [i], and of the
// weight, added to grad_weight [blocks weights q e].
template <class W>
void input_gradients(W& w, Carried<W::lanes>& carried, VecOf<W>* grad_weight, float* grad_poses,
                     float* grad_activations) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  reduce_rows<Add, L>(carried.grad_activations, w.children, grad_activations);
  const int64_t P = w.R() * w.Q();
  prepare_vote_gradients(w);
  for (int64_t i = 0; i < w.children; ++i) {
    V grad_pose[W::pose_capacity];
    for (int64_t p = 0; p < P; ++p) grad_pose[p] = V{};
    for (int64_t block = 0; block < w.blocks; ++block) {
      V g[W::capacity];
      vote_gradient(w, i, block, carried, g);
      const V* weight = w.weight_of(block, i);
      V* into = grad_weight + (weight - w.weight);
      const float* pose = &w.poses[i * P];
      for (int64_t q = 0; q < w.Q(); ++q)
        for (int64_t e = 0; e < w.E(); ++e) {
          V sum = into[q * w.E() + e];
          for (int64_t r = 0; r < w.R(); ++r) {
            sum += pose[r * w.Q() + q] * g[r * w.E() + e];
            grad_pose[r * w.Q() + q] += g[r * w.E() + e] * weight[q * w.E() + e];
          }
          into[q * w.E() + e] = sum;
        }
    }
    reduce_rows<Add, L>(grad_pose, P, grad_poses + i * P);
  }
}

}  // namespace capsella::CAPSELLA_ISA
