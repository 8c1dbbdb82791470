// Routing by a mixture of Gaussians, one window: its children, and their votes, which fill a tile of a few hundred
// kilobytes that stays in the second cache of a core. A sweep takes the children in groups, whose votes stay in the first
// cache while the E-step of one iteration and the sums of the M-step of the next are made of them.
//
// Vectors run over the parent types, so every sum over children or pose elements is a plain vertical one. For blocks of
// L parents: votes V [blocks i d], couplings of a group [blocks g]. Letters as in capsella/routing/README.md, g a child's
// place in its group; symbols as in capsella/routing/em.py.
#pragma once

#include <algorithm>

#include "packing.h"
#include "scratch.h"

namespace capsella::CAPSELLA_ISA {

constexpr float LEAST_ACTIVATION = 1e-12f;  // as in moments.py
constexpr float NEVER = -1e38f;             // the logarithm of a coupling to a parent that is only padding
constexpr int64_t GROUP = 16;               // most children of a group

// What all windows take of the inputs, with parents in the lanes.
template <int L>
struct Packed {
  const Vec<L>* weight;      // [blocks weights q e]
  const Pairs<L>* pairs;     // of the weight [blocks weights halves e], or null
  const Vec<L>* log_start;   // [blocks i]
  const Vec<L>* parameters;  // [blocks k]
  const Vec<L>* bias;        // [blocks i d], or null; i = 1 where it is shared
};

// A window under work, one after the other on one thread. Formulas: those of a routing (em.h, variational.h, heinsen.h).
// FixedR, FixedQ, FixedE: the pose's factors where they are known at compile time, else 0.
template <class TheFormulas, int L, int FixedR, int FixedQ, int FixedE>
struct MixtureWindow {
  using Formulas = TheFormulas;
  using Options = typename Formulas::Options;
  using V = Vec<L>;
  static constexpr int lanes = L;
  static constexpr bool fixed = FixedR != 0;
  static constexpr int64_t capacity = fixed ? FixedR * FixedE : MOST_POSE_ELEMENTS;
  static constexpr int64_t pose_capacity = fixed ? FixedR * FixedQ : MOST_POSE_ELEMENTS;
  static constexpr int64_t row_capacity = fixed ? FixedE : MOST_POSE_ELEMENTS;
  static constexpr int64_t weight_capacity = fixed ? FixedQ * FixedE : MOST_POSE_ELEMENTS * MOST_POSE_ELEMENTS;
  static constexpr int64_t pairs_capacity = (FixedQ + 1) / 2 * FixedE;  // where fixed

  MixtureWindow(const Conv& conv, const Options& options, const MixtureInputs& inputs, const MixtureKept& kept,
                const Packed<L>& packed)
      : conv(conv), options(options), inputs(inputs), kept(kept), packed(packed),
        children(conv.children()), slots(conv.slots()), blocks((conv.c_out + L - 1) / L),
        rows(Formulas::parameters(conv, options)), window(conv, 0),
        votes(blocks * children * D()), couplings(blocks * GROUP), per_child(GROUP), most(blocks), total(blocks),
        data(blocks), mean(blocks * D()), square(blocks * D()), linear(Formulas::linear ? blocks : 0),
        means(options.iterations * blocks * D()), shrunk(Formulas::shrinks ? options.iterations * blocks * D() : 0),
        precisions(options.iterations * blocks * D()), log_sizes(options.iterations * blocks),
        constants(options.iterations * blocks), log_scales(Formulas::scales ? options.iterations * blocks : 0),
        work(options.iterations * blocks), grad_constant(blocks), grad_log_scale(Formulas::scales ? blocks : 0),
        grad_log_odds(blocks), grad_data(blocks), expected(blocks), grad_shares(blocks * children),
        pose_pairs(packed.pairs ? children * R() * halves() : 0), poses(children * conv.p()),
        offsets(inputs.vote_offset ? slots * D() : 0), log_active(children), active(children),
        inverse_active(children), counted(children), log_counts(slots), of_children(children) {}

  int64_t R() const { return fixed ? FixedR : conv.r; }
  int64_t Q() const { return fixed ? FixedQ : conv.q; }
  int64_t E() const { return fixed ? FixedE : conv.e; }
  int64_t halves() const { return (Q() + 1) / 2; }  // pairs along q
  int64_t D() const { return fixed ? FixedR * FixedE : conv.d(); }

  // What forward keeps of a block of parents in iteration t.
  V* mean_at(int t, int64_t block, int64_t d) const { return at(kept.means, t, block, d); }
  V* variance_at(int t, int64_t block, int64_t d) const { return at(kept.variances, t, block, d); }
  V* log_odds_at(int t, int64_t block) const { return at(kept.log_odds, t, block); }
  V* data_at(int t, int64_t block) const { return at(kept.data, t, block); }
  V* log_total_at(int t, int64_t block) const { return at(kept.log_total, t, block); }
  // What is learned beside the weight: row k of `MixtureInputs::parameters`.
  // Where the bias of child i's votes stands among all.
  int64_t bias_at(int64_t block, int64_t i) const {
    return (block * Formulas::rows(conv, options) + Formulas::row_of(*this, i)) * D();
  }
  const V& parameter(int64_t k, int64_t block) const { return packed.parameters[row(k, block)]; }
  int64_t row(int64_t k, int64_t block) const { return block * rows + k; }
  const V* weight_of(int64_t block, int64_t i) const { return packed.weight + weight_number(block, i) * Q() * E(); }
  const Pairs<L>* pairs_of(int64_t block, int64_t i) const {
    return packed.pairs + weight_number(block, i) * halves() * E();
  }
  // The centres of the parents' Gaussians [t blocks d].
  V* centres() { return Formulas::shrinks ? shrunk.get() : means.get(); }
  const V* centres() const { return Formulas::shrinks ? shrunk.get() : means.get(); }
  // Of child i and those after it, for a block of parents: [i d].
  V* votes_at(int64_t block, int64_t i) { return &votes[(block * children + i) * D()]; }
  const V* votes_at(int64_t block, int64_t i) const { return &votes[(block * children + i) * D()]; }
  static V lane_numbers() {
    V x{};
    for (int l = 0; l < L; ++l) x[l] = float(l);
    return x;
  }

  const Conv& conv;
  const Options& options;
  const MixtureInputs& inputs;
  const MixtureKept& kept;
  const Packed<L>& packed;
  int64_t children, slots, blocks, rows, n = 0;  // rows: of parameters
  float even_data = 0;  // of a parent, if every child were active and undecided
  Window window;
  Scratch<V> votes;                              // [blocks i d]
  Scratch<V> couplings, per_child;               // of a group: logarithms [blocks g], [g]
  Scratch<V> most, total, data, mean, square, linear;  // of the children so far: see add_children
  // Of iteration t, what describe() and the formulas say of the parents: means of the votes [t blocks d], shrunk ones
  // where centres of Gaussians are not the means, precisions [t blocks d], sums of log-variances [t blocks], constants
  // of the logits [t blocks], and what is taken from the log-couplings once they are normalised [t blocks].
  Scratch<V> means, shrunk, precisions, log_sizes, constants, log_scales;
  typename Formulas::template Work<V> work;      // [t blocks]
  Scratch<V> grad_constant, grad_log_scale, grad_log_odds, grad_data, expected, grad_shares;
  Scratch<uint32_t> pose_pairs;                  // [i r halves]
  Scratch<float> poses, offsets, log_active, active, inverse_active, counted, log_counts, of_children;

 private:
  int64_t weight_number(int64_t block, int64_t i) const {
    return block * conv.weights() + (conv.tied ? i % conv.c_in : i);
  }
  V* at(float* values, int t, int64_t block) const {
    return reinterpret_cast<V*>(values + (n * options.iterations + t) * conv.padded() + block * L);
  }
  V* at(float* values, int t, int64_t block, int64_t d) const {
    const int64_t row = (n * options.iterations + t) * D() + d;
    return reinterpret_cast<V*>(values + row * conv.padded() + block * L);
  }
};

template <class W>
using VecOf = typename W::V;

// The logarithms of `count` positive values, in place.
template <int L>
void log_in_place(float* values, int64_t count) {
  for (int64_t i = 0; i < count; i += L) {
    const size_t bytes = std::min<int64_t>(L, count - i) * sizeof(float);
    Vec<L> x = splat<L>(1.0f);
    std::memcpy(&x, values + i, bytes);
    x = vlog<L>(x);
    std::memcpy(values + i, &x, bytes);
  }
}

// values [b h w c_in] of this window's children -> out [i].
template <class W>
void gather(const W& w, const float* values, float* out) {
  for (int64_t k = 0, i = 0; k < w.slots; ++k, i += w.conv.c_in)
    std::memcpy(out + i, values + w.window.position(w.conv, k) * w.conv.c_in, w.conv.c_in * sizeof(float));
}

// Some elements of a pose, for which two sums of each stay in registers; of a pose known at compile time.
template <int64_t Count>
struct Part {
  static constexpr int64_t capacity = Count;
  // body(d) for each, written out: the compiler keeps in registers only what it sees without a loop.
  template <class Body>
  [[gnu::always_inline]] void each(Body body) const { each(body, std::make_integer_sequence<int64_t, Count>{}); }
  template <class Body, int64_t... d>
  [[gnu::always_inline]] void each(Body body, std::integer_sequence<int64_t, d...>) const { (body(d), ...); }
};

// A pose of any size.
struct WholePose {
  static constexpr int64_t capacity = MOST_POSE_ELEMENTS;
  int64_t count;
  template <class Body>
  void each(Body body) const {
    for (int64_t d = 0; d < count; ++d) body(d);
  }
};

// body(part, from) for all elements of a parent's pose.
template <class W, class Body>
[[gnu::always_inline]] inline void for_parts(const W& w, Body body) {
  if constexpr (W::fixed) {
    constexpr int64_t size = W::capacity % 8 == 0 ? 8 : W::capacity;
    for (int64_t from = 0; from < W::capacity; from += size) body(Part<size>{}, from);
  } else {
    body(WholePose{w.D()}, 0);
  }
}

}  // namespace capsella::CAPSELLA_ISA
