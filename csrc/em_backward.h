// One iteration of one window, backward.
#pragma once

#include "em_forward.h"

namespace capsella::CAPSELLA_ISA {

// What a window carries from one phase of its backward pass to the next: vectors, for t iterations.
// shares, pulls [t blocks i]; grad_means, grad_variances [t blocks d]; log_couplings [blocks i];
// grad_activations [i]. pulls holds the gradient of each iteration's logits.
template <int L>
struct Carried {
  using V = Vec<L>;
  V *shares, *pulls, *grad_means, *grad_variances, *log_couplings, *grad_activations;

  static int64_t size(int64_t t, int64_t blocks, int64_t children, int64_t d) {
    return 2 * t * blocks * (children + d) + blocks * children + children;
  }
  Carried(V* memory, int64_t t, int64_t blocks, int64_t children, int64_t d) {
    shares = memory;
    pulls = shares + t * blocks * children;
    grad_means = pulls + t * blocks * children;
    grad_variances = grad_means + t * blocks * d;
    log_couplings = grad_variances + t * blocks * d;
    grad_activations = log_couplings + blocks * children;
  }
};

// Gradients of this iteration's means, variances and (returned) ln a: from the outputs after the last, else from the
// E-step.
template <class W>
VecOf<W> outer_gradients(const W& w, int t, int64_t block, Carried<W::lanes>& carried, const float* grad_poses,
                         const float* grad_activations) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  V* gm = carried.grad_means + (t * w.blocks + block) * w.D();
  V* gv = carried.grad_variances + (t * w.blocks + block) * w.D();
  if (t == w.options.iterations - 1) {
    V grad{};
    for (int64_t d = 0; d < w.D(); ++d) gm[d] = gv[d] = V{};
    for (int64_t l = 0; l < L && block * L + l < w.conv.c_out; ++l) {
      const int64_t parent = w.n * w.conv.c_out + block * L + l;
      grad[l] = grad_activations[parent];
      for (int64_t d = 0; d < w.D(); ++d) gm[d][l] = grad_poses[parent * w.D() + d];
    }
    return grad * vexp<L>(*w.log_activation_at(t, block));
  }
  const V* pull = carried.pulls + (t * w.blocks + block) * w.children;
  V total{};
  for (int64_t i = 0; i < w.children; ++i) total += pull[i];
  // In two halves, for which registers suffice.
  constexpr int64_t part = W::fixed && W::capacity % 2 == 0 ? W::capacity / 2 : W::capacity;
  for (int64_t from = 0; from < w.D(); from += part) {
    const int64_t count = std::min(part, w.D() - from);
    V mu[part], first[part], second[part];
    for (int64_t d = 0; d < count; ++d) {
      mu[d] = *w.mean_at(t, block, from + d);
      first[d] = second[d] = V{};
    }
    for (int64_t i = 0; i < w.children; ++i) {
      const V* votes = &w.votes[(block * w.children + i) * w.D() + from];
      for (int64_t d = 0; d < count; ++d) {
        const V x = votes[d] - mu[d], pulled = pull[i] * x;
        first[d] += pulled;
        second[d] += pulled * x;
      }
    }
    for (int64_t d = 0; d < count; ++d) {
      const V precision = 1.0f / w.floored(*w.variance_at(t, block, from + d));
      gm[from + d] = first[d] * precision;
      gv[from + d] = 0.5f * precision * (second[d] * precision - total);
    }
  }
  return total;
}

// Through the means, variances and data to ln R, of which all but the first iteration's is kept, and to a.
template <class W>
void share_gradients(W& w, int t, int64_t block, Carried<W::lanes>& carried, VecOf<W> grad_data) {
  using V = VecOf<W>;
  const V* s = carried.shares + (t * w.blocks + block) * w.children;
  const V* log_couplings = carried.log_couplings + block * w.children;
  V mu[W::capacity], gm[W::capacity], gv[W::capacity];
  for (int64_t d = 0; d < w.D(); ++d) {
    mu[d] = *w.mean_at(t, block, d);
    gm[d] = carried.grad_means[(t * w.blocks + block) * w.D() + d];
    gv[d] = carried.grad_variances[(t * w.blocks + block) * w.D() + d];
  }
  const V* votes = &w.votes[block * w.children * w.D()];
  V mean{};
  for (int64_t i = 0; i < w.children; ++i) {
    V g{};
    for (int64_t d = 0; d < w.D(); ++d) {
      const V x = votes[i * w.D() + d] - mu[d];
      g += x * (gm[d] + gv[d] * x);
    }
    w.per_child[i] = g;
    mean += s[i] * g;
  }
  for (int64_t i = 0; i < w.children; ++i) {
    const V coupling = vexp<W::lanes>(log_couplings[i]);
    const V grad_share = s[i] * (w.per_child[i] - mean);
    if (t > 0)
      carried.pulls[((t - 1) * w.blocks + block) * w.children + i] =
          grad_share + grad_data * coupling * w.active[i];
    V ga = grad_data * coupling;
    if (w.active[i] >= LEAST_ACTIVATION) ga += grad_share / w.active[i];
    const bool first = t == w.options.iterations - 1 && block == 0;
    carried.grad_activations[i] = (first ? V{} : carried.grad_activations[i]) + ga;
  }
}

// Backward through iteration t, from the gradients of its means, variances and ln a to that of its couplings'
// logarithms. `carried.pulls` of t holds the gradient of the logits of the E-step after it; that of t - 1 gets the
// gradient of ln R_t, not yet normalised, and `sums` its sum over the types.
template <class W>
void backward_iteration(W& w, int t, Carried<W::lanes>& carried, const float* grad_poses, const float* grad_activations,
                        VecOf<W>* grad_beta_u, VecOf<W>* grad_beta_a) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  for (int64_t block = 0; block < w.blocks; ++block) {
    V* s = carried.shares + (t * w.blocks + block) * w.children;
    w.data[block] = shares(w, carried.log_couplings + block * w.children, s);
    cost_of(w, t, block, w.data[block]);
    w.grad_log_activation[block] = outer_gradients(w, t, block, carried, grad_poses, grad_activations);
  }
  cost_gradients(w, t, grad_beta_a);
  for (int64_t block = 0; block < w.blocks; ++block) {
    const V amount = w.data[block] * w.data_scale;
    grad_beta_u[block] += w.grad_cost[block] * amount * float(w.D());
    V* gv = carried.grad_variances + (t * w.blocks + block) * w.D();
    for (int64_t d = 0; d < w.D(); ++d) {
      const V variance = *w.variance_at(t, block, d);
      const V g = gv[d] + 0.5f * w.grad_cost[block] * amount / w.floored(variance);
      gv[d] = variance >= splat<L>(w.options.variance_floor) ? g : V{};
    }
    share_gradients(w, t, block, carried, w.grad_cost[block] * w.gain[block] * w.data_scale);
  }
  if (t > 0) {
    const V* pull = carried.pulls + (t - 1) * w.blocks * w.children;
    for (int64_t i = 0; i < w.children; ++i) {
      w.per_child[i] = pull[i];
      for (int64_t block = 1; block < w.blocks; ++block) w.per_child[i] += pull[block * w.children + i];
    }
    reduce_rows<Add, L>(w.per_child.get(), w.children, w.sums.get());
  }
}

// Through the softmax over parents: pulls of t, the gradient of ln R, to that of the logits. `sums` must hold its sum
// over all parents of each child.
template <class W>
void pull_through_softmax(const W& w, int t, Carried<W::lanes>& carried) {
  auto* pull = carried.pulls + t * w.blocks * w.children;
  for (int64_t block = 0; block < w.blocks; ++block)
    for (int64_t i = 0; i < w.children; ++i)
      pull[block * w.children + i] -= vexp<W::lanes>(carried.log_couplings[block * w.children + i]) * w.sums[i];
}

}  // namespace capsella::CAPSELLA_ISA
