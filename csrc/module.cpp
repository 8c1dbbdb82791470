// The Python module capsella._native.kernels: arrays in, arrays filled. Shapes are the caller's duty
// (capsella/routing/convolution.py); sizes are checked here, because a wrong one would corrupt memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;
using namespace capsella;
using namespace nanobind::literals;

namespace {

using Input = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

const Kernels* const ALL[] = {
#ifdef CAPSELLA_HAS_avx512bf16
    &avx512bf16::kernels,
#endif
#ifdef CAPSELLA_HAS_avx512
    &avx512::kernels,
#endif
#ifdef CAPSELLA_HAS_avx2
    &avx2::kernels,
#endif
#ifdef CAPSELLA_HAS_baseline
    &baseline::kernels,
#endif
};

bool runs_here(const std::string& name) {
#if defined(__x86_64__)
#ifdef CAPSELLA_HAS_avx512bf16  // an older compiler does not know the name
  if (name == "avx512bf16") return __builtin_cpu_supports("avx512bf16") && runs_here("avx512");
#endif
  if (name == "avx512") return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (name == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return name == "baseline";
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* kernels : ALL)
    if (runs_here(kernels->name)) names.emplace_back(kernels->name);
  return names;
}

const Kernels* chosen = nullptr;

void use(const std::string& name) {
  for (const Kernels* kernels : ALL)
    if (kernels->name == name && runs_here(name)) {
      chosen = kernels;
      return;
    }
  throw std::invalid_argument("instruction set: must be one of instruction_sets(), got '" + name + "'");
}

template <class Array>
auto* checked(const char* name, const Array& array, int64_t size) {
  if (int64_t(array.size()) != size)
    throw std::invalid_argument(std::string(name) + ": must have " + std::to_string(size) + " elements, got " +
                                std::to_string(array.size()));
  return array.data();
}

template <class Array>
auto checked(const char* name, const std::optional<Array>& array, int64_t size) -> decltype(array->data()) {
  return array ? checked(name, *array, size) : nullptr;
}

// The arrays of the structs in kernels.h, as Python holds them; `of` checks their sizes.
struct MixtureInputArrays {
  Input poses, activations, weight, parameters;
  std::optional<Input> vote_offset, bias, start;

  MixtureInputs of(const Conv& conv, int64_t rows, int64_t of_bias) const {
    return {checked("poses", poses, conv.grid_children() * conv.p()),
            checked("activations", activations, conv.grid_children()),
            checked("weight", weight, conv.weights() * conv.c_out * conv.q * conv.e),
            checked("parameters", parameters, rows * conv.c_out),
            checked("vote_offset", vote_offset, conv.positions() * conv.d()),
            checked("bias", bias, of_bias * conv.c_out * conv.d()),
            checked("start", start, conv.children() * conv.c_out)};
  }
};

struct MixtureKeptArrays {
  Output means, variances, log_odds, data, log_total, log_normalisers;

  MixtureKept of(const Conv& conv, int iterations, bool normalised) const {
    const int64_t parents = conv.windows() * iterations * conv.padded();
    return {checked("means", means, parents * conv.d()), checked("variances", variances, parents * conv.d()),
            checked("log_odds", log_odds, parents), checked("data", data, parents),
            checked("log_total", log_total, parents),
            checked("log_normalisers", log_normalisers, normalised ? (iterations - 1) * conv.grid_children() : 0)};
  }
};

struct MixtureGradientArrays {
  Output poses, activations, weight, parameters;
  std::optional<Output> bias;

  MixtureGradients of(const Conv& conv, int64_t rows, int64_t of_bias) const {
    return {checked("gradient of poses", poses, conv.grid_children() * conv.p()),
            checked("gradient of activations", activations, conv.grid_children()),
            checked("gradient of weight", weight, conv.weights() * conv.c_out * conv.q * conv.e),
            checked("gradient of parameters", parameters, rows * conv.c_out),
            checked("gradient of bias", bias, of_bias * conv.c_out * conv.d())};
  }
};

// How many rows of parameters and of a bias each routing has, and whether parents of all sites compete.
struct EMOptionValues {
  std::vector<float> inverse_temperatures, sharpness;
  float variance_floor, cost_scale;
  bool standardise, compete_everywhere, bfloat16_votes;

  EMOptions value() const {
    if (sharpness.size() != inverse_temperatures.size())
      throw std::invalid_argument("sharpness: must be as many as inverse_temperatures");
    return {int(inverse_temperatures.size()), inverse_temperatures.data(), sharpness.data(), variance_floor,
            cost_scale, standardise, compete_everywhere, bfloat16_votes};
  }
  static int64_t rows(const Conv&) { return 2; }
  static int64_t of_bias(const Conv&) { return 0; }
  bool normalised(const Conv& conv) const { return compete_everywhere && conv.sites() > 1; }
};

struct VariationalOptionValues : VariationalOptions {
  VariationalOptions value() const { return *this; }
  static int64_t rows(const Conv&) { return 1; }
  static int64_t of_bias(const Conv&) { return 0; }
  static bool normalised(const Conv&) { return false; }
};

struct HeinsenOptionValues : HeinsenOptions {
  HeinsenOptions value() const { return *this; }
  int64_t of_bias(const Conv& conv) const { return shared ? 1 : conv.children(); }
  int64_t rows(const Conv& conv) const { return 2 * of_bias(conv); }
  static bool normalised(const Conv&) { return false; }
};

struct DynamicInputArrays {
  Input poses, weight;
  std::optional<Input> vote_offset, bias;

  DynamicInputs of(const Conv& conv) const {
    if (conv.tied && vote_offset) throw std::invalid_argument("vote_offset: must be None for tied weights");
    return {checked("poses", poses, conv.grid_children() * conv.p()),
            checked("weight", weight, conv.weights() * conv.c_out * conv.q * conv.e),
            checked("vote_offset", vote_offset, conv.positions() * conv.d()),
            checked("bias", bias, conv.c_out * conv.d())};
  }
};

struct DynamicGradientArrays {
  Output poses, weight;
  std::optional<Output> bias;

  DynamicGradients of(const Conv& conv) const {
    return {checked("gradient of poses", poses, conv.grid_children() * conv.p()),
            checked("gradient of weight", weight, conv.weights() * conv.c_out * conv.q * conv.e),
            checked("gradient of bias", bias, conv.c_out * conv.d())};
  }
};

struct VoteInputArrays {
  Input poses, weight;
  std::optional<Input> vote_offset;

  VoteInputs of(const Conv& conv) const {
    return {checked("poses", poses, conv.grid_children() * conv.p()),
            checked("weight", weight, conv.weights() * conv.c_out * conv.q * conv.e),
            checked("vote_offset", vote_offset, conv.positions() * conv.d())};
  }
};

// A Python class whose keyword arguments are the members of an aggregate, in its order.
template <class Struct, class... Members, class... Names>
void bind_struct(nb::module_& m, const char* name, Names... names) {
  nb::class_<Struct>(m, name).def(
      "__init__", [](Struct* self, Members... members) { new (self) Struct{std::move(members)...}; }, nb::kw_only(),
      names...);
}

// NAME_forward and NAME_backward, which `forward` and `backward` find among the kernels in use.
template <class OptionValues, class Options>
void bind_mixture(nb::module_& m, const std::string& name, MixtureForward<Options>* Kernels::*forward,
                  MixtureBackward<Options>* Kernels::*backward) {
  m.def((name + "_forward").c_str(),
        [forward](const Conv& conv, const OptionValues& options, const MixtureInputArrays& inputs,
                  const MixtureKeptArrays& kept, Output poses, Output log_odds, int threads) {
          const Options values = options.value();
          const MixtureInputs in = inputs.of(conv, options.rows(conv), options.of_bias(conv));
          const MixtureKept keep = kept.of(conv, values.iterations, options.normalised(conv));
          float* out_poses = checked("poses", poses, conv.parents() * conv.d());
          float* out_log_odds = checked("log_odds", log_odds, conv.parents());
          nb::gil_scoped_release release;
          (chosen->*forward)(conv, values, in, keep, out_poses, out_log_odds, threads);
        },
        "conv"_a, "options"_a, "inputs"_a, "kept"_a, "poses"_a, "log_odds"_a, "threads"_a);
  m.def((name + "_backward").c_str(),
        [backward](const Conv& conv, const OptionValues& options, const MixtureInputArrays& inputs,
                   const MixtureKeptArrays& kept, Input grad_poses, Input grad_log_odds,
                   const MixtureGradientArrays& gradients, int threads) {
          const Options values = options.value();
          const MixtureInputs in = inputs.of(conv, options.rows(conv), options.of_bias(conv));
          const MixtureKept keep = kept.of(conv, values.iterations, options.normalised(conv));
          const MixtureGradients out = gradients.of(conv, options.rows(conv), options.of_bias(conv));
          if (in.bias && !out.bias) throw std::invalid_argument("gradient of bias: must be there, as a bias is");
          const float* of_poses = checked("grad_poses", grad_poses, conv.parents() * conv.d());
          const float* of_log_odds = checked("grad_log_odds", grad_log_odds, conv.parents());
          nb::gil_scoped_release release;
          (chosen->*backward)(conv, values, in, keep, of_poses, of_log_odds, out, threads);
        },
        "conv"_a, "options"_a, "inputs"_a, "kept"_a, "grad_poses"_a, "grad_log_odds"_a, "gradients"_a, "threads"_a);
}

void bind_mixtures(nb::module_& m) {
  using Array = std::optional<Input>;
  bind_struct<MixtureInputArrays, Input, Input, Input, Input, Array, Array, Array>(
      m, "MixtureInputs", "poses"_a, "activations"_a, "weight"_a, "parameters"_a, "vote_offset"_a.none(),
      "bias"_a.none(), "start"_a.none());
  bind_struct<MixtureKeptArrays, Output, Output, Output, Output, Output, Output>(
      m, "MixtureKept", "means"_a, "variances"_a, "log_odds"_a, "data"_a, "log_total"_a, "log_normalisers"_a);
  bind_struct<MixtureGradientArrays, Output, Output, Output, Output, std::optional<Output>>(
      m, "MixtureGradients", "poses"_a, "activations"_a, "weight"_a, "parameters"_a, "bias"_a.none() = nb::none());
  bind_struct<EMOptionValues, std::vector<float>, std::vector<float>, float, float, bool, bool, bool>(
      m, "EMOptions", "inverse_temperatures"_a, "sharpness"_a, "variance_floor"_a, "cost_scale"_a,
      "standardise"_a, "compete_everywhere"_a, "bfloat16_votes"_a);
  bind_struct<VariationalOptionValues, int, bool, float, float, float, float>(
      m, "VariationalOptions", "iterations"_a, "proportions"_a, "concentration"_a, "mean_weight"_a, "precision"_a,
      "degrees"_a);
  bind_struct<HeinsenOptionValues, int, float, bool>(m, "HeinsenOptions", "iterations"_a, "epsilon"_a, "shared"_a);
  bind_mixture<EMOptionValues>(m, "em", &Kernels::em_forward, &Kernels::em_backward);
  bind_mixture<VariationalOptionValues>(m, "variational", &Kernels::variational_forward,
                                        &Kernels::variational_backward);
  bind_mixture<HeinsenOptionValues>(m, "heinsen", &Kernels::heinsen_forward, &Kernels::heinsen_backward);
}

void bind_dynamic(nb::module_& m) {
  using Array = std::optional<Input>;
  bind_struct<DynamicInputArrays, Input, Input, Array, Array>(m, "DynamicInputs", "poses"_a, "weight"_a,
                                                              "vote_offset"_a.none(), "bias"_a.none());
  bind_struct<DynamicGradientArrays, Output, Output, std::optional<Output>>(m, "DynamicGradients", "poses"_a,
                                                                            "weight"_a, "bias"_a.none() = nb::none());
  bind_struct<DynamicOptions, int, bool>(m, "DynamicOptions", "iterations"_a, "leaky"_a);
  m.def("dynamic_forward",
        [](const Conv& conv, const DynamicOptions& options, const DynamicInputArrays& inputs, Output sums, Output poses,
           Output activations, int threads) {
          const DynamicInputs in = inputs.of(conv);
          float* keep = checked("sums", sums, conv.parents() * options.iterations * conv.d());
          float* out_poses = checked("poses", poses, conv.parents() * conv.d());
          float* out_activations = checked("activations", activations, conv.parents());
          nb::gil_scoped_release release;
          chosen->dynamic_forward(conv, options, in, keep, out_poses, out_activations, threads);
        },
        "conv"_a, "options"_a, "inputs"_a, "sums"_a, "poses"_a, "activations"_a, "threads"_a);
  m.def("dynamic_backward",
        [](const Conv& conv, const DynamicOptions& options, const DynamicInputArrays& inputs, Input sums,
           Input grad_poses, Input grad_activations, const DynamicGradientArrays& gradients, int threads) {
          const DynamicInputs in = inputs.of(conv);
          const DynamicGradients out = gradients.of(conv);
          const float* kept = checked("sums", sums, conv.parents() * options.iterations * conv.d());
          const float* of_poses = checked("grad_poses", grad_poses, conv.parents() * conv.d());
          const float* of_activations = checked("grad_activations", grad_activations, conv.parents());
          nb::gil_scoped_release release;
          chosen->dynamic_backward(conv, options, in, kept, of_poses, of_activations, out, threads);
        },
        "conv"_a, "options"_a, "inputs"_a, "sums"_a, "grad_poses"_a, "grad_activations"_a, "gradients"_a, "threads"_a);
}

void bind_votes(nb::module_& m) {
  using Array = std::optional<Input>;
  bind_struct<VoteInputArrays, Input, Input, Array>(m, "VoteInputs", "poses"_a, "weight"_a, "vote_offset"_a.none());
  m.def("vote_sums",
        [](const Conv& conv, const VoteInputArrays& inputs, Input weights, Output sums, int threads) {
          const VoteInputs in = inputs.of(conv);
          const float* given = checked("weights", weights, conv.windows() * conv.children() * conv.c_out);
          float* out = checked("sums", sums, conv.parents() * conv.d());
          nb::gil_scoped_release release;
          chosen->vote_sums(conv, in, given, out, threads);
        },
        "conv"_a, "inputs"_a, "weights"_a, "sums"_a, "threads"_a);
  m.def("vote_agreements",
        [](const Conv& conv, const VoteInputArrays& inputs, Input poses, Output agreements, int threads) {
          const VoteInputs in = inputs.of(conv);
          const float* given = checked("poses", poses, conv.parents() * conv.d());
          float* out = checked("agreements", agreements, conv.windows() * conv.children() * conv.c_out);
          nb::gil_scoped_release release;
          chosen->vote_agreements(conv, in, given, out, threads);
        },
        "conv"_a, "inputs"_a, "poses"_a, "agreements"_a, "threads"_a);
  m.def("vote_gradients",
        [](const Conv& conv, const VoteInputArrays& inputs, Input weights, Input poses, Output grad_poses,
           Output grad_weight, int threads) {
          const VoteInputs in = inputs.of(conv);
          const float* of_votes = checked("weights", weights, conv.windows() * conv.children() * conv.c_out);
          const float* parents = checked("poses", poses, conv.parents() * conv.d());
          const VoteGradients out{
              checked("gradient of poses", grad_poses, conv.grid_children() * conv.p()),
              checked("gradient of weight", grad_weight, conv.weights() * conv.c_out * conv.q * conv.e)};
          nb::gil_scoped_release release;
          chosen->vote_gradients(conv, in, of_votes, parents, out, threads);
        },
        "conv"_a, "inputs"_a, "weights"_a, "poses"_a, "grad_poses"_a, "grad_weight"_a, "threads"_a);
}

// cluster_forward and cluster_backward of votes as floats, or as the bits of bfloat16 numbers.
template <class T, class Number>
void bind_cluster(nb::module_& m, ClusterForward<T>* Kernels::*forward, ClusterBackward<T>* Kernels::*backward) {
  using Votes = nb::ndarray<const Number, nb::c_contig, nb::device::cpu>;
  using GradVotes = nb::ndarray<Number, nb::c_contig, nb::device::cpu>;
  m.def("cluster_forward",
        [forward](const Clusters& of, Votes votes, Output poses, Output weights, int threads) {
          const auto* in = reinterpret_cast<const T*>(
              checked("votes", votes, of.batch * of.children * of.votes * of.elements));
          float* out = checked("poses", poses, of.batch * of.elements);
          float* out_weights = checked("weights", weights, of.batch * of.children * of.elements);
          nb::gil_scoped_release release;
          (chosen->*forward)(of, in, out, out_weights, threads);
        },
        "clusters"_a, "votes"_a, "poses"_a.noconvert(), "weights"_a.noconvert(), "threads"_a);
  m.def("cluster_backward",
        [backward](const Clusters& of, Votes votes, Input grad_poses, Input grad_weights, GradVotes grad_votes,
                   int threads) {
          const int64_t size = of.batch * of.children * of.votes * of.elements;
          const auto* in = reinterpret_cast<const T*>(checked("votes", votes, size));
          const float* of_poses = checked("grad_poses", grad_poses, of.batch * of.elements);
          const float* of_weights = checked("grad_weights", grad_weights, of.batch * of.children * of.elements);
          auto* out = reinterpret_cast<T*>(checked("grad_votes", grad_votes, size));
          nb::gil_scoped_release release;
          (chosen->*backward)(of, in, of_poses, of_weights, out, threads);
        },
        "clusters"_a, "votes"_a.noconvert(), "grad_poses"_a, "grad_weights"_a, "grad_votes"_a.noconvert(), "threads"_a);
}

void bind_winograd(nb::module_& m) {
  using I = int64_t;
  bind_struct<Maps, I, I, I, I, I, I, I, I>(m, "Maps", "batch"_a, "height"_a, "width"_a, "channels"_a, "rows"_a,
                                            "columns"_a, "out_channels"_a, "padding"_a);
  const auto check = [](const Maps& of) {
    const bool fits = of.rows == of.height + 2 * of.padding - 2 && of.columns == of.width + 2 * of.padding - 2;
    if (!fits || std::min({of.rows, of.columns, of.channels, of.out_channels, of.padding + 1}) < 1 ||
        of.channels % 16 != 0 || of.out_channels % 16 != 0)
      throw std::invalid_argument("maps: must be those of a 3x3 convolution, of multiples of 16 channels");
  };
  m.def("winograd_forward",
        [check](const Maps& of, Input maps, Input spectrum, const std::optional<Input>& bias, Output out, int threads) {
          check(of);
          const float* in = checked("maps", maps, of.batch * of.height * of.width * of.channels);
          const float* by = checked("spectrum", spectrum, 36 * of.channels * of.out_channels);
          const float* shift = checked("bias", bias, of.out_channels);
          float* to = checked("out", out, of.batch * of.rows * of.columns * of.out_channels);
          nb::gil_scoped_release release;
          chosen->winograd_forward(of, in, by, shift, to, threads);
        },
        "sizes"_a, "maps"_a, "spectrum"_a, "bias"_a.none(), "out"_a, "threads"_a);
  m.def("winograd_weights",
        [check](const Maps& of, Input maps, Input slopes, Output grad_spectrum, int threads) {
          check(of);
          const float* in = checked("maps", maps, of.batch * of.height * of.width * of.channels);
          const float* given = checked("slopes", slopes, of.batch * of.rows * of.columns * of.out_channels);
          float* to = checked("grad_spectrum", grad_spectrum, 36 * of.channels * of.out_channels);
          nb::gil_scoped_release release;
          chosen->winograd_weights(of, in, given, to, threads);
        },
        "sizes"_a, "maps"_a, "slopes"_a, "grad_spectrum"_a, "threads"_a);
}

}  // namespace

NB_MODULE(kernels, m) {
  const auto sets = instruction_sets();
  if (sets.empty()) throw nb::import_error("this build has no kernels for the instructions of this processor");
  use(sets.front());
  m.def("instruction_sets", &instruction_sets, "Those of this build that this processor runs, best first.");
  m.def("instruction_set", [] { return std::string(chosen->name); }, "The one in use.");
  m.def("use", &use, "name"_a, "Use the kernels of another of `instruction_sets()`.");
  using I = int64_t;
  bind_struct<Conv, I, I, I, I, I, I, I, I, I, I, I, I, I, I, bool>(
      m, "Conv", "batch"_a, "height"_a, "width"_a, "c_in"_a, "rows"_a, "columns"_a, "c_out"_a, "kernel_height"_a,
      "kernel_width"_a, "stride_height"_a, "stride_width"_a, "r"_a, "q"_a, "e"_a, "tied"_a);
  bind_mixtures(m);
  bind_dynamic(m);
  bind_votes(m);
  bind_struct<Clusters, I, I, I, I>(m, "Clusters", "batch"_a, "children"_a, "votes"_a, "elements"_a);
  bind_cluster<float, float>(m, &Kernels::cluster_forward, &Kernels::cluster_backward);
  bind_cluster<BFloat16, int16_t>(m, &Kernels::cluster_forward_bfloat16, &Kernels::cluster_backward_bfloat16);
  bind_winograd(m);
}
