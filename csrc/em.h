// The formulas of EM routing (Hinton et al. 2018, Procedure 1): the cost of describing a parent's data and the activation
// that follows from it (M-step, lines 5 and 6), and their gradients.
#pragma once

#include <cmath>

#include "mixture_forward.h"

namespace capsella::CAPSELLA_ISA {

struct EM {
  using Options = EMOptions;
  static constexpr bool many_factors = true;
  static constexpr bool shrinks = false, scales = false, linear = false, biased = false;
  static constexpr float COST_EPSILON = 1e-8f;  // STANDARDISED_COST_EPSILON
  static constexpr float LOG_2PI = 1.8378770664093453f;
  static constexpr int64_t BETA_U = 0, BETA_A = 1;  // rows of the parameters

  // The costs and what they grow by with the (scaled) data, of one iteration [blocks]; gradients of the costs.
  template <class V>
  struct Work {
    explicit Work(int64_t parents) : cost(parents), gain(parents), grad_cost(parents) {}
    Scratch<V> cost, gain, grad_cost;
  };

  static bool everywhere(const Conv& conv, const Options& options) {
    return options.compete_everywhere && conv.sites() > 1;  // at a single site both are the same
  }
  static bool paired(const Options& options) { return options.bfloat16_votes; }
  static int64_t parameters(const Conv&, const Options&) { return 2; }

  // Precisions tau_t / sigma^2 of the E-step after iteration t and sum_d ln sigma^2_d, of the floored variances.
  template <class W>
  static void describe(W& w, int t, int64_t block) {
    using V = VecOf<W>;
    const int64_t at = t * w.blocks + block;
    V log_sizes{};
    for (int64_t d = 0; d < w.D(); ++d) {
      const V variance = floored(w, t, block, d);
      w.precisions[at * w.D() + d] = w.options.sharpness[t] / variance;
      log_sizes += vlog<W::lanes>(variance);
    }
    w.log_sizes[at] = log_sizes;
  }

  // The log-odds lambda (beta_a - cost_j), and the constants of the logits: those of ln a_j + tau_t ln N.
  template <class W>
  static void score(W& w, int t) {
    for (int64_t block = 0; block < w.blocks; ++block) find_cost(w, t, block);
    if (w.options.standardise) standardise(w);
    for (int64_t block = 0; block < w.blocks; ++block)
      *w.log_odds_at(t, block) =
          w.options.inverse_temperatures[t] * (w.parameter(BETA_A, block) - w.work.cost[block]);
    recall(w, t);
  }

  template <class W>
  static void recall(W& w, int t) {
    constexpr int L = W::lanes;
    const float half = 0.5f * w.options.sharpness[t];
    for (int64_t at = t * w.blocks, block = 0; block < w.blocks; ++block, ++at)
      w.constants[at] =
          log_logistic<L>(*w.log_odds_at(t, block)) - half * (w.log_sizes[at] + splat<L>(LOG_2PI * w.D()));
  }

  // From the gradients of the centres [blocks d] and precisions [blocks d], of the constants and of the log-odds to
  // those of the means and variances, in their places, and of the data.
  template <class W>
  static void gradients(W& w, int t, VecOf<W>* of_means, VecOf<W>* of_variances, VecOf<W>* of_parameters) {
    using V = VecOf<W>;
    (void)of_means;  // a centre is a mean
    cost_gradients(w, t, of_parameters);
    const float sharpness = w.options.sharpness[t];
    for (int64_t block = 0; block < w.blocks; ++block) {
      const float scale = data_scale(w);
      const V amount = data_of(w, t, block) * scale, of_cost = w.work.grad_cost[block];
      const V of_log_sizes = 0.5f * (of_cost * amount - sharpness * w.grad_constant[block]);
      of_parameters[w.row(BETA_U, block)] += of_cost * amount * float(w.D());
      w.grad_data[block] = of_cost * w.work.gain[block] * scale;
      for (int64_t d = 0; d < w.D(); ++d) {
        V& grad = of_variances[block * w.D() + d];
        const V inverse = 1.0f / floored(w, t, block, d);
        grad = (of_log_sizes - grad * sharpness * inverse) * inverse;
        grad = *w.variance_at(t, block, d) >= splat<W::lanes>(w.options.variance_floor) ? grad : V{};
      }
    }
  }

 private:
  template <class W>
  static VecOf<W> floored(const W& w, int t, int64_t block, int64_t d) {
    return vmax<W::lanes>(*w.variance_at(t, block, d), splat<W::lanes>(w.options.variance_floor));
  }

  template <class W>
  static float data_scale(const W& w) {
    return w.options.cost_scale == 0 ? 1.0f : w.options.cost_scale / w.even_data;
  }

  // cost_j before it is standardised.
  template <class W>
  static void find_cost(W& w, int t, int64_t block) {
    w.work.gain[block] = float(w.D()) * w.parameter(BETA_U, block) + 0.5f * w.log_sizes[t * w.blocks + block];
    w.work.cost[block] = w.work.gain[block] * data_of(w, t, block) * data_scale(w);
  }

  // The costs become their standardised values over the real types; returns 1 / standard deviation.
  template <class W>
  static float standardise(W& w) {
    constexpr int L = W::lanes;
    auto& cost = w.work.cost;
    float mean = 0, square = 0;
    for (int64_t j = 0; j < w.conv.c_out; ++j) mean += cost[j / L][j % L];
    mean /= float(w.conv.c_out);
    for (int64_t j = 0; j < w.conv.c_out; ++j) square += (cost[j / L][j % L] - mean) * (cost[j / L][j % L] - mean);
    const float inverse = 1.0f / std::sqrt(square / float(w.conv.c_out) + COST_EPSILON);
    for (int64_t block = 0; block < w.blocks; ++block) cost[block] = (cost[block] - mean) * inverse;
    return inverse;
  }

  // From the gradients of the log-odds, and through ln a of the constants, to those of the costs before they are
  // standardised; adds to beta_a's.
  template <class W>
  static void cost_gradients(W& w, int t, VecOf<W>* of_parameters) {
    using V = VecOf<W>;
    constexpr int L = W::lanes;
    auto &cost = w.work.cost, &of_cost = w.work.grad_cost;
    for (int64_t block = 0; block < w.blocks; ++block) find_cost(w, t, block);
    const float inverse = w.options.standardise ? standardise(w) : 1.0f;
    for (int64_t block = 0; block < w.blocks; ++block) {
      const V of_odds = w.grad_log_odds[block] + w.grad_constant[block] / (1.0f + vexp<L>(*w.log_odds_at(t, block)));
      const V g = w.options.inverse_temperatures[t] * of_odds;
      of_parameters[w.row(BETA_A, block)] += g;
      of_cost[block] = -g;
    }
    if (!w.options.standardise) return;
    float mean = 0, product = 0;
    for (int64_t j = 0; j < w.conv.c_out; ++j) {
      mean += of_cost[j / L][j % L];
      product += of_cost[j / L][j % L] * cost[j / L][j % L];
    }
    mean /= float(w.conv.c_out);
    product /= float(w.conv.c_out);
    for (int64_t block = 0; block < w.blocks; ++block) {
      const V g = inverse * (of_cost[block] - cost[block] * product - mean);
      of_cost[block] = (float(block * L) + w.lane_numbers() < splat<L>(w.conv.c_out)) ? g : V{};
    }
  }
};

}  // namespace capsella::CAPSELLA_ISA
