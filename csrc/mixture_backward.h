// One iteration of one window, backward.
#pragma once

#include "mixture_forward.h"

namespace capsella::CAPSELLA_ISA {

// What a window carries from one phase of its backward pass to the next: vectors, for t iterations.
// shares s_ij = r_ij / sum_i r_ij [t blocks i]; pulls [t blocks i], the gradients of each iteration's logits;
// grad_means, grad_variances [t blocks d]; couplings R_ij [blocks i], of the iteration last worked on; grad_activations,
// floats [i].
template <int L>
struct Carried {
  using V = Vec<L>;
  V *shares, *pulls, *grad_means, *grad_variances, *couplings;
  float* grad_activations;

  static int64_t size(int64_t t, int64_t blocks, int64_t children, int64_t d) {
    return 2 * t * blocks * (children + d) + blocks * children + (children + L - 1) / L;
  }
  Carried(V* memory, int64_t t, int64_t blocks, int64_t children, int64_t d) {
    shares = memory;
    pulls = shares + t * blocks * children;
    grad_means = pulls + t * blocks * children;
    grad_variances = grad_means + t * blocks * d;
    couplings = grad_variances + t * blocks * d;
    grad_activations = reinterpret_cast<float*>(couplings + blocks * children);
  }
};

// Before the pulls of iteration t are added: no sum yet.
template <class W>
void clear_pulls(W& w, int t, Carried<W::lanes>& carried) {
  using V = VecOf<W>;
  for (int64_t block = 0; block < w.blocks; ++block) {
    w.grad_constant[block] = V{};
    if constexpr (W::Formulas::scales) w.grad_log_scale[block] = V{};
    for (int64_t d = 0; d < w.D(); ++d) {
      carried.grad_means[(t * w.blocks + block) * w.D() + d] = V{};
      carried.grad_variances[(t * w.blocks + block) * w.D() + d] = V{};
    }
  }
}

// Add the pulls e_ij of a group to sum_i e, and to sum_i e x and sum_i e x^2 in place of the gradients of this
// iteration's means and variances, which pulled_gradients makes of them. x = V - m, the distance from the centre.
template <class W>
void add_pulls(W& w, int t, int64_t first, int64_t count, Carried<W::lanes>& carried) {
  using V = VecOf<W>;
  for (int64_t block = 0; block < w.blocks; ++block) {
    const int64_t at = t * w.blocks + block;
    const V* pull = carried.pulls + at * w.children + first;
    for (int64_t g = 0; g < count; ++g) w.grad_constant[block] += pull[g];
    for_parts(w, [&](auto part, int64_t from) {
      const V *mu = w.centres() + at * w.D() + from, *votes = w.votes_at(block, first) + from;
      V* grad_mean = carried.grad_means + at * w.D() + from;
      V* grad_variance = carried.grad_variances + at * w.D() + from;
      V e_x[part.capacity], e_xx[part.capacity], m[part.capacity];
      part.each([&](int64_t d) { e_x[d] = grad_mean[d]; e_xx[d] = grad_variance[d]; m[d] = mu[d]; });
      for (int64_t g = 0; g < count; ++g)
        part.each([&](int64_t d) {
          const V x = votes[g * w.D() + d] - m[d], pulled = pull[g] * x;
          e_x[d] += pulled;
          e_xx[d] += pulled * x;
        });
      part.each([&](int64_t d) { grad_mean[d] = e_x[d]; grad_variance[d] = e_xx[d]; });
    });
  }
}

// From sums over the children's pulls to the gradients of iteration t's centres and precisions.
template <class W>
void pulled_gradients(W& w, int t, int64_t block, Carried<W::lanes>& carried) {
  using V = VecOf<W>;
  const int64_t at = t * w.blocks + block;
  V *grad_mean = carried.grad_means + at * w.D(), *grad_variance = carried.grad_variances + at * w.D();
  for (int64_t d = 0; d < w.D(); ++d) {
    grad_mean[d] *= w.precisions[at * w.D() + d];
    grad_variance[d] *= -0.5f;
  }
  w.grad_log_odds[block] = V{};
}

// The gradients of the last iteration's centres and log-odds, which are the outputs.
template <class W>
void output_gradients(W& w, int64_t block, Carried<W::lanes>& carried, const float* grad_poses,
                      const float* grad_log_odds) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  const int t = w.options.iterations - 1;
  V* grad_mean = carried.grad_means + (t * w.blocks + block) * w.D();
  V* grad_variance = carried.grad_variances + (t * w.blocks + block) * w.D();
  V grad{};
  for (int64_t d = 0; d < w.D(); ++d) grad_mean[d] = grad_variance[d] = V{};
  for (int64_t l = 0; l < L && block * L + l < w.conv.c_out; ++l) {
    const int64_t parent = w.n * w.conv.c_out + block * L + l;
    grad[l] = grad_log_odds[parent];
    for (int64_t d = 0; d < w.D(); ++d) grad_mean[d][l] = grad_poses[parent * w.D() + d];
  }
  w.grad_log_odds[block] = grad;
  w.grad_constant[block] = V{};
  if constexpr (W::Formulas::scales) w.grad_log_scale[block] = V{};
}

// The gradients of iteration t's means, variances and data, from those of the outputs after the last iteration, and else
// from the pulls; adds to those of the parameters [blocks k].
template <class W>
void parent_gradients(W& w, int t, Carried<W::lanes>& carried, const float* grad_poses, const float* grad_log_odds,
                      VecOf<W>* grad_parameters) {
  for (int64_t block = 0; block < w.blocks; ++block) {
    w.expected[block] = VecOf<W>{};
    if (t == w.options.iterations - 1)
      output_gradients(w, block, carried, grad_poses, grad_log_odds);
    else
      pulled_gradients(w, t, block, carried);
  }
  const int64_t at = t * w.blocks * w.D();
  W::Formulas::gradients(w, t, carried.grad_means + at, carried.grad_variances + at, grad_parameters);
}

// The gradients of the shares s_ij of a group, from those of the means and variances of iteration t, into w.grad_shares.
template <class W>
void share_gradients(W& w, int t, int64_t block, int64_t first, int64_t count, Carried<W::lanes>& carried) {
  using V = VecOf<W>;
  const int64_t at = t * w.blocks + block;
  V* out = &w.grad_shares[block * w.children + first];
  for (int64_t g = 0; g < count; ++g) out[g] = V{};
  for_parts(w, [&](auto part, int64_t from) {
    V mu[part.capacity], grad_mean[part.capacity], grad_variance[part.capacity];
    part.each([&](int64_t d) {
      mu[d] = w.means[at * w.D() + from + d];
      grad_mean[d] = carried.grad_means[at * w.D() + from + d];
      grad_variance[d] = carried.grad_variances[at * w.D() + from + d];
    });
    for (int64_t g = 0; g < count; ++g) {
      const V* votes = w.votes_at(block, first + g) + from;
      V sums[2] = {out[g], V{}};
      part.each([&](int64_t d) {
        const V x = votes[d] - mu[d];
        sums[d % 2] += x * (grad_mean[d] + grad_variance[d] * x);
      });
      out[g] = sums[0] + sums[1];
    }
  });
}

// The couplings of a group in iteration t, whose logarithms are in w.couplings, its shares, the gradients of these, and
// to w.expected their mean.
template <class W>
void take_shares(W& w, int t, int64_t first, int64_t count, Carried<W::lanes>& carried) {
  for (int64_t block = 0; block < w.blocks; ++block) {
    share_gradients(w, t, block, first, count, carried);
    const auto log_total = *w.log_total_at(t, block);
    auto* shares = carried.shares + (t * w.blocks + block) * w.children + first;
    auto* couplings = carried.couplings + block * w.children + first;
    const auto* grad = &w.grad_shares[block * w.children + first];
    for (int64_t g = 0; g < count; ++g) {
      couplings[g] = vexp<W::lanes>(w.couplings[block * GROUP + g]);
      shares[g] = vexp<W::lanes>(w.couplings[block * GROUP + g] + w.log_active[first + g] - log_total);
      w.expected[block] += shares[g] * grad[g];
    }
  }
}

// Of a group in iteration t: from the shares and the data to ln R, which becomes the pull of t - 1, and to a. out [g]:
// the sums of the pulls over the types at this site. Where the log-odds have a number for each child, adds to those of
// the parameters.
template <class W>
void coupling_gradients(W& w, int t, int64_t first, int64_t count, Carried<W::lanes>& carried, float* out,
                        [[maybe_unused]] VecOf<W>* grad_parameters) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  V of_activation[GROUP], pulls[GROUP];
  for (int64_t g = 0; g < count; ++g) of_activation[g] = pulls[g] = V{};
  for (int64_t block = 0; block < w.blocks; ++block) {
    const int64_t at = t * w.blocks + block;
    for (int64_t g = 0; g < count; ++g) {
      const int64_t i = first + g;
      const V share = carried.shares[at * w.children + i];
      V grad_data = w.grad_data[block];
      if constexpr (W::Formulas::linear)
        grad_data += W::Formulas::child_gradients(w, block, i, carried.couplings[block * w.children + i],
                                                  of_activation[g], grad_parameters);
      const V coupled = grad_data * carried.couplings[block * w.children + i];
      const V grad_share = share * (w.grad_shares[block * w.children + i] - w.expected[block]);
      of_activation[g] += coupled + grad_share * w.inverse_active[i];
      const V pull = grad_share + coupled * w.active[i];
      pulls[g] += pull;
      if (t > 0) carried.pulls[(at - w.blocks) * w.children + i] = pull;
    }
  }
  float sums[GROUP];
  reduce_rows<Add, L>(of_activation, count, sums);
  const bool last = t == w.options.iterations - 1;
  for (int64_t g = 0; g < count; ++g)
    carried.grad_activations[first + g] = (last ? 0.0f : carried.grad_activations[first + g]) + sums[g];
  reduce_rows<Add, L>(pulls, count, out);
}

// Through the softmax over parents: a group's pulls of t, until here the gradients of the next iteration's ln R, to those
// of the logits.
// sums [g]: the pulls' sums over all parents of each child.
template <class W>
void pull_through_softmax(W& w, int t, int64_t first, int64_t count, Carried<W::lanes>& carried,
                          const float* sums) {
  for (int64_t block = 0; block < w.blocks; ++block) {
    auto* pull = carried.pulls + (t * w.blocks + block) * w.children + first;
    const auto* couplings = carried.couplings + block * w.children + first;
    if constexpr (W::Formulas::scales) {  // the couplings are the softmax over what was taken from it
      const auto scale = vexp<W::lanes>(w.log_scales[t * w.blocks + block]);
      for (int64_t g = 0; g < count; ++g) {
        w.grad_log_scale[block] -= pull[g];
        pull[g] -= couplings[g] * scale * sums[g];
      }
    } else {
      for (int64_t g = 0; g < count; ++g) pull[g] -= couplings[g] * sums[g];
    }
  }
}

}  // namespace capsella::CAPSELLA_ISA
