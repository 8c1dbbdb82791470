// Dynamic routing where every child of a window has its own weight, and poses of children and parents are vectors of 8.
//
// Then a vector of 16 floats holds the votes for two parents, and making a vote anew costs less than to write it down
// and read it again: an iteration makes votes twice, for the logits and for the sums, and stores none. Parents come by twos here: "pairs".
#pragma once

#include "dynamic_lanes.h"
#include "dynamic_untied.h"

namespace capsella::CAPSELLA_ISA {

// Windows that a weight in registers serves.
constexpr int64_t MOST_WINDOWS = 16;

class OctetChildren : public UntiedChildren<8, 8, 1> {
  using Base = UntiedChildren<8, 8, 1>;
  using V = Vec<8>;
  using X = Vec<16>;
  static constexpr int64_t EIGHT = 8;  // children of a chunk (l), elements of a pose (q of a child, e of a parent)

 public:
  OctetChildren(const Conv& conv, const DynamicOptions& options, const float* poses, const float* weight,
                const V* vote_offset, int threads)
      : Base(conv, options, poses, weight, vote_offset, threads), pairs_(conv.c_out / 2),
        plain_(conv.c_out % 2 == 0 && vote_offset == nullptr && !stored_), pair_softmax_(conv, options.leaky),
        lanes_(conv, options, plain_ ? threads : 0),
        pair_factors_(plain_ ? threads * terms_ * MOST_WINDOWS * pairs_ : 0) {}

  void route(int thread, int t, Chunks chunks, int64_t begin, int64_t end, const V* g, V* sums) {
    if (!plain_) return Base::route(thread, t, chunks, begin, end, g, sums);
    for (; begin + MOST_WINDOWS <= end; begin += MOST_WINDOWS)
      route_lanes(thread, t, chunks, begin, g + begin * parents(), sums + begin * parents());
    for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) route_rest(thread, t, chunk, begin, end, g, sums);
  }

  void route_lanes(int thread, int t, Chunks chunks, int64_t n, const V* g, V* sums) {
    lanes_.begin(thread, reinterpret_cast<const float*>(g));
    for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk)
      for (int64_t i = first(chunk); i < first(chunk) + here(chunk); ++i)
        lanes_.add(thread, t == 0, weight_ + i * weight_size(), [&](int64_t w) { return pose(n + w, i); });
    lanes_.end(thread, reinterpret_cast<float*>(sums));
  }

  void route_rest(int thread, int t, int64_t chunk, int64_t begin, int64_t end, const V* g, V* sums) {
    for (int64_t n = begin; n < end; n += MOST_WINDOWS) {
      const Group group(*this, chunk, n, std::min(MOST_WINDOWS, end - n));
      X* couplings = factors(thread, 0);
      if (t == 0)
        pair_softmax_.even(couplings, group.windows * pairs_);
      else
        products<1>(group, [&](int, int64_t w) { return wide(g + (n + w) * parents()); }, &couplings);
      for (int64_t w = 0; t > 0 && w < group.windows; ++w) pair_softmax_.apply(couplings + w * pairs_);
      add(group, couplings, sums + n * parents());
    }
  }

  void pull(int thread, int t, int64_t chunk, int64_t begin, int64_t end, const Terms<8>& terms, V* sums) {
    if (!plain_) return Base::pull(thread, t, chunk, begin, end, terms, sums);
    for (int64_t n = begin; n < end; n += MOST_WINDOWS) {
      const Group group(*this, chunk, n, std::min(MOST_WINDOWS, end - n));
      logit_gradients(group, t, n, terms, factors(thread, 0), factors(thread, 1));
      add(group, factors(thread, 1), sums + n * parents());
    }
  }

  void finish(int thread, int64_t chunk, const Terms<8>& terms, float* grad_weight, float* grad_poses) {
    if (!plain_) return Base::finish(thread, chunk, terms, grad_weight, grad_poses);
    const int last = terms.iterations() - 1;
    pair_softmax_.even(factors(thread, 0), MOST_WINDOWS * pairs_);
    for (int64_t n = 0; n < conv_.windows(); n += MOST_WINDOWS) {
      const Group group(*this, chunk, n, std::min(MOST_WINDOWS, conv_.windows() - n));
      // couplings go with the gradients of s, and the gradients of logits with g
      for (int t = 1; t <= last; ++t)
        logit_gradients(group, t, n, terms, factors(thread, t), factors(thread, last + t));
      input_gradients(group, n, first(chunk), factors(thread, 0), terms, grad_weight, grad_poses);
    }
  }

 private:
  // The children of a chunk in some windows: their poses side by side, and their weights [c_out q e].
  struct Group {
    int64_t windows, children;
    const float* weight;
    float poses[MOST_WINDOWS * EIGHT * EIGHT];

    Group(const OctetChildren& all, int64_t chunk, int64_t n, int64_t count)
        : windows(count), children(all.here(chunk)), weight(all.weight_ + all.first(chunk) * all.weight_size()) {
      for (int64_t w = 0; w < count; ++w)
        for (int64_t l = 0; l < children; ++l)
          std::memcpy(&poses[(w * EIGHT + l) * EIGHT], all.pose(n + w, all.first(chunk) + l), EIGHT * sizeof(float));
    }
    const float* pose(int64_t window, int64_t child) const { return &poses[(window * EIGHT + child) * EIGHT]; }
  };

  // The weight of a child for a pair of parents, a vector for each element of its pose.
  struct Pair {
    X rows[EIGHT];

    Pair() : rows{} {}
    explicit Pair(const float* weight) {
      for (int64_t q = 0; q < EIGHT; ++q)
        rows[q] = join(load<8>(weight + q * EIGHT), load<8>(weight + (EIGHT + q) * EIGHT),
                       std::make_index_sequence<16>{});
    }
    X vote(const float* pose) const {
      X even = pose[0] * rows[0], odd = pose[1] * rows[1];
      for (int64_t q = 2; q < EIGHT; q += 2) {
        even += pose[q] * rows[q];
        odd += pose[q + 1] * rows[q + 1];
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
      for (size_t r = 0; r < EIGHT; ++r) {
        if (r & S) continue;
        const X a = rows[r], b = rows[r + S];
        rows[r] = __builtin_shufflevector(a, b, int(l & S ? 16 + l - S : l)...);
        rows[r + S] = __builtin_shufflevector(a, b, int(l & S ? 16 + l : l + S)...);
      }
    }
    // The sum over e of rows[e] times lane e of either half of x.
    template <size_t... e>
    X times(X x, std::index_sequence<e...>) const {
      return (... + (lane<e>(x, std::make_index_sequence<16>{}) * rows[e]));
    }
    template <size_t e, size_t... l>
    static X lane(X x, std::index_sequence<l...>) {
      return __builtin_shufflevector(x, x, int(l / EIGHT * EIGHT + e)...);
    }
    void write(float* weight) const {
      for (int64_t q = 0; q < EIGHT; ++q) {
        std::memcpy(weight + q * EIGHT, &rows[q], EIGHT * sizeof(float));
        std::memcpy(weight + (EIGHT + q) * EIGHT, reinterpret_cast<const float*>(&rows[q]) + EIGHT,
                    EIGHT * sizeof(float));
      }
    }
  };

  template <size_t... l>
  static X join(V a, V b, std::index_sequence<l...>) {
    return __builtin_shufflevector(a, b, int(l)...);
  }
  // Lanes 2 l and 2 l + 1, eight times each.
  static X of_child(const X& factors, int64_t l) {
    typedef double Doubles __attribute((vector_size(sizeof(X)), may_alias));
    double both;
    std::memcpy(&both, reinterpret_cast<const float*>(&factors) + 2 * l, sizeof(both));
    return halves(reinterpret_cast<X>(both - Doubles{}), std::make_index_sequence<16>{});
  }
  template <size_t... l>
  static X halves(X x, std::index_sequence<l...>) {
    return __builtin_shufflevector(x, x, int(l / EIGHT)...);
  }
  static const X* wide(const V* x) { return reinterpret_cast<const X*>(x); }
  X* factors(int thread, int term) { return &pair_factors_[(thread * terms_ + term) * MOST_WINDOWS * pairs_]; }
  Pair pair(const Group& group, int64_t child, int64_t j) const {
    return Pair(group.weight + child * weight_size() + 2 * j * EIGHT * EIGHT);
  }

  // out[v] [windows pairs]: the scalar products of the votes of every child and vectors(v, window) [pairs], v < N; lane
  // 2 l is that of child l and the pair's first parent, 2 l + 1 its second's.
  template <int N, class Vectors>
  void products(const Group& group, Vectors vectors, X** out) const {
    X terms[N][MOST_WINDOWS][EIGHT];
    for (int64_t w = 0; w < group.windows; ++w)
      for (int64_t l = group.children; l < EIGHT; ++l)
        for (int v = 0; v < N; ++v) terms[v][w][l] = X{};
    for (int64_t j = 0; j < pairs_; ++j) {
      for (int64_t l = 0; l < group.children; ++l) {
        const Pair weight = pair(group, l, j);
        for (int64_t w = 0; w < group.windows; ++w) {
          const X vote = weight.vote(group.pose(w, l));
          for (int v = 0; v < N; ++v) terms[v][w][l] = vote * vectors(v, w)[j];
        }
      }
      for (int64_t w = 0; w < group.windows; ++w)
        for (int v = 0; v < N; ++v) {
          X rows[EIGHT];
          for (int64_t l = 0; l < EIGHT; ++l) rows[l] = terms[v][w][l];
          out[v][w * pairs_ + j] = reduce_block<Add, 16, 8>(rows);
        }
    }
  }

  // The couplings [windows pairs] of iteration t > 0, and the gradients of its logits.
  void logit_gradients(const Group& group, int t, int64_t n, const Terms<8>& terms, X* couplings,
                       X* gradients) const {
    X* out[] = {couplings, gradients};
    products<2>(group, [&](int v, int64_t w) {
      return wide(v == 0 ? terms.g(n + w, t) : terms.sum_gradient(n + w, t));
    }, out);
    for (int64_t w = 0; w < group.windows; ++w) {
      pair_softmax_.apply(couplings + w * pairs_);
      pair_softmax_.gradient(couplings + w * pairs_, gradients + w * pairs_);
    }
  }

  // sums [windows c_out] += the votes of the group, times their factors [windows pairs].
  void add(const Group& group, const X* factors, V* sums) const {
    for (int64_t j = 0; j < pairs_; ++j) {
      X sum[MOST_WINDOWS];
      for (int64_t w = 0; w < group.windows; ++w) sum[w] = X{};
      for (int64_t l = 0; l < group.children; ++l) {
        const Pair weight = pair(group, l, j);
        for (int64_t w = 0; w < group.windows; ++w)
          sum[w] += of_child(factors[w * pairs_ + j], l) * weight.vote(group.pose(w, l));
      }
      for (int64_t w = 0; w < group.windows; ++w) reinterpret_cast<X*>(sums + w * parents())[j] += sum[w];
    }
  }

  // From the votes' gradients, which are sums over terms of factors [terms windows pairs] times vectors of `terms`, to
  // those of the weight [children c_out q e], of which the first windows begin with 0, and of the poses.
  void input_gradients(const Group& group, int64_t n, int64_t child, const X* factors, const Terms<8>& terms,
                       float* grad_weight, float* grad_poses) const {
    X grad_poses_here[EIGHT][MOST_WINDOWS];  // of either parent of the pair, to be added in the end
    for (auto& child : grad_poses_here)
      for (X& grad : child) grad = X{};
    for (int64_t j = 0; j < pairs_; ++j) {
      X grads[EIGHT][MOST_WINDOWS];
      vote_gradients(group, n, j, factors, terms, grads);
      for (int64_t l = 0; l < group.children; ++l) {
        float* out = grad_weight + (child + l) * weight_size() + 2 * j * EIGHT * EIGHT;
        Pair sum = n == 0 ? Pair() : Pair(out);
        for (int64_t w = 0; w < group.windows; ++w)
          for (int64_t q = 0; q < EIGHT; ++q) sum.rows[q] += group.pose(w, l)[q] * grads[l][w];
        sum.write(out);
        const Pair columns = pair(group, l, j).transposed();
        for (int64_t w = 0; w < group.windows; ++w)
          grad_poses_here[l][w] += columns.times(grads[l][w], std::make_index_sequence<EIGHT>{});
      }
    }
    for (int64_t w = 0; w < group.windows; ++w)
      for (int64_t l = 0; l < group.children; ++l) {
        const float* both = reinterpret_cast<const float*>(&grad_poses_here[l][w]);
        float* out = grad_poses + ((n + w) * conv_.children() + child + l) * EIGHT;
        for (int64_t q = 0; q < EIGHT; ++q) out[q] = both[q] + both[EIGHT + q];
      }
  }

  // grads [EIGHT windows]: the gradients of the votes for a pair of parents.
  void vote_gradients(const Group& group, int64_t n, int64_t j, const X* factors, const Terms<8>& terms,
                      X (*grads)[MOST_WINDOWS]) const {
    for (int64_t w = 0; w < group.windows; ++w) {
      for (int64_t l = 0; l < EIGHT; ++l) grads[l][w] = X{};
      for (int term = 0; term < terms_; ++term) {
        const X factor = factors[(term * MOST_WINDOWS + w) * pairs_ + j];
        const X vector = wide(terms.sum_gradient(n + w, 0) + term * parents())[j];
        for (int64_t l = 0; l < EIGHT; ++l) grads[l][w] += of_child(factor, l) * vector;
      }
    }
  }

  int64_t pairs_;
  bool plain_;
  Softmax<16, 2> pair_softmax_;
  WindowLanes lanes_;
  Scratch<X> pair_factors_;
};

}  // namespace capsella::CAPSELLA_ISA
