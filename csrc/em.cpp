// EM routing of all windows: compiled once for each instruction set, with CAPSELLA_ISA its name and CAPSELLA_LANES its
// widest vector of floats.
#include "em.h"

#include <memory>
#include <vector>

namespace capsella::CAPSELLA_ISA {

// With competition everywhere, what windows carry from phase to phase takes about this much memory, or one image's.
constexpr int64_t BYTES_AT_A_TIME = 16 << 20;
// The gradient of the weight is summed in this many parts, always the same whatever the number of threads, so that a
// result does not depend on it; fewer where the parts would need much memory.
constexpr int64_t PARTS = 16;
constexpr int64_t BYTES_OF_PARTS = 64 << 20;

template <int L, int N, int Q, int C>
class EM {
  using V = Vec<L>;
  using Site = EMSite<L, N, Q, C>;

 public:
  EM(const Conv& conv, const EMOptions& options, const EMInputs& inputs, EMKept kept, int threads)
      : conv_(conv), options_(options), inputs_(inputs), kept_(kept), threads_(threads),
        blocks_((conv.c_out + L - 1) / L), everywhere_(options.compete_everywhere && conv.sites() > 1),
        weight_(blocks_ * conv.weights() * conv.q * conv.c), log_start_(blocks_ * conv.children()) {
    options_.compete_everywhere = everywhere_;  // at a single position both are the same
    pack_weight<L>(conv, inputs.weight, weight_.get(), blocks_, threads);
    pack_start();
    for (int k = 0; k < threads; ++k)
      sites_.push_back(std::make_unique<Site>(conv_, options_, inputs_, kept_, weight_.get(), log_start_.get()));
  }

  void forward(float* poses, float* activations) {
    const int64_t carried_size = blocks_ * conv_.children();
    const int64_t group = everywhere_ ? images_at_a_time(carried_size) * conv_.sites() : conv_.units();
    Scratch<V> logits(everywhere_ ? group * carried_size : 0);
    Scratch<float> sums(everywhere_ ? group * conv_.children() : 0);
    for (int64_t first = 0; first < conv_.units(); first += group) {
      const int64_t count = std::min(group, conv_.units() - first);
      if (!everywhere_) {
        for_each_window(first, count, [&](Site& site, int64_t) { forward_here(site, poses, activations); });
        continue;
      }
      for (int t = 0; t < options_.iterations; ++t) {
        const bool last = t == options_.iterations - 1;
        for_each_window(first, count, [&](Site& site, int64_t k) {
          V* here = &logits[k * carried_size];
          if (t == 0)
            site.start(here);
          else
            site.normalise(here, log_normalisers(t));
          site.m_step(t, here);
          if (last) return site.write(poses, activations);
          site.e_step(t, here);
          site.log_sum_exp(here, &sums[k * conv_.children()]);
        });
        if (!last) total_log(first, count, sums.get(), log_normalisers(t + 1));
      }
    }
  }

  void backward(const float* grad_poses, const float* grad_activations, EMGradients gradients) {
    const int64_t children = conv_.children(), p = conv_.p(), units = conv_.units();
    const int64_t weight_size = blocks_ * conv_.weights() * conv_.q * conv_.c;
    const int64_t parts = std::clamp<int64_t>(BYTES_OF_PARTS / (weight_size * int64_t(sizeof(V))), 4, PARTS);
    Scratch<V> grad_weight(parts * weight_size), grad_beta(2 * parts * blocks_);
    std::memset(static_cast<void*>(grad_weight.get()), 0, parts * weight_size * sizeof(V));
    std::memset(static_cast<void*>(grad_beta.get()), 0, 2 * parts * blocks_ * sizeof(V));
    Scratch<float> slot_poses(units * children * p), slot_activations(units * children);
    const int64_t carried_size = Carried<L>::size(options_.iterations, blocks_, children, conv_.d());
    const int64_t group = everywhere_ ? images_at_a_time(carried_size) * conv_.sites() : units;
    Scratch<V> carried_memory((everywhere_ ? group : threads_) * carried_size);
    Scratch<float> sums(everywhere_ ? group * children : 0);
    Scratch<float> totals(everywhere_ ? conv_.batch * conv_.height * conv_.width * conv_.c_in : 0);

    for (int64_t first = 0; first < units; first += group) {
      const int64_t count = std::min(group, units - first);
      auto one = [&](Site& site, Carried<L>& carried, int64_t part, int64_t k, int t) {
        V *beta_u = &grad_beta[2 * part * blocks_], *beta_a = beta_u + blocks_;
        if (everywhere_ && t < options_.iterations - 1) {
          site.gather(totals.get());
          site.pull_through_softmax(t, carried);
        }
        site.recall(t, carried.log_couplings, everywhere_ && t > 0 ? log_normalisers(t) : nullptr);
        site.backward_iteration(t, carried, grad_poses, grad_activations, beta_u, beta_a);
        if (t > 0) {
          if (everywhere_)
            std::memcpy(&sums[k * children], site.sums(), children * sizeof(float));
          else
            site.pull_through_softmax(t - 1, carried);
        } else {
          site.finish(carried, &grad_weight[part * weight_size], &slot_poses[(first + k) * children * p],
                      &slot_activations[(first + k) * children]);
        }
      };
      if (!everywhere_) {
        for_each_part(first, count, parts, [&](Site& site, int64_t part, int64_t, int thread) {
          Carried<L> carried(&carried_memory[thread * carried_size], options_.iterations, blocks_, children, conv_.d());
          for (int t = options_.iterations - 1; t >= 0; --t) one(site, carried, part, site.unit() - first, t);
        });
        continue;
      }
      for (int t = options_.iterations - 1; t >= 0; --t) {
        for_each_part(first, count, parts, [&](Site& site, int64_t part, int64_t k, int) {
          Carried<L> carried(&carried_memory[k * carried_size], options_.iterations, blocks_, children, conv_.d());
          one(site, carried, part, k, t);
        });
        if (t > 0) total(first, count, sums.get(), totals.get());
      }
    }
    unpack_weight_sum<L>(conv_, grad_weight.get(), parts, gradients.weight, blocks_, threads_);
    sum_betas(grad_beta.get(), parts, gradients);
    gather_children(slot_poses.get(), slot_activations.get(), gradients);
  }

 private:
  int64_t images_at_a_time(int64_t vectors_a_window) const {
    const int64_t bytes = vectors_a_window * conv_.sites() * int64_t(sizeof(V));
    return std::min(conv_.batch, std::max<int64_t>(1, BYTES_AT_A_TIME / bytes));
  }
  float* log_normalisers(int t) {
    return kept_.log_normalisers + (t - 1) * conv_.batch * conv_.height * conv_.width * conv_.c_in;
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

  void forward_here(Site& site, float* poses, float* activations) {
    site.start(site.couplings());
    for (int t = 0; t < options_.iterations; ++t) {
      site.m_step(t, site.couplings());
      if (t == options_.iterations - 1) break;
      site.e_step(t, site.couplings());
      site.normalise(site.couplings(), nullptr);
    }
    site.write(poses, activations);
  }

  // body(site, k) for the windows first + k, each loaded.
  template <class Body>
  void for_each_window(int64_t first, int64_t count, Body body) {
    for_each_part(first, count, count, [&](Site& site, int64_t, int64_t k, int) { body(site, k); });
  }

  // body(site, part, k, thread) for the windows first + k, in `parts` of consecutive ones, each part in order.
  template <class Body>
  void for_each_part(int64_t first, int64_t count, int64_t parts, Body body) {
#pragma omp parallel for schedule(dynamic) num_threads(threads_) if (threads_ > 1)
    for (int64_t part = 0; part < parts; ++part) {
      [[maybe_unused]] const FlushDenormals flush;
      const int thread = omp_get_thread_num();
      Site& site = *sites_[thread];
      for (int64_t k = count * part / parts; k < count * (part + 1) / parts; ++k) {
        site.load(first + k);
        body(site, part, k, thread);
      }
    }
  }

  // From log-sum-exps at each window's children to those over all parents of each child [b h w c_in].
  void total_log(int64_t first, int64_t count, const float* sums, float* out) {
    for_each_child(first, count, [&](int64_t image, int64_t y, int64_t x, int64_t child) {
      for (int64_t m = 0; m < conv_.c_in; m += L) {
        const size_t bytes = std::min<int64_t>(L, conv_.c_in - m) * sizeof(float);
        auto of_window = [&](int64_t unit, int64_t position) {
          V here{};
          std::memcpy(&here, sums + (unit - first) * conv_.children() + position * conv_.c_in + m, bytes);
          return here;
        };
        V largest = splat<L>(NEVER), sum{};
        visit_windows(conv_, image, y, x, [&](int64_t unit, int64_t position) {
          largest = vmax<L>(largest, of_window(unit, position));
        });
        visit_windows(conv_, image, y, x, [&](int64_t unit, int64_t position) {
          sum += vexp<L>(of_window(unit, position) - largest);
        });
        const V total = largest + vlog<L>(sum);
        std::memcpy(out + child * conv_.c_in + m, &total, bytes);
      }
    });
  }

  void total(int64_t first, int64_t count, const float* sums, float* out) {
    for_each_child(first, count, [&](int64_t image, int64_t y, int64_t x, int64_t child) {
      for (int64_t m = 0; m < conv_.c_in; ++m) out[child * conv_.c_in + m] = 0;
      visit_windows(conv_, image, y, x, [&](int64_t unit, int64_t position) {
        const float* here = sums + (unit - first) * conv_.children() + position * conv_.c_in;
        for (int64_t m = 0; m < conv_.c_in; ++m) out[child * conv_.c_in + m] += here[m];
      });
    });
  }

  // body(image, y, x, row of that position in [b h w]) for all child positions of the images of these windows.
  template <class Body>
  void for_each_child(int64_t first, int64_t count, Body body) {
    const int64_t area = conv_.height * conv_.width;
    const int64_t begin = first / conv_.sites() * area, end = (first + count) / conv_.sites() * area;
#pragma omp parallel for num_threads(threads_) if (threads_ > 1)
    for (int64_t child = begin; child < end; ++child)
      body(child / area, child % area / conv_.width, child % conv_.width, child);
  }

  // Gradients at each window's children to those of the grid.
  void gather_children(const float* slot_poses, const float* slot_activations, EMGradients gradients) {
    const int64_t width = conv_.c_in * conv_.p();
    for_each_child(0, conv_.units(), [&](int64_t image, int64_t y, int64_t x, int64_t child) {
      float *poses = gradients.poses + child * width, *activations = gradients.activations + child * conv_.c_in;
      std::memset(poses, 0, width * sizeof(float));
      std::memset(activations, 0, conv_.c_in * sizeof(float));
      visit_windows(conv_, image, y, x, [&](int64_t unit, int64_t position) {
        const int64_t slot = unit * conv_.children() + position * conv_.c_in;
        for (int64_t e = 0; e < width; ++e) poses[e] += slot_poses[slot * conv_.p() + e];
        for (int64_t m = 0; m < conv_.c_in; ++m) activations[m] += slot_activations[slot + m];
      });
    });
  }

  void sum_betas(const V* grad_beta, int64_t parts, EMGradients gradients) {
    for (int64_t j = 0; j < conv_.c_out; ++j) {
      gradients.beta_u[j] = gradients.beta_a[j] = 0;
      for (int64_t part = 0; part < parts; ++part) {
        gradients.beta_u[j] += grad_beta[2 * part * blocks_ + j / L][j % L];
        gradients.beta_a[j] += grad_beta[(2 * part + 1) * blocks_ + j / L][j % L];
      }
    }
  }

  const Conv& conv_;
  EMOptions options_;
  const EMInputs& inputs_;
  EMKept kept_;
  int threads_;
  int64_t blocks_;
  bool everywhere_;
  Scratch<V> weight_, log_start_;
  std::vector<std::unique_ptr<Site>> sites_;
};

// Call with<L, N, Q, C>() with the pose's factors as constants where a network of the papers has them.
template <int L, template <int, int, int, int> class Run, class... Arguments>
void with_factors(const Conv& conv, Arguments&&... arguments) {
  if (conv.n == 4 && conv.q == 4 && conv.c == 4) return Run<L, 4, 4, 4>::run(conv, arguments...);
  if (conv.n == 3 && conv.q == 3 && conv.c == 3) return Run<L, 3, 3, 3>::run(conv, arguments...);
  if (conv.n == 1 && conv.q == 16 && conv.c == 16) return Run<L, 1, 16, 16>::run(conv, arguments...);
  Run<L, 0, 0, 0>::run(conv, arguments...);
}

template <template <int, int, int, int> class Run, class... Arguments>
void with_lanes(const Conv& conv, Arguments&&... arguments) {
  if constexpr (CAPSELLA_LANES > 8) {
    if (conv.c_out <= CAPSELLA_LANES / 2) return with_factors<CAPSELLA_LANES / 2, Run>(conv, arguments...);
  }
  with_factors<CAPSELLA_LANES, Run>(conv, arguments...);
}

template <int L, int N, int Q, int C>
struct Forward {
  static void run(const Conv& conv, const EMOptions& options, const EMInputs& inputs, EMKept kept, float* poses,
                  float* activations, int threads) {
    EM<L, N, Q, C>(conv, options, inputs, kept, threads).forward(poses, activations);
  }
};

template <int L, int N, int Q, int C>
struct Backward {
  static void run(const Conv& conv, const EMOptions& options, const EMInputs& inputs, EMKept kept,
                  const float* grad_poses, const float* grad_activations, EMGradients gradients, int threads) {
    EM<L, N, Q, C>(conv, options, inputs, kept, threads).backward(grad_poses, grad_activations, gradients);
  }
};

void em_forward(const Conv& conv, const EMOptions& options, const EMInputs& inputs, EMKept kept, float* poses,
                float* activations, int threads) {
  with_lanes<Forward>(conv, options, inputs, kept, poses, activations, threads);
}

void em_backward(const Conv& conv, const EMOptions& options, const EMInputs& inputs, EMKept kept,
                 const float* grad_poses, const float* grad_activations, EMGradients gradients, int threads) {
  with_lanes<Backward>(conv, options, inputs, kept, grad_poses, grad_activations, gradients, threads);
}

}  // namespace capsella::CAPSELLA_ISA
