// Dynamic routing of all windows: compiled once for each instruction set, with CAPSELLA_ISA its name and CAPSELLA_LANES
// its widest vector of floats.
#include "dynamic_octets.h"
#include "dynamic_tied.h"
#include "dynamic_untied.h"

namespace capsella::CAPSELLA_ISA {

constexpr float EPSILON = 1e-12f;  // as in capsella/routing/functional.py
// Windows that share the weight of a group of children while it is in a core's cache.
constexpr int64_t BYTES_OF_BLOCK = 256 << 10;
// The children of a window are summed in this many parts, which the threads share; fewer where blocks of windows keep
// the threads busy. Never a matter of the number of threads, so that a result does not depend on it.
constexpr int64_t PARTS = 8;
constexpr int64_t ENOUGH_WORK = 32;

// Children: UntiedChildren or TiedChildren; it knows groups of them, whose sums are made together.
template <int L, class Children>
class Dynamic {
  using V = Vec<L>;

 public:
  Dynamic(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, int threads)
      : conv_(conv), options_(options), threads_(threads), windows_(conv.windows()), padded_((conv.e + L - 1) / L * L),
        weight_(in_place() ? 0 : weight_rows() * padded_), offset_(inputs.vote_offset ? offset_rows() * padded_ : 0),
        children_(conv, options, inputs.poses, in_place() ? inputs.weight : weight_.get(),
                  inputs.vote_offset ? reinterpret_cast<const V*>(offset_.get()) : nullptr, threads),
        blocks_(in_parts_of(std::max<int64_t>(4, BYTES_OF_BLOCK / (2 * size() * int64_t(sizeof(V)))))),
        block_(blocks_ == 0 ? 0 : (windows_ + blocks_ - 1) / blocks_),
        parts_(std::min(children_.count(), std::clamp<int64_t>(ENOUGH_WORK / std::max<int64_t>(blocks_, 1), 1, PARTS))),
        partial_(parts_ * windows_ * size()), rows_(threads * size()), bias_(size()) {
    if (!in_place()) pad(inputs.weight, weight_rows(), weight_.get());
    if (inputs.vote_offset) pad(inputs.vote_offset, offset_rows(), offset_.get());
    for (int64_t z = 0; z < size(); ++z) bias_[z] = V{};
    if (inputs.bias) pad(inputs.bias, parent_rows(), bias_.get());
  }

  void forward(float* sums, float* poses, float* activations) {
    Scratch<V> g(windows_ * size());
    clear(g.get(), windows_ * size());
    for (int t = 0; t < options_.iterations; ++t) {
      for_each_part([&](int thread, Chunks groups, int64_t begin, int64_t end, V* sums) {
        children_.route(thread, t, groups, begin, end, g.get(), sums);
      });
      for_each_window([&](int thread, int64_t n) {
        V *s = total(n), *v = &rows_[thread * size()];
        for (int64_t z = 0; z < size(); ++z) s[z] += bias_[z];
        unpad(s, parent_rows(), sums + sum_at(n, t));
        squash(s, v);
        for (int64_t z = 0; z < size(); ++z) g[n * size() + z] += v[z];
        if (t < options_.iterations - 1) return;
        unpad(v, parent_rows(), poses + n * parent_rows() * conv_.e);
        for (int64_t j = 0; j < conv_.c_out; ++j) activations[n * conv_.c_out + j] = length(v + j * pose_vectors());
      });
    }
  }

  void backward(const float* sums, const float* grad_poses, const float* grad_activations, DynamicGradients gradients) {
    Terms<L> terms(windows_, options_.iterations, size());
    Scratch<V> grad_g(windows_ * size());
    clear(grad_g.get(), windows_ * size());
    for_each_window([&](int thread, int64_t n) {
      recall(thread, n, sums, terms);
      last_gradient(thread, n, sums, grad_poses, grad_activations, terms.sum_gradient(n, last()));
    });
    for (int t = last(); t > 0; --t) {
      for_each_part([&](int thread, Chunks groups, int64_t begin, int64_t end, V* pulled) {
        for (int64_t group = groups.begin; group < groups.end; ++group)
          children_.pull(thread, t, group, begin, end, terms, pulled);
      });
      for_each_window([&](int thread, int64_t n) {
        V *s = &rows_[thread * size()], *pulled = total(n), *out = terms.sum_gradient(n, t - 1);
        pad(sums + sum_at(n, t - 1), parent_rows(), s);
        for (int64_t z = 0; z < size(); ++z) out[z] = grad_g[n * size() + z] += pulled[z];
        squash_gradient(s, out);
      });
    }
    input_gradients(terms, gradients);
    if (gradients.bias) bias_gradient(terms, gradients.bias);
  }

 private:
  int last() const { return options_.iterations - 1; }
  int64_t in_parts_of(int64_t most) const { return (windows_ + most - 1) / most; }
  bool in_place() const { return padded_ == conv_.e; }
  int64_t weight_rows() const { return conv_.weights() * conv_.c_out * conv_.q; }
  int64_t offset_rows() const { return conv_.positions() * conv_.r; }
  int64_t parent_rows() const { return conv_.c_out * conv_.r; }
  int64_t pose_vectors() const { return conv_.r * padded_ / L; }  // vectors of a parent's pose
  int64_t size() const { return conv_.c_out * pose_vectors(); }   // of all parents' poses at one site
  int64_t sum_at(int64_t n, int t) const { return (n * options_.iterations + t) * parent_rows() * conv_.e; }

  // Rows of e floats to rows of whole vectors, zero beyond, and back.
  void pad(const float* rows, int64_t count, float* out) const {
    for (int64_t r = 0; r < count; ++r)
      for (int64_t e = 0; e < padded_; ++e) out[r * padded_ + e] = e < conv_.e ? rows[r * conv_.e + e] : 0.0f;
  }
  void pad(const float* rows, int64_t count, V* out) const { pad(rows, count, reinterpret_cast<float*>(out)); }
  void unpad(const float* rows, int64_t count, float* out) const {
    for (int64_t r = 0; r < count; ++r) std::memcpy(out + r * conv_.e, rows + r * padded_, conv_.e * sizeof(float));
  }
  void unpad(const V* rows, int64_t count, float* out) const {
    unpad(reinterpret_cast<const float*>(rows), count, out);
  }

  static void clear(V* values, int64_t count) {
    if (count > 0) std::memset(static_cast<void*>(values), 0, count * sizeof(V));
  }

  // body(thread, groups, begin, end, sums [n c_out d]) for each part of the children in all windows begin ... end - 1;
  // `total` then adds the parts of each sum.
  template <class Body>
  void for_each_part(Body body) {
#pragma omp parallel for schedule(static) num_threads(threads_) if (threads_ > 1)
    for (int64_t item = 0; item < blocks_ * parts_; ++item) {
      [[maybe_unused]] const FlushDenormals flush;
      const int64_t part = item % parts_, begin = item / parts_ * block_, end = std::min(begin + block_, windows_);
      V* sums = &partial_[part * windows_ * size()];
      clear(sums + begin * size(), (end - begin) * size());
      const Chunks groups{children_.count() * part / parts_, children_.count() * (part + 1) / parts_};
      body(omp_get_thread_num(), groups, begin, end, sums);
    }
  }

  // body(thread, n) for all windows.
  template <class Body>
  void for_each_window(Body body) {
#pragma omp parallel for schedule(static) num_threads(threads_) if (threads_ > 1 && windows_ > 1)
    for (int64_t n = 0; n < windows_; ++n) body(omp_get_thread_num(), n);
  }

  // The sum over the parts of a window's children, in their order.
  V* total(int64_t n) {
    V* sum = &partial_[n * size()];
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t z = 0; z < size(); ++z) sum[z] += partial_[(part * windows_ + n) * size() + z];
    return sum;
  }

  // g of every iteration of a window but the first, from the sums that forward kept.
  void recall(int thread, int64_t n, const float* sums, Terms<L>& terms) {
    V* s = &rows_[thread * size()];
    for (int t = 1; t < options_.iterations; ++t) {
      pad(sums + sum_at(n, t - 1), parent_rows(), s);
      squash(s, terms.g(n, t));
      for (int64_t z = 0; t > 1 && z < size(); ++z) terms.g(n, t)[z] += terms.g(n, t - 1)[z];
    }
  }

  // Gradient of the last iteration's s, from those of the outputs v and ‖v‖.
  void last_gradient(int thread, int64_t n, const float* sums, const float* grad_poses,
                     const float* grad_activations, V* out) {
    V* s = &rows_[thread * size()];
    pad(sums + sum_at(n, last()), parent_rows(), s);
    squash(s, out);
    for (int64_t j = 0; j < conv_.c_out; ++j) {
      V* v = out + j * pose_vectors();
      const float scale = grad_activations[n * conv_.c_out + j] / length(v);
      float* row = reinterpret_cast<float*>(v);
      for (int64_t r = 0; r < conv_.r; ++r)
        for (int64_t e = 0; e < conv_.e; ++e) {
          const float grad = grad_poses[((n * conv_.c_out + j) * conv_.r + r) * conv_.e + e];
          row[r * padded_ + e] = row[r * padded_ + e] * scale + grad;
        }
    }
    squash_gradient(s, out);
  }

  float product(const V* a, const V* b) const {
    V sum{};
    for (int64_t z = 0; z < pose_vectors(); ++z) sum += a[z] * b[z];
    float all = 0;
    for (int l = 0; l < L; ++l) all += sum[l];
    return all;
  }
  float length(const V* v) const { return std::sqrt(product(v, v) + EPSILON); }

  // Poses s [c_out d] to v: Equation 1.
  void squash(const V* s, V* v) const {
    for (int64_t j = 0; j < conv_.c_out; ++j, s += pose_vectors(), v += pose_vectors()) {
      const float squared = product(s, s), scale = squared / (1 + squared) / std::sqrt(squared + EPSILON);
      for (int64_t z = 0; z < pose_vectors(); ++z) v[z] = s[z] * scale;
    }
  }

  // The gradient of v to that of s, in place: v = s f(‖s‖²), so f dv + 2 f' (s·dv) s.
  void squash_gradient(const V* s, V* gradient) const {
    for (int64_t j = 0; j < conv_.c_out; ++j, s += pose_vectors(), gradient += pose_vectors()) {
      const float squared = product(s, s), inverse = 1 / (1 + squared), root = std::sqrt(squared + EPSILON);
      const float scale = squared * inverse / root;
      const float slope = inverse * inverse / root - 0.5f * scale / (squared + EPSILON);
      const float along = 2 * slope * product(s, gradient);
      for (int64_t z = 0; z < pose_vectors(); ++z) gradient[z] = scale * gradient[z] + along * s[z];
    }
  }

  // With all iterations' gradients known, a group of children gets those of its poses and its weight from all windows.
  void input_gradients(const Terms<L>& terms, DynamicGradients gradients) {
    const bool dense = conv_.sites() == 1 && conv_.children() == conv_.positions() * conv_.c_in;
    Scratch<float> of_windows(dense ? 0 : windows_ * conv_.children() * conv_.p());
    Scratch<float> padded(in_place() ? 0 : weight_rows() * padded_);
    float* grad_poses = dense ? gradients.poses : of_windows.get();
    float* grad_weight = in_place() ? gradients.weight : padded.get();
    if (windows_ == 0) std::memset(grad_weight, 0, weight_rows() * padded_ * sizeof(float));
#pragma omp parallel for schedule(dynamic) num_threads(threads_) if (threads_ > 1)
    for (int64_t group = 0; group < children_.count(); ++group) {
      [[maybe_unused]] const FlushDenormals flush;
      children_.finish(omp_get_thread_num(), group, terms, grad_weight, grad_poses);
    }
    if (!in_place()) unpad(grad_weight, weight_rows(), gradients.weight);
    if (!dense) gather_children(of_windows.get(), gradients.poses);
  }

  // Gradients at each window's children to those of the grid.
  void gather_children(const float* of_windows, float* grad_poses) {
    const int64_t width = conv_.c_in * conv_.p(), area = conv_.positions();
#pragma omp parallel for num_threads(threads_) if (threads_ > 1)
    for (int64_t position = 0; position < conv_.batch * area; ++position) {
      float* into = grad_poses + position * width;
      std::memset(into, 0, width * sizeof(float));
      visit_windows(conv_, position / area, position % area / conv_.width, position % conv_.width,
                    [&](int64_t n, int64_t k) {
                      const float* child = of_windows + (n * conv_.children() + k * conv_.c_in) * conv_.p();
                      for (int64_t mp = 0; mp < width; ++mp) into[mp] += child[mp];
                    });
    }
  }

  void bias_gradient(const Terms<L>& terms, float* grad_bias) {
    Scratch<V> sum(size());
    clear(sum.get(), size());
    for (int64_t n = 0; n < windows_; ++n)
      for (int t = 0; t < options_.iterations; ++t)
        for (int64_t z = 0; z < size(); ++z) sum[z] += terms.sum_gradient(n, t)[z];
    unpad(sum.get(), parent_rows(), grad_bias);
  }

  const Conv& conv_;
  const DynamicOptions& options_;
  int threads_;
  int64_t windows_, padded_;  // padded: floats of a row of whole vectors
  Scratch<float> weight_, offset_;
  Children children_;
  int64_t blocks_, block_, parts_;  // blocks of windows, all but the last of one size; parts of a window's children
  Scratch<V> partial_, rows_, bias_;
};

// Call with<L, Children>() with the pose's factors as constants where a network of the papers has them.
template <int L, template <int, class> class Run, class... Arguments>
void with_children(const Conv& conv, Arguments&&... arguments) {
  const bool vectors_of_8 = conv.r == 1 && conv.q == 8;
  if (conv.tied) {
    if (vectors_of_8 && conv.e == 96) return Run<L, TiedChildren<L, 8, 96 / L>>::run(conv, arguments...);
    return Run<L, TiedChildren<L, 0, 0>>::run(conv, arguments...);
  }
  if constexpr (L == 8 && CAPSELLA_LANES == 16) {
    if (vectors_of_8 && conv.e == 8) return Run<L, OctetChildren>::run(conv, arguments...);
  }
  if (vectors_of_8 && conv.e == L) return Run<L, UntiedChildren<L, 8, 1>>::run(conv, arguments...);
  if (vectors_of_8 && conv.e == 2 * L) return Run<L, UntiedChildren<L, 8, 2>>::run(conv, arguments...);
  Run<L, UntiedChildren<L, 0, 0>>::run(conv, arguments...);
}

// With the widest vectors that a row of a pose fills.
template <template <int, class> class Run, class... Arguments>
void with_lanes(const Conv& conv, Arguments&&... arguments) {
  if (CAPSELLA_LANES > 4 && conv.e <= 4) return with_children<4, Run>(conv, arguments...);
  if constexpr (CAPSELLA_LANES > 8) {
    if (conv.e <= 8) return with_children<8, Run>(conv, arguments...);
  }
  with_children<CAPSELLA_LANES, Run>(conv, arguments...);
}

template <int L, class Children>
struct Forward {
  static void run(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, float* sums,
                  float* poses, float* activations, int threads) {
    Dynamic<L, Children>(conv, options, inputs, threads).forward(sums, poses, activations);
  }
};

template <int L, class Children>
struct Backward {
  static void run(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, const float* sums,
                  const float* grad_poses, const float* grad_activations, DynamicGradients gradients, int threads) {
    Dynamic<L, Children>(conv, options, inputs, threads).backward(sums, grad_poses, grad_activations, gradients);
  }
};

void dynamic_forward(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, float* sums,
                     float* poses, float* activations, int threads) {
  with_lanes<Forward>(conv, options, inputs, sums, poses, activations, threads);
}

void dynamic_backward(const Conv& conv, const DynamicOptions& options, const DynamicInputs& inputs, const float* sums,
                      const float* grad_poses, const float* grad_activations, DynamicGradients gradients, int threads) {
  with_lanes<Backward>(conv, options, inputs, sums, grad_poses, grad_activations, gradients, threads);
}

}  // namespace capsella::CAPSELLA_ISA
