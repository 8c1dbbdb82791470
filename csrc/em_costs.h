// The cost of describing a parent's data and the activation that follows from it (Procedure "M-step", lines 5 and 6),
// and their gradients.
#pragma once

#include <cmath>

#include "em_window.h"

namespace capsella::CAPSELLA_ISA {

constexpr float COST_EPSILON = 1e-8f;  // STANDARDISED_COST_EPSILON

template <class W>
VecOf<W> parameter(const W& w, const float* values, int64_t block) {
  constexpr int L = W::lanes;
  VecOf<W> x{};
  for (int64_t l = 0; l < L && block * L + l < w.conv.c_out; ++l) x[l] = values[block * L + l];
  return x;
}

// What the E-step after iteration t and the costs need of each parent, side by side: means and 1 / sigma^2 [t blocks d],
// and sum_d ln sigma^2_d [t blocks], of the floored variances.
template <class W>
void describe_parents(W& w, int t, int64_t block) {
  using V = VecOf<W>;
  const int64_t at = t * w.blocks + block;
  V log_sizes{};
  for (int64_t d = 0; d < w.D(); ++d) {
    const V variance = w.floored(*w.variance_at(t, block, d));
    w.means[at * w.D() + d] = *w.mean_at(t, block, d);
    w.precisions[at * w.D() + d] = 1.0f / variance;
    log_sizes += vlog<W::lanes>(variance);
  }
  w.log_sizes[at] = log_sizes;
}

template <class W>
void describe_parents(W& w, int t) {
  for (int64_t block = 0; block < w.blocks; ++block) describe_parents(w, t, block);
}

// The data of iteration t: sum_i R_ij a_i.
template <class W>
VecOf<W> data_of(const W& w, int t, int64_t block) {
  return vexp<W::lanes>(*w.log_data_at(t, block));
}

// cost_j before it is standardised, and gain, by which it grows with the (scaled) data.
template <class W>
void cost_of(W& w, int t, int64_t block) {
  w.gain[block] = float(w.D()) * parameter(w, w.inputs.beta_u, block) + 0.5f * w.log_sizes[t * w.blocks + block];
  w.cost[block] = w.gain[block] * data_of(w, t, block) * w.data_scale;
}

// The costs become their standardised values over the real types; returns 1 / standard deviation.
template <class W>
float standardise(W& w) {
  constexpr int L = W::lanes;
  float mean = 0, square = 0;
  for (int64_t j = 0; j < w.conv.c_out; ++j) mean += w.cost[j / L][j % L];
  mean /= float(w.conv.c_out);
  for (int64_t j = 0; j < w.conv.c_out; ++j) square += (w.cost[j / L][j % L] - mean) * (w.cost[j / L][j % L] - mean);
  const float inverse = 1.0f / std::sqrt(square / float(w.conv.c_out) + COST_EPSILON);
  for (int64_t block = 0; block < w.blocks; ++block) w.cost[block] = (w.cost[block] - mean) * inverse;
  return inverse;
}

// ln a_j = ln logistic(lambda (beta_a - cost_j)).
template <class W>
void logistic(W& w, int t) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  if (w.options.standardise) standardise(w);
  for (int64_t block = 0; block < w.blocks; ++block) {
    const V z = w.options.inverse_temperatures[t] * (parameter(w, w.inputs.beta_a, block) - w.cost[block]);
    const auto negative = z < V{};
    *w.log_activation_at(t, block) = (negative ? z : V{}) - vlog1p<L>(vexp<L>(negative ? z : -z));
  }
}

// From the gradient of ln a to that of the costs before they are standardised; adds to beta_a's.
template <class W>
void cost_gradients(W& w, int t, VecOf<W>* grad_beta_a) {
  using V = VecOf<W>;
  constexpr int L = W::lanes;
  const float lambda = w.options.inverse_temperatures[t];
  const float inverse = w.options.standardise ? standardise(w) : 1.0f;
  for (int64_t block = 0; block < w.blocks; ++block) {
    const V z = lambda * (parameter(w, w.inputs.beta_a, block) - w.cost[block]);
    const V g = lambda * w.grad_log_activation[block] / (1.0f + vexp<L>(z));
    grad_beta_a[block] += g;
    w.grad_cost[block] = -g;
  }
  if (!w.options.standardise) return;
  float mean = 0, product = 0;
  for (int64_t j = 0; j < w.conv.c_out; ++j) {
    mean += w.grad_cost[j / L][j % L];
    product += w.grad_cost[j / L][j % L] * w.cost[j / L][j % L];
  }
  mean /= float(w.conv.c_out);
  product /= float(w.conv.c_out);
  for (int64_t block = 0; block < w.blocks; ++block) {
    const V g = inverse * (w.grad_cost[block] - w.cost[block] * product - mean);
    w.grad_cost[block] = (float(block * L) + w.lane_numbers() < splat<L>(w.conv.c_out)) ? g : V{};
  }
}

}  // namespace capsella::CAPSELLA_ISA
