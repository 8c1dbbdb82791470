// The formulas of Heinsen routing (Heinsen 2019, Algorithm 1), and their gradients; symbols as in
// capsella/routing/heinsen/eager.py.
#pragma once

#include "mixture_forward.h"

namespace capsella::CAPSELLA_ISA {

// Rows of the parameters: beta_use + beta_ignore of each child, and then beta_ignore of each; or one of each, where all
// children share them. A score is then
// sum_i (beta_use + beta_ignore) D_use - sum_i beta_ignore f_i.
struct Heinsen {
  using Options = HeinsenOptions;
  static constexpr bool many_factors = false;
  static constexpr bool shrinks = true, scales = false, linear = true, biased = true;

  template <class V>
  struct Work {
    explicit Work(int64_t) {}
  };

  static bool everywhere(const Conv&, const Options&) { return false; }
  static bool paired(const Options&) { return false; }
  static int64_t rows(const Conv& conv, const Options& options) { return options.shared ? 1 : conv.children(); }
  static int64_t parameters(const Conv& conv, const Options& options) { return 2 * rows(conv, options); }
  // The row of child i in the parameters and in the bias.
  template <class W>
  static int64_t row_of(const W& w, int64_t i) {
    return w.options.shared ? 0 : i;
  }

  // Centres, precisions and sum_d ln sigma^2_d of means and variances whose data count as epsilon more.
  template <class W>
  static void describe(W& w, int t, int64_t block) {
    using V = VecOf<W>;
    const int64_t at = t * w.blocks + block;
    const V share = share_of(w, t, block);
    V log_sizes{};
    for (int64_t d = 0; d < w.D(); ++d) {
      const V variance = variance_of(w, t, block, d, share);
      w.shrunk[at * w.D() + d] = share * w.means[at * w.D() + d];
      w.precisions[at * w.D() + d] = 1.0f / variance;
      log_sizes += vlog<W::lanes>(variance);
    }
    w.log_sizes[at] = log_sizes;
  }

  // The scores, which are log-odds, and the constants ln f(a_j) - sum_d ln sigma_d of the logits.
  template <class W>
  static void score(W& w, int t) {
    using V = VecOf<W>;
    for (int64_t block = 0; block < w.blocks; ++block) {
      V ignored{};
      for (int64_t i = 0; i < w.children; ++i) ignored += w.active[i] * ignore(w, block, i);
      *w.log_odds_at(t, block) = w.linear[block] * vexp<W::lanes>(w.most[block]) - ignored;
    }
    recall(w, t);
  }

  template <class W>
  static void recall(W& w, int t) {
    for (int64_t at = t * w.blocks, block = 0; block < w.blocks; ++block, ++at)
      w.constants[at] = log_logistic<W::lanes>(*w.log_odds_at(t, block)) - 0.5f * w.log_sizes[at];
  }

  // As those of `EM`; those of the scores go on in child_gradients.
  template <class W>
  static void gradients(W& w, int t, VecOf<W>* of_means, VecOf<W>* of_variances, VecOf<W>*) {
    using V = VecOf<W>;
    const float epsilon = w.options.epsilon;
    for (int64_t block = 0; block < w.blocks; ++block) {
      const V of_constant = w.grad_constant[block];
      w.grad_log_odds[block] += of_constant / (1.0f + vexp<W::lanes>(*w.log_odds_at(t, block)));
      const V share = share_of(w, t, block), rest = 1.0f - share, sum = data_of(w, t, block) + epsilon;
      V of_share{};
      for (int64_t d = 0; d < w.D(); ++d) {
        const int64_t at = block * w.D() + d;
        const V mu = w.means[t * w.blocks * w.D() + at], inverse = 1.0f / variance_of(w, t, block, d, share);
        const V of_variance = -inverse * (of_variances[at] * inverse + 0.5f * of_constant);
        const V square = rest * rest * mu * mu;
        of_share += of_means[at] * mu +
                    of_variance * (*w.variance_at(t, block, d) + square - 2.0f * share * rest * mu * mu);
        of_means[at] = of_means[at] * share + 2.0f * of_variance * share * rest * rest * mu;
        of_variances[at] = of_variance * share;
      }
      w.grad_data[block] = of_share * epsilon / (sum * sum);
    }
  }

  // What the score adds to the gradient of R_ij a_i; adds to those of a_i, by child i's ignored part, and of its betas.
  template <class W>
  static VecOf<W> child_gradients(const W& w, int64_t block, int64_t i, VecOf<W> coupling, VecOf<W>& of_activation,
                                  VecOf<W>* of_parameters) {
    const VecOf<W> of_score = w.grad_log_odds[block];
    const int64_t row = row_of(w, i);
    of_activation -= of_score * ignore(w, block, i);
    of_parameters[w.row(row, block)] += of_score * coupling * w.active[i];
    of_parameters[w.row(w.rows / 2 + row, block)] -= of_score * w.active[i];
    return of_score * w.parameter(row, block);
  }

 private:
  // beta_ignore of child i.
  template <class W>
  static VecOf<W> ignore(const W& w, int64_t block, int64_t i) {
    return w.parameter(w.rows / 2 + row_of(w, i), block);
  }

  // R / (R + epsilon), by which the data of a parent pull its mean from zero.
  template <class W>
  static VecOf<W> share_of(const W& w, int t, int64_t block) {
    const auto data = data_of(w, t, block);
    return data / (data + w.options.epsilon);
  }

  template <class W>
  static VecOf<W> variance_of(const W& w, int t, int64_t block, int64_t d, VecOf<W> share) {
    const auto missed = (1.0f - share) * w.means[(t * w.blocks + block) * w.D() + d];
    return share * (*w.variance_at(t, block, d) + missed * missed) + w.options.epsilon;
  }
};

}  // namespace capsella::CAPSELLA_ISA
