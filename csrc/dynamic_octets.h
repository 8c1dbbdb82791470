// Dynamic routing where every child of a window has its own weight, and poses of children and parents are vectors of 8.
//
// Then a vector of 16 floats holds the votes for two parents, and making a vote anew costs less than to write it down
// and read it again: an iteration makes votes twice, for the logits and for the sums, and stores none (LOG.md,
// L017). Parents come by twos here: "pairs".
#pragma once

#include "dynamic_untied.h"

namespace capsella::CAPSELLA_ISA {

// Windows that a weight in registers serves.
constexpr int64_t MOST_WINDOWS = 16;

class OctetChildren : public UntiedChildren<8, 8, 1> {
  using Base = UntiedChildren<8, 8, 1>;
  using V = Vec<8>;
  using X = Vec<16>;
  static constexpr int64_t K = 8;  // children of a chunk, elements of a pose

 public:
  OctetChildren(const Conv& conv, const DynamicOptions& options, const float* poses, const float* weight,
                const V* vote_offset, int threads)
      : Base(conv, options, poses, weight, vote_offset, threads), pairs_(conv.c_out / 2),
        plain_(conv.c_out % 2 == 0 && vote_offset == nullptr && !stored_), pair_softmax_(conv, options.leaky),
        pair_factors_(plain_ ? threads * terms_ * MOST_WINDOWS * pairs_ : 0) {}

  void route(int thread, int t, int64_t chunk, int64_t begin, int64_t end, const V* g, V* sums) {
    if (!plain_) return Base::route(thread, t, chunk, begin, end, g, sums);
    for (int64_t unit = begin; unit < end; unit += MOST_WINDOWS) {
      const Group group(*this, chunk, unit, std::min(MOST_WINDOWS, end - unit));
      X* couplings = factors(thread, 0);
      if (t == 0)
        pair_softmax_.even(couplings, group.windows * pairs_);
      else
        products<1>(group, [&](int, int64_t k) { return wide(g + (unit + k) * parents()); }, &couplings);
      for (int64_t k = 0; t > 0 && k < group.windows; ++k) pair_softmax_.apply(couplings + k * pairs_);
      add(group, couplings, sums + unit * parents());
    }
  }

  void pull(int thread, int t, int64_t chunk, int64_t begin, int64_t end, const Terms<8>& terms, V* sums) {
    if (!plain_) return Base::pull(thread, t, chunk, begin, end, terms, sums);
    for (int64_t unit = begin; unit < end; unit += MOST_WINDOWS) {
      const Group group(*this, chunk, unit, std::min(MOST_WINDOWS, end - unit));
      logit_gradients(group, t, unit, terms, factors(thread, 0), factors(thread, 1));
      add(group, factors(thread, 1), sums + unit * parents());
    }
  }

  void finish(int thread, int64_t chunk, const Terms<8>& terms, float* grad_weight, float* grad_poses) {
    if (!plain_) return Base::finish(thread, chunk, terms, grad_weight, grad_poses);
    const int last = terms.iterations() - 1;
    pair_softmax_.even(factors(thread, 0), MOST_WINDOWS * pairs_);
    for (int64_t unit = 0; unit < conv_.units(); unit += MOST_WINDOWS) {
      const Group group(*this, chunk, unit, std::min(MOST_WINDOWS, conv_.units() - unit));
      // couplings go with the gradients of s, and the gradients of logits with g
      for (int t = 1; t <= last; ++t)
        logit_gradients(group, t, unit, terms, factors(thread, t), factors(thread, last + t));
      input_gradients(group, unit, first(chunk), factors(thread, 0), terms, grad_weight, grad_poses);
    }
  }

 private:
  // The children of a chunk in some windows: their poses side by side, and their weights [c_out q c].
  struct Group {
    int64_t windows, children;
    const float* weight;
    float poses[MOST_WINDOWS * K * K];

    Group(const OctetChildren& all, int64_t chunk, int64_t unit, int64_t count)
        : windows(count), children(all.here(chunk)), weight(all.weight_ + all.first(chunk) * all.weight_size()) {
      for (int64_t k = 0; k < count; ++k)
        for (int64_t i = 0; i < children; ++i)
          std::memcpy(&poses[(k * K + i) * K], all.pose(unit + k, all.first(chunk) + i), K * sizeof(float));
    }
    const float* pose(int64_t window, int64_t child) const { return &poses[(window * K + child) * K]; }
  };

  // The weight of a child for a pair of parents, a vector for each element of its pose.
  struct Pair {
    X rows[K];

    Pair() : rows{} {}
    explicit Pair(const float* weight) {
      for (int64_t e = 0; e < K; ++e)
        rows[e] = join(load<8>(weight + e * K), load<8>(weight + (K + e) * K), std::make_index_sequence<16>{});
    }
    X vote(const float* pose) const {
      X even = pose[0] * rows[0], odd = pose[1] * rows[1];
      for (int64_t e = 2; e < K; e += 2) {
        even += pose[e] * rows[e];
        odd += pose[e + 1] * rows[e + 1];
      }
      return even + odd;
    }
    // Both matrices, side by side, with rows for columns.
    Pair transposed() const {
      Pair out = *this;
      out.exchange<1>(std::make_index_sequence<16>{});
      out.exchange<2>(std::make_index_sequence<16>{});
      out.exchange<4>(std::make_index_sequence<16>{});
      return out;
    }
    template <size_t S, size_t... l>
    void exchange(std::index_sequence<l...>) {
      for (size_t r = 0; r < K; ++r) {
        if (r & S) continue;
        const X a = rows[r], b = rows[r + S];
        rows[r] = __builtin_shufflevector(a, b, int(l & S ? 16 + l - S : l)...);
        rows[r + S] = __builtin_shufflevector(a, b, int(l & S ? 16 + l : l + S)...);
      }
    }
    // The sum over m of rows[m] times lane m of either half of x.
    template <size_t... m>
    X times(X x, std::index_sequence<m...>) const {
      return (... + (lane<m>(x, std::make_index_sequence<16>{}) * rows[m]));
    }
    template <size_t m, size_t... l>
    static X lane(X x, std::index_sequence<l...>) {
      return __builtin_shufflevector(x, x, int(l / K * K + m)...);
    }
    void write(float* weight) const {
      for (int64_t e = 0; e < K; ++e) {
        std::memcpy(weight + e * K, &rows[e], K * sizeof(float));
        std::memcpy(weight + (K + e) * K, reinterpret_cast<const float*>(&rows[e]) + K, K * sizeof(float));
      }
    }
  };

  template <size_t... l>
  static X join(V a, V b, std::index_sequence<l...>) {
    return __builtin_shufflevector(a, b, int(l)...);
  }
  // Lanes 2 i and 2 i + 1, eight times each.
  static X of_child(const X& factors, int64_t i) {
    typedef double Doubles __attribute__((vector_size(sizeof(X)), may_alias));
    double both;
    std::memcpy(&both, reinterpret_cast<const float*>(&factors) + 2 * i, sizeof(both));
    return halves(reinterpret_cast<X>(both - Doubles{}), std::make_index_sequence<16>{});
  }
  template <size_t... l>
  static X halves(X x, std::index_sequence<l...>) {
    return __builtin_shufflevector(x, x, int(l / K)...);
  }
  static const X* wide(const V* x) { return reinterpret_cast<const X*>(x); }
  X* factors(int thread, int x) { return &pair_factors_[(thread * terms_ + x) * MOST_WINDOWS * pairs_]; }
  Pair pair(const Group& group, int64_t child, int64_t j) const {
    return Pair(group.weight + child * weight_size() + 2 * j * K * K);
  }

  // out[n] [windows pairs]: the scalar products of the votes of every child and vectors(n, window) [pairs], n < N; lane
  // 2 i + h is that of child i and the pair's parent h.
  template <int N, class Vectors>
  void products(const Group& group, Vectors vectors, X** out) const {
    X terms[N][MOST_WINDOWS][K];
    for (int64_t k = 0; k < group.windows; ++k)
      for (int64_t i = group.children; i < K; ++i)
        for (int n = 0; n < N; ++n) terms[n][k][i] = X{};
    for (int64_t j = 0; j < pairs_; ++j) {
      for (int64_t i = 0; i < group.children; ++i) {
        const Pair weight = pair(group, i, j);
        for (int64_t k = 0; k < group.windows; ++k) {
          const X vote = weight.vote(group.pose(k, i));
          for (int n = 0; n < N; ++n) terms[n][k][i] = vote * vectors(n, k)[j];
        }
      }
      for (int64_t k = 0; k < group.windows; ++k)
        for (int n = 0; n < N; ++n) {
          X rows[K];
          for (int64_t i = 0; i < K; ++i) rows[i] = terms[n][k][i];
          out[n][k * pairs_ + j] = reduce_block<Add, 16, 8>(rows);
        }
    }
  }

  // The couplings [windows pairs] of iteration t > 0, and the gradients of its logits.
  void logit_gradients(const Group& group, int t, int64_t unit, const Terms<8>& terms, X* couplings, X* gradients) const {
    X* out[] = {couplings, gradients};
    products<2>(group, [&](int n, int64_t k) {
      return wide(n == 0 ? terms.g(unit + k, t) : terms.sum_gradient(unit + k, t));
    }, out);
    for (int64_t k = 0; k < group.windows; ++k) {
      pair_softmax_.apply(couplings + k * pairs_);
      pair_softmax_.gradient(couplings + k * pairs_, gradients + k * pairs_);
    }
  }

  // sums [windows c_out] += the votes of the group, times their factors [windows pairs].
  void add(const Group& group, const X* factors, V* sums) const {
    for (int64_t j = 0; j < pairs_; ++j) {
      X sum[MOST_WINDOWS];
      for (int64_t k = 0; k < group.windows; ++k) sum[k] = X{};
      for (int64_t i = 0; i < group.children; ++i) {
        const Pair weight = pair(group, i, j);
        for (int64_t k = 0; k < group.windows; ++k)
          sum[k] += of_child(factors[k * pairs_ + j], i) * weight.vote(group.pose(k, i));
      }
      for (int64_t k = 0; k < group.windows; ++k) reinterpret_cast<X*>(sums + k * parents())[j] += sum[k];
    }
  }

  // From the votes' gradients, which are sums over terms of factors [terms windows pairs] times vectors of `terms`, to
  // those of the weight [children c_out q c], of which the first windows begin with 0, and of the poses.
  void input_gradients(const Group& group, int64_t unit, int64_t child, const X* factors, const Terms<8>& terms,
                       float* grad_weight, float* grad_poses) const {
    X grad_poses_here[K][MOST_WINDOWS];  // of either parent of the pair, to be added in the end
    for (auto& child : grad_poses_here)
      for (X& grad : child) grad = X{};
    for (int64_t j = 0; j < pairs_; ++j) {
      X grads[K][MOST_WINDOWS];
      vote_gradients(group, unit, j, factors, terms, grads);
      for (int64_t i = 0; i < group.children; ++i) {
        float* out = grad_weight + (child + i) * weight_size() + 2 * j * K * K;
        Pair sum = unit == 0 ? Pair() : Pair(out);
        for (int64_t k = 0; k < group.windows; ++k)
          for (int64_t e = 0; e < K; ++e) sum.rows[e] += group.pose(k, i)[e] * grads[i][k];
        sum.write(out);
        const Pair columns = pair(group, i, j).transposed();
        for (int64_t k = 0; k < group.windows; ++k)
          grad_poses_here[i][k] += columns.times(grads[i][k], std::make_index_sequence<K>{});
      }
    }
    for (int64_t k = 0; k < group.windows; ++k)
      for (int64_t i = 0; i < group.children; ++i) {
        const float* both = reinterpret_cast<const float*>(&grad_poses_here[i][k]);
        float* out = grad_poses + ((unit + k) * conv_.children() + child + i) * K;
        for (int64_t e = 0; e < K; ++e) out[e] = both[e] + both[K + e];
      }
  }

  // grads [K windows]: the gradients of the votes for a pair of parents.
  void vote_gradients(const Group& group, int64_t unit, int64_t j, const X* factors, const Terms<8>& terms,
                      X (*grads)[MOST_WINDOWS]) const {
    for (int64_t k = 0; k < group.windows; ++k) {
      for (int64_t i = 0; i < K; ++i) grads[i][k] = X{};
      for (int x = 0; x < terms_; ++x) {
        const X factor = factors[(x * MOST_WINDOWS + k) * pairs_ + j];
        const X vector = wide(terms.sum_gradient(unit + k, 0) + x * parents())[j];
        for (int64_t i = 0; i < K; ++i) grads[i][k] += of_child(factor, i) * vector;
      }
    }
  }

  int64_t pairs_;
  bool plain_;
  Softmax<16, 2> pair_softmax_;
  Scratch<X> pair_factors_;
};

}  // namespace capsella::CAPSELLA_ISA
