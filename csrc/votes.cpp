// Sums of votes, agreements with them, and the gradients of both. A vote is made where it is needed, in registers, so
// memory holds one number for each child and parent in place of a whole vote. Self-routing and both attentions are made
// of these two products.
#include <algorithm>
#include <type_traits>

#include "packing.h"
#include "scratch.h"

namespace capsella::CAPSELLA_ISA {

namespace {

constexpr int L = CAPSELLA_LANES;
using V = Vec<L>;

// Copies of the gradient of the weight, each of some images, that one call adds up: as many whatever the threads are,
// so that sums have the same bits.
constexpr int64_t MOST_COPIES = 32, MOST_COPIED_FLOATS = 16 << 20;

V load_some(const float* from, int64_t count) {
  V x{};
  if (count >= L)
    std::memcpy(&x, from, sizeof(x));
  else
    std::memcpy(&x, from, count * sizeof(float));
  return x;
}

void store_some(float* to, V x, int64_t count) { std::memcpy(to, &x, std::min<int64_t>(count, L) * sizeof(float)); }

// Rows and columns of a pose [r q] and of a vote [r e]; 0: known at run time alone.
template <int R, int Q, int E>
struct Shape {
  static constexpr int64_t vote = R ? R * E : MOST_POSE_ELEMENTS, pose = R ? R * Q : MOST_POSE_ELEMENTS;
  explicit Shape(const Conv& conv) : r_(conv.r), q_(conv.q), e_(conv.e) {}
  int64_t r() const { return R ? R : r_; }
  int64_t q() const { return R ? Q : q_; }
  int64_t e() const { return R ? E : e_; }
  int64_t d() const { return r() * e(); }
  int64_t p() const { return r() * q(); }

 private:
  int64_t r_, q_, e_;
};

// A capsule convolution whose parents stand in the lanes of vectors, L of them a block.
template <class S>
class Votes {
 public:
  Votes(const Conv& conv, const VoteInputs& inputs, int threads)
      : conv_(conv),
        s_(conv),
        inputs_(inputs),
        blocks_((conv.c_out + L - 1) / L),
        packed_(blocks_ * conv.weights() * s_.q() * s_.e()) {
    pack_parents<L>(inputs.weight, conv.weights(), conv.c_out, s_.q() * s_.e(), packed_.get(), blocks_, threads);
  }

  int64_t blocks() const { return blocks_; }
  int64_t packed() const { return blocks_ * conv_.weights() * s_.q() * s_.e(); }

  // out [c_out d] of window n = sum_i weights_ij V_ij; weights [i c_out].
  void sum(int64_t n, const float* weights, float* out) const {
    for (int64_t block = 0; block < blocks_; ++block) {
      V total[S::vote];
      for (int64_t d = 0; d < s_.d(); ++d) total[d] = V{};
      each_child(n, [&](int64_t i, const float* u, const float* offset, int64_t) {
        const V w = load_some(weights + i * conv_.c_out + block * L, lanes(block));
        const V* weight = weight_of(block, i);
        for (int64_t q = 0; q < s_.q(); ++q)
          for (int64_t r = 0; r < s_.r(); ++r) {
            const V x = w * u[r * s_.q() + q];
            for (int64_t e = 0; e < s_.e(); ++e) total[r * s_.e() + e] += x * weight[q * s_.e() + e];
          }
        if (offset)
          for (int64_t d = 0; d < s_.d(); ++d) total[d] += w * offset[d];
      });
      for (int64_t l = 0; l < std::min<int64_t>(lanes(block), L); ++l)
        for (int64_t d = 0; d < s_.d(); ++d) out[(block * L + l) * s_.d() + d] = total[d][l];
    }
  }

  // out [i c_out] of window n = V_ij · poses_j; poses [c_out d].
  void agree(int64_t n, const float* poses, float* out) const {
    for (int64_t block = 0; block < blocks_; ++block) {
      V of[S::vote];
      take_parents(block, poses, of);
      each_child(n, [&](int64_t i, const float* u, const float* offset, int64_t) {
        const V* weight = weight_of(block, i);
        V total{};
        for (int64_t q = 0; q < s_.q(); ++q)
          for (int64_t e = 0; e < s_.e(); ++e) {
            V along{};
            for (int64_t r = 0; r < s_.r(); ++r) along += of[r * s_.e() + e] * u[r * s_.q() + q];
            total += along * weight[q * s_.e() + e];
          }
        if (offset)
          for (int64_t d = 0; d < s_.d(); ++d) total += of[d] * offset[d];
        store_some(out + i * conv_.c_out + block * L, total, lanes(block));
      });
    }
  }

  // Adds the gradients of sum_ij weights_ij V_ij · poses_j of window n: grad_poses [b h w c_in p], grad_weight packed.
  void differentiate(int64_t n, const float* weights, const float* poses, float* grad_poses, V* grad_weight) const {
    for (int64_t block = 0; block < blocks_; ++block) {
      V of[S::vote];
      take_parents(block, poses, of);
      each_child(n, [&](int64_t i, const float* u, const float*, int64_t child) {
        const V w = load_some(weights + i * conv_.c_out + block * L, lanes(block));
        const V* weight = weight_of(block, i);
        V* to = grad_weight + (weight - packed_.get());
        V of_child[S::pose];
        for (int64_t k = 0; k < s_.p(); ++k) of_child[k] = V{};
        for (int64_t r = 0; r < s_.r(); ++r)
          for (int64_t e = 0; e < s_.e(); ++e) {
            const V of_vote = w * of[r * s_.e() + e];
            for (int64_t q = 0; q < s_.q(); ++q) {
              of_child[r * s_.q() + q] += of_vote * weight[q * s_.e() + e];
              to[q * s_.e() + e] += of_vote * u[r * s_.q() + q];
            }
          }
        float joined[S::pose];
        reduce_rows<Add, L>(of_child, s_.p(), joined);
        for (int64_t k = 0; k < s_.p(); ++k) grad_poses[child * s_.p() + k] += joined[k];
      });
    }
  }

 private:
  int64_t lanes(int64_t block) const { return conv_.c_out - block * L; }
  const V* weight_of(int64_t block, int64_t i) const {
    const int64_t row = conv_.tied ? i % conv_.c_in : i;
    return packed_.get() + (block * conv_.weights() + row) * s_.q() * s_.e();
  }

  void take_parents(int64_t block, const float* poses, V* of) const {
    for (int64_t d = 0; d < s_.d(); ++d) of[d] = V{};
    for (int64_t l = 0; l < std::min<int64_t>(lanes(block), L); ++l)
      for (int64_t d = 0; d < s_.d(); ++d) of[d][l] = poses[(block * L + l) * s_.d() + d];
  }

  // visit(i, pose, offset or null, the child's place in [b h w c_in]) for every child i of window n.
  template <class Visit>
  void each_child(int64_t n, Visit visit) const {
    const Window window(conv_, n);
    for (int64_t k = 0, i = 0; k < conv_.slots(); ++k) {
      const int64_t position = window.position(conv_, k);
      const float* offset = inputs_.vote_offset;
      if (offset) offset += position % conv_.positions() * s_.d();
      for (int64_t m = 0; m < conv_.c_in; ++m, ++i) {
        const int64_t child = position * conv_.c_in + m;
        visit(i, inputs_.poses + child * s_.p(), offset, child);
      }
    }
  }

  const Conv& conv_;
  const S s_;
  const VoteInputs& inputs_;
  int64_t blocks_;
  Scratch<V> packed_;
};

template <class S>
void sum_all(const Conv& conv, const VoteInputs& inputs, const float* weights, float* sums, int threads) {
  const Votes<S> votes(conv, inputs, threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const FlushDenormals flush;
#pragma omp for
    for (int64_t n = 0; n < conv.windows(); ++n)
      votes.sum(n, weights + n * conv.children() * conv.c_out, sums + n * conv.c_out * conv.d());
  }
}

template <class S>
void agree_all(const Conv& conv, const VoteInputs& inputs, const float* poses, float* agreements, int threads) {
  const Votes<S> votes(conv, inputs, threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const FlushDenormals flush;
#pragma omp for
    for (int64_t n = 0; n < conv.windows(); ++n)
      votes.agree(n, poses + n * conv.c_out * conv.d(), agreements + n * conv.children() * conv.c_out);
  }
}

template <class S>
void differentiate_all(const Conv& conv, const VoteInputs& inputs, const float* weights, const float* poses,
                       VoteGradients gradients, int threads) {
  const Votes<S> votes(conv, inputs, threads);
  const int64_t most = std::clamp<int64_t>(MOST_COPIED_FLOATS / std::max<int64_t>(1, votes.packed() * L), 1, MOST_COPIES);
  const int64_t copies = std::min(most, std::max<int64_t>(1, conv.batch));
  Scratch<V> grad_weight(copies * votes.packed());
  std::fill_n(gradients.poses, conv.grid_children() * conv.p(), 0.0f);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const FlushDenormals flush;
#pragma omp for
    for (int64_t copy = 0; copy < copies; ++copy) {
      V* own = grad_weight.get() + copy * votes.packed();
      std::fill_n(own, votes.packed(), V{});
      const int64_t first = conv.batch * copy / copies * conv.sites(), end = conv.batch * (copy + 1) / copies * conv.sites();
      for (int64_t n = first; n < end; ++n)
        votes.differentiate(n, weights + n * conv.children() * conv.c_out, poses + n * conv.c_out * conv.d(),
                            gradients.poses, own);
    }
  }
  unpack_sum<L>(grad_weight.get(), copies, conv.weights(), conv.c_out, conv.q * conv.e, gradients.weight,
                votes.blocks(), threads);
}

// run(shape) with the sizes of poses at compile time where they are usual: 4×4 matrices, 8-D and 16-D vectors.
template <class Run>
void with_shape(const Conv& conv, Run run) {
  if (conv.r == 4 && conv.q == 4 && conv.e == 4) return run(static_cast<Shape<4, 4, 4>*>(nullptr));
  if (conv.r == 1 && conv.q == 8 && conv.e == 16) return run(static_cast<Shape<1, 8, 16>*>(nullptr));
  if (conv.r == 1 && conv.q == 16 && conv.e == 16) return run(static_cast<Shape<1, 16, 16>*>(nullptr));
  run(static_cast<Shape<0, 0, 0>*>(nullptr));
}

}  // namespace

void vote_sums(const Conv& conv, const VoteInputs& inputs, const float* weights, float* sums, int threads) {
  with_shape(conv, [&](auto* shape) {
    sum_all<std::remove_pointer_t<decltype(shape)>>(conv, inputs, weights, sums, threads);
  });
}

void vote_agreements(const Conv& conv, const VoteInputs& inputs, const float* poses, float* agreements, int threads) {
  with_shape(conv, [&](auto* shape) {
    agree_all<std::remove_pointer_t<decltype(shape)>>(conv, inputs, poses, agreements, threads);
  });
}

void vote_gradients(const Conv& conv, const VoteInputs& inputs, const float* weights, const float* poses,
                    VoteGradients gradients, int threads) {
  with_shape(conv, [&](auto* shape) {
    differentiate_all<std::remove_pointer_t<decltype(shape)>>(conv, inputs, weights, poses, gradients, threads);
  });
}

}  // namespace capsella::CAPSELLA_ISA
