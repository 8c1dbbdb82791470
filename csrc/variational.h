// The formulas of variational Bayes routing (Ribeiro et al. 2020), and their gradients; symbols as in
// capsella/routing/variational/eager.py.
#pragma once

#include <cmath>

#include "mixture_forward.h"

namespace capsella::CAPSELLA_ISA {

// The digamma function and its derivative, for x > 0: by the recurrence to x + 6, and there by their asymptotic series
// (Abramowitz and Stegun 1964, 6.3.18 and 6.4.12).
template <class V>
V digamma(V x) {
  V below = 1.0f / x;
  for (int k = 1; k < 6; ++k) below += 1.0f / (x + float(k));
  const V y = 1.0f / (x + 6.0f), z = y * y;
  const V series = z * (1.0f / 12 - z * (1.0f / 120 - z * (1.0f / 252 - z / 240.0f)));
  return vlog<sizeof(V) / sizeof(float)>(x + 6.0f) - 0.5f * y - series - below;
}

template <class V>
V trigamma(V x) {
  V above = 1.0f / (x * x);
  for (int k = 1; k < 6; ++k) above += 1.0f / ((x + float(k)) * (x + float(k)));
  const V y = 1.0f / (x + 6.0f), z = y * y;
  return above + y * (1.0f + 0.5f * y + z * (1.0f / 6 - z * (1.0f / 30 - z * (1.0f / 42 - z / 30.0f))));
}

struct Variational {
  using Options = VariationalOptions;
  static constexpr bool many_factors = false;
  static constexpr bool shrinks = true, scales = true, linear = false, biased = false;
  static constexpr float LOG_2 = 0.6931471805599453f, LOG_2PI_E = 2.8378770664093453f;

  // E ln pi and E ln|Lambda| of iteration t [t blocks].
  template <class V>
  struct Work {
    explicit Work(int64_t parents) : log_pi(parents), log_lambda(parents) {}
    Scratch<V> log_pi, log_lambda;
  };

  static bool everywhere(const Conv&, const Options&) { return false; }
  static bool paired(const Options&) { return false; }
  static int64_t parameters(const Conv&, const Options&) { return 1; }

  // Centres m = R / kappa mu, precisions nu Psi, and sum_d ln Psi^-1.
  template <class W>
  static void describe(W& w, int t, int64_t block) {
    using V = VecOf<W>;
    const Parent<V> q(w, t, block);
    const int64_t at = t * w.blocks + block;
    V log_sizes{};
    for (int64_t d = 0; d < w.D(); ++d) {
      const V spread = q.spread(w, t, block, d);
      w.shrunk[at * w.D() + d] = q.share * w.means[at * w.D() + d];
      w.precisions[at * w.D() + d] = q.nu / spread;
      log_sizes += vlog<W::lanes>(spread);
    }
    w.log_sizes[at] = log_sizes;
  }

  // The log-odds beta - pi H, and what the logits take.
  template <class W>
  static void score(W& w, int t) {
    recall(w, t);
    for (int64_t block = 0; block < w.blocks; ++block)
      *w.log_odds_at(t, block) =
          w.parameter(0, block) - vexp<W::lanes>(w.work.log_pi[t * w.blocks + block]) * entropy(w, t, block);
  }

  // Constants E ln pi + (E ln|Lambda| - D / kappa) / 2 of the logits.
  template <class W>
  static void recall(W& w, int t) {
    using V = VecOf<W>;
    const V all = digamma(splat<W::lanes>(total(w, t)));
    for (int64_t at = t * w.blocks, block = 0; block < w.blocks; ++block, ++at) {
      const Parent<V> q(w, t, block);
      w.work.log_pi[at] = digamma(q.alpha) - all;
      w.work.log_lambda[at] = digammas(w, q.nu) + float(w.D()) * LOG_2 - w.log_sizes[at];
      w.constants[at] = w.work.log_pi[at] + 0.5f * (w.work.log_lambda[at] - float(w.D()) / q.kappa);
      w.log_scales[at] = w.options.proportions ? V{} : w.work.log_pi[at];
    }
  }

  // As those of `EM`.
  template <class W>
  static void gradients(W& w, int t, VecOf<W>* of_means, VecOf<W>* of_variances, VecOf<W>* of_parameters) {
    using V = VecOf<W>;
    constexpr int L = W::lanes;
    float of_total = 0;
    for (int64_t block = 0; block < w.blocks; ++block) {
      const Parent<V> q(w, t, block);
      const V of_odds = w.grad_log_odds[block], of_constant = w.grad_constant[block];
      const V weighed = of_odds * vexp<L>(w.work.log_pi[t * w.blocks + block]);
      V of_log_pi = of_constant - weighed * entropy(w, t, block);
      if (!w.options.proportions) of_log_pi += w.grad_log_scale[block];
      for (int64_t l = 0; l < L && block * L + l < w.conv.c_out; ++l) of_total += of_log_pi[l];
      of_parameters[block] += of_odds;
      const V of_log_lambda = 0.5f * (of_constant + weighed);
      V of_nu = of_log_lambda * digammas_slope(w, q.nu), of_share{}, of_pulled{}, of_data{};
      for (int64_t d = 0; d < w.D(); ++d) {
        const int64_t at = block * w.D() + d;
        const V mu = w.means[t * w.blocks * w.D() + at], of_precision = of_variances[at];
        const V inverse = 1.0f / q.spread(w, t, block, d);
        const V of_spread = -inverse * (of_precision * q.nu * inverse + of_log_lambda);
        of_nu += of_precision * inverse;
        of_share += of_means[at] * mu;
        of_pulled += of_spread * mu * mu;
        of_data += of_spread * *w.variance_at(t, block, d);
        of_means[at] = of_means[at] * q.share + 2.0f * of_spread * q.pulled * mu;
        of_variances[at] = of_spread * q.data;
      }
      const float prior = w.options.mean_weight;
      const V of_kappa = (of_share + of_pulled * prior) * prior + 0.5f * of_constant * float(w.D());
      w.grad_data[block] = of_data + of_nu + of_kappa / (q.kappa * q.kappa) + of_log_pi * trigamma(q.alpha);
    }
    const V all = of_total * trigamma(splat<L>(total(w, t)));
    for (int64_t block = 0; block < w.blocks; ++block) w.grad_data[block] -= all;
  }

 private:
  // What is known of a parent before its precisions; `share` is R / kappa, and `pulled` kappa_0 R / kappa.
  template <class V>
  struct Parent {
    template <class W>
    Parent(const W& w, int t, int64_t block)
        : data(data_of(w, t, block)), kappa(w.options.mean_weight + data),
          nu(data + (float(w.D()) - 1.0f + w.options.degrees)), alpha(w.options.concentration + data),
          share(data / kappa), pulled(w.options.mean_weight * share) {}

    // Psi^-1 of a pose element.
    template <class W>
    V spread(const W& w, int t, int64_t block, int64_t d) const {
      const V mu = w.means[(t * w.blocks + block) * w.D() + d];
      return 1.0f / w.options.precision + data * *w.variance_at(t, block, d) + pulled * mu * mu;
    }

    V data, kappa, nu, alpha, share, pulled;
  };

  // H_j, the entropy of the parent's Gaussian.
  template <class W>
  static VecOf<W> entropy(const W& w, int t, int64_t block) {
    return 0.5f * (float(w.D()) * LOG_2PI_E - w.work.log_lambda[t * w.blocks + block]);
  }

  // sum_j alpha_j of the parents at this site.
  template <class W>
  static float total(const W& w, int t) {
    float sum = 0;
    for (int64_t block = 0; block < w.blocks; ++block) {
      const auto data = data_of(w, t, block);
      for (int64_t l = 0; l < W::lanes && block * W::lanes + l < w.conv.c_out; ++l) sum += data[l];
    }
    return sum + w.options.concentration * float(w.conv.c_out);
  }

  // sum_{d<D} digamma((nu - d) / 2): two sums of arguments one apart, of which the smallest alone takes the series.
  template <class W>
  static VecOf<W> digammas(const W& w, VecOf<W> nu) {
    VecOf<W> sum{};
    for (int64_t last = w.D() - 1, chain = 0; chain < std::min<int64_t>(2, w.D()); ++chain, --last) {
      const VecOf<W> least = 0.5f * (nu - float(last));
      const int64_t count = last / 2 + 1;
      sum += float(count) * digamma(least);
      for (int64_t k = 0; k < count - 1; ++k) sum += float(count - 1 - k) / (least + float(k));
    }
    return sum;
  }

  // Its derivative.
  template <class W>
  static VecOf<W> digammas_slope(const W& w, VecOf<W> nu) {
    VecOf<W> sum{};
    for (int64_t last = w.D() - 1, chain = 0; chain < std::min<int64_t>(2, w.D()); ++chain, --last) {
      const VecOf<W> least = 0.5f * (nu - float(last));
      const int64_t count = last / 2 + 1;
      sum += float(count) * trigamma(least);
      for (int64_t k = 0; k < count - 1; ++k)
        sum -= float(count - 1 - k) / ((least + float(k)) * (least + float(k)));
    }
    return 0.5f * sum;
  }
};

}  // namespace capsella::CAPSELLA_ISA
