// The M-step and the E-step of one window.
#pragma once

#include "em_costs.h"
#include "em_votes.h"

namespace capsella::CAPSELLA_ISA {

constexpr float LOG_2PI = 1.8378770664093453f;

// r_ij / sum_i r_ij into s [i], as a softmax over the children; returns the data sum_i R_ij a_i.
template <class W>
VecOf<W> shares(const W& w, const VecOf<W>* log_couplings, VecOf<W>* s) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  V most = splat<L>(Max::neutral);
  for (int64_t i = 0; i < w.children; ++i) most = vmax<L>(most, log_couplings[i] + w.log_active[i]);
  V sum{}, data{};
  for (int64_t i = 0; i < w.children; ++i) {
    s[i] = vexp<L>(log_couplings[i] + w.log_active[i] - most);
    sum += s[i];
    data += w.active[i] < LEAST_ACTIVATION ? s[i] * (w.active[i] / LEAST_ACTIVATION) : s[i];
  }
  const V inverse = 1.0f / sum;
  for (int64_t i = 0; i < w.children; ++i) s[i] *= inverse;
  return data * vexp<L>(most);
}

// M-step of iteration t: means, variances and log-activations into what is kept.
template <class W>
void m_step(W& w, int t, const VecOf<W>* log_couplings) {
  using V = VecOf<W>;
  for (int64_t block = 0; block < w.blocks; ++block) {
    V* s = &w.shares[block * w.children];
    const V data = shares(w, log_couplings + block * w.children, s);
    const V *votes = &w.votes[block * w.children * w.D()];
    V mu[W::capacity], variance[W::capacity];
    for (int64_t d = 0; d < w.D(); ++d) mu[d] = variance[d] = V{};
    for (int64_t i = 0; i < w.children; ++i)
      for (int64_t d = 0; d < w.D(); ++d) mu[d] += s[i] * votes[i * w.D() + d];
    for (int64_t i = 0; i < w.children; ++i)
      for (int64_t d = 0; d < w.D(); ++d) {
        const V x = votes[i * w.D() + d] - mu[d];
        variance[d] += s[i] * (x * x);
      }
    for (int64_t d = 0; d < w.D(); ++d) {
      *w.mean_at(t, block, d) = mu[d];
      *w.variance_at(t, block, d) = variance[d];
    }
    cost_of(w, t, block, data);
  }
  logistic(w, t);
}

// The logits of the E-step after iteration t: ln a_j + ln N(V_ij; mu_j, sigma^2_j), [blocks i].
template <class W>
void e_step(const W& w, int t, VecOf<W>* logits) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  for (int64_t block = 0; block < w.blocks; ++block) {
    V mu[W::capacity], precision[W::capacity];
    V constant = *w.log_activation_at(t, block) - 0.5f * (log_determinant(w, t, block) + splat<L>(LOG_2PI * w.D()));
    for (int64_t d = 0; d < w.D(); ++d) {
      mu[d] = *w.mean_at(t, block, d);
      precision[d] = 1.0f / w.floored(*w.variance_at(t, block, d));
    }
    constant = (float(block * L) + w.lane_numbers() < splat<L>(w.conv.c_out)) ? constant : splat<L>(NEVER);
    const V* votes = &w.votes[block * w.children * w.D()];
    for (int64_t i = 0; i < w.children; ++i) {
      V distance{};
      for (int64_t d = 0; d < w.D(); ++d) {
        const V x = votes[i * w.D() + d] - mu[d];
        distance += (x * x) * precision[d];
      }
      logits[block * w.children + i] = constant - 0.5f * distance;
    }
  }
}

// ln sum_j exp(logits_ij) over the types at this site, [i].
template <class W>
void log_sum_exp(W& w, const VecOf<W>* logits, float* out) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  for (int64_t i = 0; i < w.children; ++i) {
    V most = logits[i];
    for (int64_t block = 1; block < w.blocks; ++block) most = vmax<L>(most, logits[block * w.children + i]);
    w.per_child[i] = most;
  }
  reduce_rows<Max, L>(w.per_child.get(), w.children, w.largest.get());
  for (int64_t i = 0; i < w.children; ++i) {
    V sum{};
    for (int64_t block = 0; block < w.blocks; ++block) sum += vexp<L>(logits[block * w.children + i] - w.largest[i]);
    w.per_child[i] = sum;
  }
  reduce_rows<Add, L>(w.per_child.get(), w.children, out);
  log_in_place(w, out);
  for (int64_t i = 0; i < w.children; ++i) out[i] += w.largest[i];
}

// Logits to log-couplings, in place: over the types at this site, or over all parents of the child (log Z [b h w
// c_in]).
template <class W>
void normalise(W& w, VecOf<W>* logits, const float* log_normalisers) {
  if (log_normalisers)
    gather(w, log_normalisers);
  else
    log_sum_exp(w, logits, w.sums.get());
  for (int64_t block = 0; block < w.blocks; ++block)
    for (int64_t i = 0; i < w.children; ++i) logits[block * w.children + i] -= w.sums[i];
}

// The couplings of iteration t from what forward kept.
template <class W>
void recall(W& w, int t, VecOf<W>* log_couplings, const float* log_normalisers) {
  if (t == 0) return start_couplings(w, log_couplings);
  e_step(w, t - 1, log_couplings);
  normalise(w, log_couplings, log_normalisers);
}

// The parents at this site: poses [c_out d], activations [c_out].
template <class W>
void write_parents(const W& w, float* poses, float* activations) {
  constexpr int L = W::lanes;
  const int t = w.options.iterations - 1;
  for (int64_t block = 0; block < w.blocks; ++block) {
    const VecOf<W> a = vexp<L>(*w.log_activation_at(t, block));
    for (int64_t l = 0; l < L && block * L + l < w.conv.c_out; ++l) {
      activations[w.n * w.conv.c_out + block * L + l] = a[l];
      float* pose = poses + (w.n * w.conv.c_out + block * L + l) * w.D();
      for (int64_t d = 0; d < w.D(); ++d) pose[d] = (*w.mean_at(t, block, d))[l];
    }
  }
}

}  // namespace capsella::CAPSELLA_ISA
