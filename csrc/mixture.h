// Routing by a mixture of Gaussians, all windows: compiled once for each instruction set, with CAPSELLA_ISA its name and
// CAPSELLA_LANES its widest vector of floats. The formulas of a routing say what its means, variances and data mean.
#pragma once

#include "mixture_grid.h"
#include "mixture_input_gradients.h"

#include <memory>
#include <vector>

namespace capsella::CAPSELLA_ISA {

// With competition everywhere, what windows carry from phase to phase takes about this much memory, or one image's.
constexpr int64_t BYTES_AT_A_TIME = 16 << 20;
// The gradient of the weight is summed in this many parts, always the same whatever the number of threads, so that a
// result does not depend on it; fewer where the parts would need much memory.
constexpr int64_t PARTS = 16;
constexpr int64_t BYTES_OF_PARTS = 64 << 20;

template <class Formulas, int L, int R, int Q, int E>
class Mixture {
  using V = Vec<L>;
  using Loaded = MixtureWindow<Formulas, L, R, Q, E>;
  using Options = typename Formulas::Options;

 public:
  Mixture(const Conv& conv, const Options& options, const MixtureInputs& inputs, MixtureKept kept, int threads)
      : conv_(conv), options_(options), inputs_(inputs), kept_(kept), threads_(threads), grid_{conv, threads},
        blocks_((conv.c_out + L - 1) / L), rows_(Formulas::parameters(conv, options)),
        everywhere_(Formulas::everywhere(conv, options)),
        weight_(blocks_ * conv.weights() * conv.q * conv.e), log_start_(blocks_ * conv.children()),
        parameters_(rows_ * blocks_), bias_(blocks_ * bias_rows() * conv.d()),
        pairs_(Formulas::paired(options) ? blocks_ * conv.weights() * ((conv.q + 1) / 2) * conv.e : 0),
        packed_{weight_.get(), pairs_.get(), log_start_.get(), parameters_.get(), bias_.get()} {
    pack_parents<L>(inputs.weight, conv.weights(), conv.c_out, conv.q * conv.e, weight_.get(), blocks_, threads);
    if (pairs_.get()) pack_pairs<L>(weight_.get(), pairs_.get(), blocks_ * conv.weights(), conv.q, conv.e, threads);
    pack_start();
    pack_parents<L>(inputs.parameters, rows_, conv.c_out, 1, parameters_.get(), blocks_, threads);
    if (inputs.bias)
      pack_parents<L>(inputs.bias, bias_rows(), conv.c_out, conv.d(), bias_.get(), blocks_, threads);
    for (int thread = 0; thread < threads; ++thread)
      windows_.push_back(std::make_unique<Loaded>(conv_, options_, inputs_, kept_, packed_));
  }

  void forward(float* poses, float* log_odds) {
    const int64_t carried_size = blocks_ * conv_.children();
    const int64_t group = everywhere_ ? images_at_a_time(carried_size) * conv_.sites() : conv_.windows();
    Scratch<V> logits(everywhere_ ? group * carried_size : 0);
    Scratch<float> sums(everywhere_ ? group * conv_.children() : 0);
    for (int64_t first = 0; first < conv_.windows(); first += group) {
      const int64_t count = std::min(group, conv_.windows() - first);
      if (!everywhere_) {
        for_each_window(first, count, [&](Loaded& window, int64_t) { forward_here(window, poses, log_odds); });
        continue;
      }
      for (int t = 0; t < options_.iterations; ++t) {
        const bool last = t == options_.iterations - 1;
        for_each_window(first, count, [&](Loaded& window, int64_t at) {
          m_step_everywhere(window, t, &logits[at * carried_size]);
          if (last) return write_parents(window, poses, log_odds);
          e_step_everywhere(window, t, &logits[at * carried_size], &sums[at * conv_.children()]);
        });
        if (!last) grid_.total_log(first, count, sums.get(), log_normalisers(t + 1));
      }
    }
  }

  void backward(const float* grad_poses, const float* grad_log_odds, MixtureGradients gradients) {
    const int64_t children = conv_.children(), P = conv_.p(), windows = conv_.windows();
    const int64_t weight_size = blocks_ * conv_.weights() * conv_.q * conv_.e;
    const int64_t parts = std::clamp<int64_t>(BYTES_OF_PARTS / (weight_size * int64_t(sizeof(V))), 4, PARTS);
    const int64_t rows_size = rows_ * blocks_, bias_size = blocks_ * bias_rows() * conv_.d();
    Scratch<V> grad_weight(parts * weight_size), grad_rows(parts * rows_size), grad_bias(parts * bias_size);
    clear(grad_weight, parts * weight_size);
    clear(grad_rows, parts * rows_size);
    clear(grad_bias, parts * bias_size);
    Scratch<float> child_poses(windows * children * P), child_activations(windows * children);
    std::fill_n(child_poses.get(), windows * children * P, 0.0f);
    const int64_t carried_size = Carried<L>::size(options_.iterations, blocks_, children, conv_.d());
    const int64_t group = everywhere_ ? images_at_a_time(carried_size) * conv_.sites() : windows;
    Scratch<V> carried_memory((everywhere_ ? group : threads_) * carried_size);
    Scratch<float> sums(everywhere_ ? group * children : 0);
    Scratch<float> totals(everywhere_ ? conv_.grid_children() : 0);

    for (int64_t first = 0; first < windows; first += group) {
      const int64_t count = std::min(group, windows - first);
      auto carried_at = [&](int64_t place) {
        return Carried<L>(&carried_memory[place * carried_size], options_.iterations, blocks_, children, conv_.d());
      };
      // Backward through iteration t of a window, whose pulls of t are complete.
      auto iteration = [&](Loaded& window, int t, Carried<L> carried, int64_t part, int64_t at) {
        V* of_rows = grad_rows.get() + part * rows_size;
        parent_gradients(window, t, carried, grad_poses, grad_log_odds, of_rows);
        const bool gathered = everywhere_ && t > 0;
        if (gathered) gather(window, log_normalisers(t), window.of_children.get());
        for_each_group(window, [&](int64_t child, int64_t many) {
          couple(window, t, child, many, gathered ? window.of_children.get() : nullptr);
          take_shares(window, t, child, many, carried);
        });
        float* here = everywhere_ ? &sums[at * children] : window.of_children.get();
        for_each_group(window, [&](int64_t child, int64_t many) {
          coupling_gradients(window, t, child, many, carried, here + child, of_rows);
        });
        if (t > 0 && !everywhere_) complete_pulls(window, t - 1, carried, here);
        if (t == 0)
          std::memcpy(&child_activations[(first + at) * children], carried.grad_activations, children * sizeof(float));
      };
      // The gradients of the poses and the weight for some windows, block by block. carried_of(at): of the window
      // first + at.
      auto inputs = [&](Loaded& window, int64_t part, int64_t begin, int64_t end, auto carried_of) {
        for (int64_t block = 0; block < blocks_; ++block)
          for (int64_t at = begin; at < end; ++at) {
            take_children(window, first + at);
            for (int t = 0; t < options_.iterations; ++t) describe_parents(window, t, block);
            auto* add = packed_.pairs ? input_gradients<true, Loaded> : input_gradients<false, Loaded>;
            add(window, block, carried_of(at), &grad_weight[part * weight_size], grad_bias.get() + part * bias_size,
                &child_poses[(first + at) * children * P]);
          }
      };
      if (!everywhere_) {
        for_each_part(count, parts, [&](Loaded& window, int64_t part, int64_t begin, int64_t end, int thread) {
          for (int64_t at = begin; at < end; ++at) {
            const Carried<L> carried = carried_at(thread);
            load(window, first + at);
            for (int t = 0; t < options_.iterations; ++t) remember(window, t);
            for (int t = options_.iterations - 1; t >= 0; --t) iteration(window, t, carried, part, at);
            inputs(window, part, at, at + 1, [&](int64_t) { return carried; });
          }
        });
        continue;
      }
      for (int t = options_.iterations - 1; t >= 0; --t) {
        for_each_part(count, parts, [&](Loaded& window, int64_t part, int64_t begin, int64_t end, int) {
          for (int64_t at = begin; at < end; ++at) {
            load(window, first + at);
            for (int known = std::max(t - 1, 0); known <= t; ++known) remember(window, known);
            if (t < options_.iterations - 1) {
              gather(window, totals.get(), window.of_children.get());
              complete_pulls(window, t, carried_at(at), window.of_children.get());
            }
            iteration(window, t, carried_at(at), part, at);
          }
          if (t == 0) inputs(window, part, begin, end, carried_at);
        });
        if (t > 0) grid_.total(first, count, sums.get(), totals.get());
      }
    }
    auto unpack = [&](Scratch<V>& sums, int64_t rows, int64_t elements, float* out) {
      unpack_sum<L>(sums.get(), parts, rows, conv_.c_out, elements, out, blocks_, threads_);
    };
    unpack(grad_weight, conv_.weights(), conv_.q * conv_.e, gradients.weight);
    unpack(grad_rows, rows_, 1, gradients.parameters);
    if (inputs_.bias) unpack(grad_bias, bias_rows(), conv_.d(), gradients.bias);
    grid_.gather_children(child_poses.get(), child_activations.get(), gradients);
  }

 private:
  int64_t bias_rows() const {
    if constexpr (Formulas::biased)
      if (inputs_.bias) return Formulas::rows(conv_, options_);
    return 0;
  }
  int64_t images_at_a_time(int64_t vectors_a_window) const {
    const int64_t bytes = vectors_a_window * conv_.sites() * int64_t(sizeof(V));
    return std::min(conv_.batch, std::max<int64_t>(1, BYTES_AT_A_TIME / bytes));
  }
  float* log_normalisers(int t) {
    return kept_.log_normalisers + (t - 1) * conv_.grid_children();
  }

  static void clear(Scratch<V>& sums, int64_t count) {
    if (count > 0) std::memset(static_cast<void*>(sums.get()), 0, count * sizeof(V));
  }

  void pack_start() {
    const int64_t children = conv_.children();
    for (int64_t j = 0; j < blocks_ * L; ++j)
      for (int64_t i = 0; i < children; ++i)
        log_start_[j / L * children + i][j % L] =
            j >= conv_.c_out ? NEVER
            : inputs_.start  ? std::log(inputs_.start[i * conv_.c_out + j])
                             : -std::log(float(conv_.c_out));
  }

  void forward_here(Loaded& window, float* poses, float* log_odds) {
    for (int t = 0; t < options_.iterations; ++t)
      m_step(window, t, [&](int64_t first, int64_t count) { couple(window, t, first, count, nullptr); });
    write_parents(window, poses, log_odds);
  }

  // All that formulas say of iteration t, from what forward kept.
  static void remember(Loaded& window, int t) {
    describe_parents(window, t);
    Formulas::recall(window, t);
  }

  // logits [blocks i]: of the E-step before, not yet normalised over all parents of each child.
  void m_step_everywhere(Loaded& window, int t, const V* logits) {
    if (t > 0) gather(window, log_normalisers(t), window.of_children.get());
    m_step(window, t, [&](int64_t first, int64_t count) {
      if (t == 0) return start_couplings(window, first, count);
      for (int64_t block = 0; block < blocks_; ++block)
        std::memcpy(&window.couplings[block * GROUP], logits + block * conv_.children() + first, count * sizeof(V));
      normalise(window, count, &window.of_children[first]);
    });
  }

  // logits [blocks i], and the logarithm of each child's sum over the types at this site, sums [i].
  void e_step_everywhere(Loaded& window, int t, V* logits, float* sums) {
    for_each_group(window, [&](int64_t first, int64_t count) {
      e_step(window, t, first, count);
      float largest[GROUP];
      log_sum_exp(window, count, largest, sums + first);
      for (int64_t g = 0; g < count; ++g) sums[first + g] += largest[g];
      for (int64_t block = 0; block < blocks_; ++block)
        std::memcpy(logits + block * conv_.children() + first, &window.couplings[block * GROUP], count * sizeof(V));
    });
  }

  // The pulls of iteration t through the softmax over parents, given each child's sum of them [i], and their own sums.
  void complete_pulls(Loaded& window, int t, Carried<L> carried, const float* sums) {
    clear_pulls(window, t, carried);
    for_each_group(window, [&](int64_t first, int64_t count) {
      pull_through_softmax(window, t, first, count, carried, sums + first);
      add_pulls(window, t, first, count, carried);
    });
  }

  void load(Loaded& window, int64_t n) {
    take_children(window, n);
    vote(window);
  }

  // body(window, at) for the windows first + at, each loaded.
  template <class Body>
  void for_each_window(int64_t first, int64_t count, Body body) {
    for_each_part(count, count, [&](Loaded& window, int64_t, int64_t begin, int64_t end, int) {
      for (int64_t at = begin; at < end; ++at) {
        load(window, first + at);
        body(window, at);
      }
    });
  }

  // body(window, part, begin, end, thread) for `parts` of `count` consecutive windows, which share one to work with.
  template <class Body>
  void for_each_part(int64_t count, int64_t parts, Body body) {
#pragma omp parallel for schedule(dynamic) num_threads(threads_) if (threads_ > 1)
    for (int64_t part = 0; part < parts; ++part) {
      [[maybe_unused]] const FlushDenormals flush;
      const int thread = omp_get_thread_num();
      body(*windows_[thread], part, count * part / parts, count * (part + 1) / parts, thread);
    }
  }

  const Conv& conv_;
  const Options& options_;
  const MixtureInputs& inputs_;
  MixtureKept kept_;
  int threads_;
  Grid<L> grid_;
  int64_t blocks_, rows_;
  bool everywhere_;
  Scratch<V> weight_, log_start_, parameters_, bias_;
  Scratch<Pairs<L>> pairs_;
  Packed<L> packed_;
  std::vector<std::unique_ptr<Loaded>> windows_;
};

// Call Run<L, R, Q, E>::run() with the pose's factors as constants where a network of the papers has them.
template <int L, template <int, int, int, int> class Run, class... Arguments>
void with_factors(const Conv& conv, Arguments&&... arguments) {
  if (conv.r == 4 && conv.q == 4 && conv.e == 4) return Run<L, 4, 4, 4>::run(conv, arguments...);
  if constexpr (Run<L, 0, 0, 0>::many_factors) {
    if (conv.r == 3 && conv.q == 3 && conv.e == 3) return Run<L, 3, 3, 3>::run(conv, arguments...);
    if (conv.r == 1 && conv.q == 16 && conv.e == 16) return Run<L, 1, 16, 16>::run(conv, arguments...);
  }
  Run<L, 0, 0, 0>::run(conv, arguments...);
}

template <template <int, int, int, int> class Run, class... Arguments>
void with_lanes(const Conv& conv, Arguments&&... arguments) {
  if constexpr (CAPSELLA_LANES > 8) {
    if (conv.c_out <= CAPSELLA_LANES / 2) return with_factors<CAPSELLA_LANES / 2, Run>(conv, arguments...);
  }
  with_factors<CAPSELLA_LANES, Run>(conv, arguments...);
}

// Forward and backward of one routing, for each size of vector and pose.
template <class Formulas>
struct Passes {
  using Options = typename Formulas::Options;

  template <int L, int R, int Q, int E>
  struct Forward {
    static constexpr bool many_factors = Formulas::many_factors;
    static void run(const Conv& conv, const Options& options, const MixtureInputs& inputs, MixtureKept kept,
                    float* poses, float* log_odds, int threads) {
      Mixture<Formulas, L, R, Q, E>(conv, options, inputs, kept, threads).forward(poses, log_odds);
    }
  };

  template <int L, int R, int Q, int E>
  struct Backward {
    static constexpr bool many_factors = Formulas::many_factors;
    static void run(const Conv& conv, const Options& options, const MixtureInputs& inputs, MixtureKept kept,
                    const float* grad_poses, const float* grad_log_odds, MixtureGradients gradients, int threads) {
      Mixture<Formulas, L, R, Q, E>(conv, options, inputs, kept, threads)
          .backward(grad_poses, grad_log_odds, gradients);
    }
  };

  static void forward(const Conv& conv, const Options& options, const MixtureInputs& inputs, MixtureKept kept,
                      float* poses, float* log_odds, int threads) {
    with_lanes<Forward>(conv, options, inputs, kept, poses, log_odds, threads);
  }

  static void backward(const Conv& conv, const Options& options, const MixtureInputs& inputs, MixtureKept kept,
                       const float* grad_poses, const float* grad_log_odds, MixtureGradients gradients, int threads) {
    with_lanes<Backward>(conv, options, inputs, kept, grad_poses, grad_log_odds, gradients, threads);
  }
};

}  // namespace capsella::CAPSELLA_ISA
