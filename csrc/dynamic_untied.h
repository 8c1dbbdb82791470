// Dynamic routing where every child of a window has its own weight, of a chunk of L children at a time.
//
// An iteration needs g alone (dynamic_common.h), and makes the votes anew. Vectors of a vote run over the columns of a
// pose (z counts them); vectors of logits and couplings run over the L children (l).
#pragma once

#include "dynamic_common.h"

namespace capsella::CAPSELLA_ISA {

// Windows whose votes are made together: a child's weight serves them all.
constexpr int64_t TOGETHER = 4;

// FixedQ, FixedVectors: columns of a child's pose, and vectors of a row of a parent's pose, where a network of the
// papers has them, of vector poses; else 0. weight [i c_out q row_vectors] and vote_offset [h w d] are in vectors, zero
// beyond e.
template <int L, int FixedQ, int FixedVectors>
class UntiedChildren {
  using V = Vec<L>;
  static constexpr bool fixed = FixedQ != 0;
  static constexpr int64_t capacity = fixed ? FixedQ : MOST_POSE_ELEMENTS;

 public:
  UntiedChildren(const Conv& conv, const DynamicOptions& options, const float* poses, const float* weight,
                 const V* vote_offset, int threads)
      : conv_(conv), softmax_(conv, options.leaky), poses_(conv, poses), weight_(weight), vote_offset_(vote_offset),
        stored_(conv.windows() <= conv.q), votes_(stored_ ? conv.windows() * count() * size() : 0),
        tiles_(stored_ ? 0 : threads * TOGETHER * size()), terms_(2 * options.iterations - 1),
        factors_(threads * terms_ * conv.c_out) {}

  int64_t count() const { return (conv_.children() + L - 1) / L; }
  int64_t weights() const { return conv_.children(); }

  // sums [n c_out d] += the votes of some chunks in the windows begin ... end - 1, times their couplings.
  void route(int thread, int t, Chunks chunks, int64_t begin, int64_t end, const V* g, V* sums) {
    for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk)
      with_votes(thread, t == 0, chunk, begin, end, [&](int64_t n, const V* votes) {
        V* couplings = factor(thread, 0);
        couple(t, votes, g + n * parents(), couplings);
        add(couplings, votes, sums + n * parents());
      });
  }

  // sums [n c_out d] += these votes, times the gradients of their logits in iteration t.
  void pull(int thread, int t, int64_t chunk, int64_t begin, int64_t end, const Terms<L>& terms, V* sums) {
    with_votes(thread, t == terms.iterations() - 1, chunk, begin, end, [&](int64_t n, const V* votes) {
      V* gradient = factor(thread, 1);
      logit_gradients(t, votes, n, terms, factor(thread, 0), gradient);
      add(gradient, votes, sums + n * parents());
    });
  }

  // grad_weight [i c_out q row_vectors] and grad_poses [n i p] of a chunk; after all iterations' `pull`.
  void finish(int thread, int64_t chunk, const Terms<L>& terms, float* grad_weight, float* grad_poses) {
    const int last = terms.iterations() - 1;
    softmax_.even(factor(thread, 0), conv_.c_out);
    for (int64_t n = 0; n < conv_.windows(); n += TOGETHER) {
      const int64_t count = std::min(TOGETHER, conv_.windows() - n);
      V* votes = votes_of(thread, chunk, n);
      if (last > 0 && !stored_) vote(chunk, n, count, votes);
      for (int64_t w = 0; w < count; ++w) {
        V* mine = votes + w * size();
        // couplings go with the gradients of s, and the gradients of logits with g
        for (int t = 1; t <= last; ++t)
          logit_gradients(t, mine, n + w, terms, factor(thread, t), factor(thread, last + t));
        vote_gradients(factor(thread, 0), terms.sum_gradient(n + w, 0), mine);
      }
      add_weight_gradients(chunk, n, count, votes, grad_weight);
      pose_gradients(chunk, n, count, votes, grad_poses);
    }
  }

 protected:
  int64_t Q() const { return fixed ? FixedQ : conv_.q; }
  int64_t R() const { return fixed ? 1 : conv_.r; }
  int64_t row_vectors() const { return fixed ? FixedVectors : (conv_.e + L - 1) / L; }
  int64_t pose_vectors() const { return R() * row_vectors(); }      // vectors of a vote
  int64_t parents() const { return conv_.c_out * pose_vectors(); }  // vectors of all parents at one site
  int64_t size() const { return L * parents(); }                  // vectors of a chunk's votes
  int64_t weight_size() const { return conv_.c_out * Q() * row_vectors() * L; }  // floats of the weight of one child
  int64_t first(int64_t chunk) const { return chunk * L; }
  int64_t here(int64_t chunk) const { return std::min<int64_t>(L, conv_.children() - chunk * L); }
  V* factor(int thread, int term) { return &factors_[(thread * terms_ + term) * conv_.c_out]; }
  V* votes_of(int thread, int64_t chunk, int64_t n) {
    return stored_ ? &votes_[(chunk * conv_.windows() + n) * size()] : &tiles_[thread * TOGETHER * size()];
  }

  // body(n, votes) for a chunk in the windows begin ... end - 1. The votes are made anew, except where they are fewer
  // than the weights: then those of the last `fresh` time still stand.
  template <class Body>
  void with_votes(int thread, bool fresh, int64_t chunk, int64_t begin, int64_t end, Body body) {
    for (int64_t n = begin; n < end; n += TOGETHER) {
      const int64_t count = std::min(TOGETHER, end - n);
      V* votes = votes_of(thread, chunk, n);
      if (fresh || !stored_) vote(chunk, n, count, votes);
      for (int64_t w = 0; w < count; ++w) body(n + w, votes + w * size());
    }
  }

  // Votes [n L c_out d] of a chunk in the windows n ...; zero beyond the last child. A child's weight serves all
  // the windows while it is in the nearest cache.
  void vote(int64_t chunk, int64_t n, int64_t windows, V* votes) const {
    for (int64_t l = 0; l < L; ++l)
      for (int64_t w = 0; w < windows; ++w) {
        V* out = votes + w * size() + l * parents();
        if (l < here(chunk))
          vote_of(first(chunk) + l, n + w, out);
        else
          for (int64_t z = 0; z < parents(); ++z) out[z] = V{};
      }
  }

  // out [c_out]: the scalar products of the chunk's votes and the vectors x [c_out d].
  void products(const V* votes, const V* x, V* out) const {
    for (int64_t j = 0; j < conv_.c_out; ++j) {
      V terms[L];
      for (int64_t l = 0; l < L; ++l) {
        const V* vote = votes + l * parents() + j * pose_vectors();
        V sum = vote[0] * x[j * pose_vectors()];
        for (int64_t z = 1; z < pose_vectors(); ++z) sum += vote[z] * x[j * pose_vectors() + z];
        terms[l] = sum;
      }
      out[j] = reduce_block<Add, L>(terms);
    }
  }

  // The couplings [c_out] of iteration t.
  void couple(int t, const V* votes, const V* g, V* couplings) const {
    if (t == 0) return softmax_.even(couplings, conv_.c_out);
    products(votes, g, couplings);
    softmax_.apply(couplings);
  }

  // Couplings of iteration t > 0, and the gradient of its logits.
  void logit_gradients(int t, const V* votes, int64_t n, const Terms<L>& terms, V* couplings, V* gradient) const {
    couple(t, votes, terms.g(n, t), couplings);
    products(votes, terms.sum_gradient(n, t), gradient);
    softmax_.gradient(couplings, gradient);
  }

  // sum [c_out d] += the chunk's votes, each times its factor [c_out].
  void add(const V* factors, const V* votes, V* sum) const {
    const float* factor = reinterpret_cast<const float*>(factors);
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t z = j * pose_vectors(); z < (j + 1) * pose_vectors(); ++z) {
        V even = sum[z], odd{};
        for (int64_t l = 0; l < L; l += 2) {
          even += factor[j * L + l] * votes[l * parents() + z];
          odd += factor[j * L + l + 1] * votes[(l + 1) * parents() + z];
        }
        sum[z] = even + odd;
      }
  }

  // Gradients of the chunk's votes: the sum over terms of factors [terms c_out] times vectors [terms c_out d].
  void vote_gradients(const V* factors, const V* vectors, V* gradients) const {
    const float* factor = reinterpret_cast<const float*>(factors);
    for (int64_t j = 0; j < conv_.c_out; ++j)
      for (int64_t z = j * pose_vectors(); z < (j + 1) * pose_vectors(); ++z) {
        V sum[L];
        for (int64_t l = 0; l < L; ++l) sum[l] = V{};
        for (int term = 0; term < terms_; ++term) {
          const V vector = vectors[term * parents() + z];
          for (int64_t l = 0; l < L; ++l) sum[l] += factor[(term * conv_.c_out + j) * L + l] * vector;
        }
        for (int64_t l = 0; l < L; ++l) gradients[l * parents() + z] = sum[l];
      }
  }

  // What the gradients of the votes of `windows` windows add to the weight's; the first windows begin with 0.
  void add_weight_gradients(int64_t chunk, int64_t n, int64_t windows, const V* gradients, float* grad_weight) const {
    for (int64_t l = 0; l < here(chunk); ++l) {
      const int64_t i = first(chunk) + l;
      for (int64_t j = 0; j < conv_.c_out; ++j)
        for (int64_t z = 0; z < row_vectors(); ++z) {
          float* into = grad_weight + i * weight_size() + (j * Q() * row_vectors() + z) * L;
          V sum[capacity];
          for (int64_t q = 0; q < Q(); ++q) sum[q] = n == 0 ? V{} : load<L>(into + q * row_vectors() * L);
          for (int64_t w = 0; w < windows; ++w)
            for (int64_t r = 0; r < R(); ++r) {
              const float* u = pose(n + w, i) + r * Q();
              const V x = gradients[w * size() + l * parents() + j * pose_vectors() + r * row_vectors() + z];
              for (int64_t q = 0; q < Q(); ++q) sum[q] += u[q] * x;
            }
          for (int64_t q = 0; q < Q(); ++q) store<L>(into + q * row_vectors() * L, sum[q]);
        }
    }
  }

  // grad_poses [n of the layer, i, p] of a chunk in the windows n ....
  void pose_gradients(int64_t chunk, int64_t n, int64_t windows, const V* gradients, float* grad_poses) const {
    for (int64_t l = 0; l < here(chunk); ++l)
      for (int64_t w = 0; w < windows; ++w) {
        const int64_t i = first(chunk) + l;
        const float* weight = weight_ + i * weight_size();
        for (int64_t r = 0; r < R(); ++r) {
          V sum[capacity];
          for (int64_t q = 0; q < Q(); ++q) sum[q] = V{};
          for (int64_t j = 0; j < conv_.c_out; ++j)
            for (int64_t z = 0; z < row_vectors(); ++z) {
              const V x = gradients[w * size() + l * parents() + j * pose_vectors() + r * row_vectors() + z];
              for (int64_t q = 0; q < Q(); ++q) sum[q] += load<L>(weight + ((j * Q() + q) * row_vectors() + z) * L) * x;
            }
          reduce_rows<Add, L>(sum, Q(), grad_poses + ((n + w) * conv_.children() + i) * conv_.p() + r * Q());
        }
      }
  }

  const float* pose(int64_t n, int64_t i) const { return poses_.at(n, i / conv_.c_in, i % conv_.c_in); }

  // Votes [c_out d] of child i in one window.
  void vote_of(int64_t i, int64_t n, V* out) const {
    const float *u = pose(n, i), *weight = weight_ + i * weight_size();
    const int64_t position = poses_.position(n, i / conv_.c_in) % conv_.positions();
    const V* offset = vote_offset_ == nullptr ? nullptr : vote_offset_ + position * pose_vectors();
    for (int64_t r = 0; r < R(); ++r) {
      V pose[capacity];
      for (int64_t q = 0; q < Q(); ++q) pose[q] = splat<L>(u[r * Q() + q]);
      for (int64_t j = 0; j < conv_.c_out; ++j)
        for (int64_t z = 0; z < row_vectors(); ++z) {
          V sum = offset == nullptr ? V{} : offset[r * row_vectors() + z];
          for (int64_t q = 0; q < Q(); ++q) sum += pose[q] * load<L>(weight + ((j * Q() + q) * row_vectors() + z) * L);
          out[j * pose_vectors() + r * row_vectors() + z] = sum;
        }
    }
  }

  const Conv& conv_;
  Softmax<L> softmax_;
  WindowPoses poses_;
  const float* weight_;
  const V* vote_offset_;
  bool stored_;
  Scratch<V> votes_, tiles_;
  int terms_;
  Scratch<V> factors_;
};

}  // namespace capsella::CAPSELLA_ISA
