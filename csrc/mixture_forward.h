// The M-step and the E-step of one window.
#pragma once

#include "mixture_votes.h"

namespace capsella::CAPSELLA_ISA {

template <class W>
void clear_sums(W& w) {
  using V = VecOf<W>;
  for (int64_t block = 0; block < w.blocks; ++block) {
    w.most[block] = splat<W::lanes>(Max::neutral);
    w.total[block] = w.data[block] = V{};
    if constexpr (W::Formulas::linear) w.linear[block] = V{};
  }
  for (int64_t k = 0; k < w.blocks * w.D(); ++k) w.mean[k] = w.square[k] = V{};
}

// Add a group to the weighted sums over the children of a block of parents. The weights are r_ij = R_ij a_i with each a_i
// at least LEAST_ACTIVATION, all divided by the largest so far, of which `most` is the logarithm. `total` is their sum,
// `data` the sum of R_ij a_i as the a_i are, `mean` that of the votes, and `square` the weighted sum of squared
// differences from it. Groups are joined as in Chan, Golub, LeVeque 1983: nothing cancels. `linear` is the weighted sum
// of the formulas' own number of each child, where they have one.
template <class W>
void add_children(W& w, int64_t block, int64_t first, int64_t count) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  const V* log_couplings = &w.couplings[block * GROUP];
  V r[GROUP], most = w.most[block];
  for (int64_t g = 0; g < count; ++g) {
    r[g] = log_couplings[g] + w.log_active[first + g];
    most = vmax<L>(most, r[g]);
  }
  V sum{}, data{};
  for (int64_t g = 0; g < count; ++g) {
    r[g] = vexp<L>(r[g] - most);
    sum += r[g];
    data += r[g] * w.counted[first + g];
  }
  const V before = w.total[block] * vexp<L>(w.most[block] - most), total = before + sum;
  const V inverse = sum > V{} ? 1.0f / sum : V{}, share = sum / total, shrink = vexp<L>(w.most[block] - most);
  w.most[block] = most;
  w.total[block] = total;
  w.data[block] = w.data[block] * shrink + data;
  if constexpr (W::Formulas::linear) {
    V use = w.linear[block] * shrink;
    for (int64_t g = 0; g < count; ++g)
      use += r[g] * w.counted[first + g] * w.parameter(W::Formulas::row_of(w, first + g), block);
    w.linear[block] = use;
  }
  for_parts(w, [&](auto part, int64_t from) {
    const V* votes = w.votes_at(block, first) + from;
    V mean[part.capacity], square[part.capacity];
    part.each([&](int64_t d) { mean[d] = square[d] = V{}; });
    for (int64_t g = 0; g < count; ++g) part.each([&](int64_t d) { mean[d] += r[g] * votes[g * w.D() + d]; });
    part.each([&](int64_t d) { mean[d] *= inverse; });
    for (int64_t g = 0; g < count; ++g)
      part.each([&](int64_t d) {
        const V x = votes[g * w.D() + d] - mean[d];
        square[d] += r[g] * (x * x);
      });
    V *all = &w.mean[block * w.D() + from], *squares = &w.square[block * w.D() + from];
    part.each([&](int64_t d) {
      const V step = (mean[d] - all[d]) * share;
      squares[d] = squares[d] * shrink + square[d] + (mean[d] - all[d]) * step * before;
      all[d] += step;
    });
  });
}

// Of a block of parents after iteration t, from what is kept: means, and by the formulas centres, precisions and the sum
// of log-variances.
template <class W>
void describe_parents(W& w, int t, int64_t block) {
  const int64_t at = t * w.blocks + block;
  for (int64_t d = 0; d < w.D(); ++d) w.means[at * w.D() + d] = *w.mean_at(t, block, d);
  W::Formulas::describe(w, t, block);
}

template <class W>
void describe_parents(W& w, int t) {
  for (int64_t block = 0; block < w.blocks; ++block) describe_parents(w, t, block);
}

// The data of iteration t: sum_i R_ij a_i.
template <class W>
VecOf<W> data_of(const W& w, int t, int64_t block) {
  return *w.data_at(t, block);
}

// ln logistic(z).
template <int L>
Vec<L> log_logistic(Vec<L> z) {
  const auto negative = z < Vec<L>{};
  return (negative ? z : Vec<L>{}) - vlog1p<L>(vexp<L>(negative ? z : -z));
}

// The end of an M-step: means, variances, data and log-odds of iteration t into what is kept.
template <class W>
void finish_m_step(W& w, int t) {
  using V = VecOf<W>;
  for (int64_t block = 0; block < w.blocks; ++block) {
    const V inverse = 1.0f / w.total[block];
    for (int64_t d = 0; d < w.D(); ++d) {
      *w.mean_at(t, block, d) = w.mean[block * w.D() + d];
      *w.variance_at(t, block, d) = w.square[block * w.D() + d] * inverse;
    }
    *w.data_at(t, block) = w.data[block] * vexp<W::lanes>(w.most[block]);
    *w.log_total_at(t, block) = w.most[block] + vlog<W::lanes>(w.total[block]);
  }
  describe_parents(w, t);
  W::Formulas::score(w, t);
}

// M-step of iteration t. couplings(first, count) must set w.couplings of that group.
template <class W, class Couplings>
void m_step(W& w, int t, Couplings couplings) {
  clear_sums(w);
  for_each_group(w, [&](int64_t first, int64_t count) {
    couplings(first, count);
    for (int64_t block = 0; block < w.blocks; ++block) add_children(w, block, first, count);
  });
  finish_m_step(w, t);
}

// The logits of a group in the E-step after iteration t, into w.couplings: each parent's constant less half the distance
// of its centre, by its precisions.
template <class W>
void e_step(W& w, int t, int64_t first, int64_t count) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  for (int64_t block = 0; block < w.blocks; ++block) {
    const int64_t at = t * w.blocks + block;
    const auto real = float(block * L) + w.lane_numbers() < splat<L>(w.conv.c_out);
    const V constant = real ? w.constants[at] : splat<L>(NEVER);
    const V *mu = w.centres() + at * w.D(), *precision = &w.precisions[at * w.D()];
    for (int64_t g = 0; g < count; ++g) w.couplings[block * GROUP + g] = constant;
    for_parts(w, [&](auto part, int64_t from) {
      V m[part.capacity], p[part.capacity];
      part.each([&](int64_t d) { m[d] = mu[from + d]; p[d] = -0.5f * precision[from + d]; });
      for (int64_t g = 0; g < count; ++g) {
        const V* votes = w.votes_at(block, first + g) + from;
        V sums[2] = {w.couplings[block * GROUP + g], V{}};
        part.each([&](int64_t d) {
          const V x = votes[d] - m[d];
          sums[d % 2] += (x * x) * p[d];
        });
        w.couplings[block * GROUP + g] = sums[0] + sums[1];
      }
    });
  }
}

// Of a group over the types at this site: the largest logit [g], and out = ln sum_j exp(logits_ij - largest) [g].
template <class W>
void log_sum_exp(W& w, int64_t count, float* largest, float* out) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  for (int64_t g = 0; g < count; ++g) {
    V most = w.couplings[g];
    for (int64_t block = 1; block < w.blocks; ++block) most = vmax<L>(most, w.couplings[block * GROUP + g]);
    w.per_child[g] = most;
  }
  reduce_rows<Max, L>(w.per_child.get(), count, largest);
  for (int64_t g = 0; g < count; ++g) {
    V sum{};
    for (int64_t block = 0; block < w.blocks; ++block) sum += vexp<L>(w.couplings[block * GROUP + g] - largest[g]);
    w.per_child[g] = sum;
  }
  reduce_rows<Add, L>(w.per_child.get(), count, out);
  log_in_place<L>(out, count);
}

// The logits of a group to log-couplings, by the logarithm of each child's sum [g].
template <class W>
void normalise(W& w, int64_t count, const float* log_sums) {
  for (int64_t block = 0; block < w.blocks; ++block)
    for (int64_t g = 0; g < count; ++g) w.couplings[block * GROUP + g] -= log_sums[g];
}

// Take from the log-couplings of a group what the formulas do after the normalisation of iteration t - 1.
template <class W>
void scale(W& w, int t, int64_t count) {
  if constexpr (W::Formulas::scales)
    for (int64_t block = 0; block < w.blocks; ++block)
      for (int64_t g = 0; g < count; ++g) w.couplings[block * GROUP + g] -= w.log_scales[(t - 1) * w.blocks + block];
}

// The log-couplings of a group in iteration t: over the types at this site, or over all parents of the child, by the
// logarithms of their sums [i].
template <class W>
void couple(W& w, int t, int64_t first, int64_t count, const float* log_normalisers) {
  if (t == 0) return start_couplings(w, first, count);
  e_step(w, t - 1, first, count);
  if (log_normalisers) return normalise(w, count, log_normalisers + first);
  // One after the other: logits may be hundreds, and their sum would round couplings that are nearly 1.
  float largest[GROUP], log_sums[GROUP];
  log_sum_exp(w, count, largest, log_sums);
  normalise(w, count, largest);
  normalise(w, count, log_sums);
  scale(w, t, count);
}

// The parents at this site: poses [c_out d], log-odds [c_out].
template <class W>
void write_parents(const W& w, float* poses, float* log_odds) {
  constexpr int L = W::lanes;
  const int t = w.options.iterations - 1;
  for (int64_t block = 0; block < w.blocks; ++block) {
    const VecOf<W>*centre = w.centres() + (t * w.blocks + block) * w.D(), z = *w.log_odds_at(t, block);
    for (int64_t l = 0; l < L && block * L + l < w.conv.c_out; ++l) {
      log_odds[w.n * w.conv.c_out + block * L + l] = z[l];
      float* pose = poses + (w.n * w.conv.c_out + block * L + l) * w.D();
      for (int64_t d = 0; d < w.D(); ++d) pose[d] = centre[d][l];
    }
  }
}

}  // namespace capsella::CAPSELLA_ISA
