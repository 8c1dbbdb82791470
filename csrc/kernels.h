// What the kernels take and return, and one table of them for each instruction set.
#pragma once

#include <cstdint>

namespace capsella {

// The `RoutingShape` of capsella/routing/convolution.py; letters as in capsella/routing/README.md.
// A child's pose [r q] times its weight W [q e] is its vote [r e]; r = 1 for vector poses.
struct Conv {
  int64_t batch, height, width, c_in;
  int64_t rows, columns, c_out;
  int64_t kernel_height, kernel_width, stride_height, stride_width;
  int64_t r, q, e;
  bool tied;

  int64_t positions() const { return height * width; }            // of children in an image
  int64_t sites() const { return rows * columns; }                // of parents, and so of windows, in an image
  int64_t windows() const { return batch * sites(); }             // of all images
  int64_t slots() const { return kernel_height * kernel_width; }  // of a window
  int64_t children() const { return slots() * c_in; }             // of a window
  int64_t grid_children() const { return batch * positions() * c_in; }
  int64_t parents() const { return windows() * c_out; }
  int64_t weights() const { return tied ? c_in : children(); }  // of one parent
  int64_t p() const { return r * q; }
  int64_t d() const { return r * e; }
  int64_t padded() const { return (c_out + 15) / 16 * 16; }  // parents in the tensors that forward keeps for backward
};

struct EMOptions {
  int iterations;
  const float* inverse_temperatures;  // [t]
  const float* sharpness;             // [t], tau of the E-step after each iteration
  float variance_floor;
  float cost_scale;  // 0: none
  bool standardise;
  bool compete_everywhere;
  bool bfloat16_votes;  // poses and weight are bfloat16 numbers, and are multiplied as such
};

struct VariationalOptions {
  int iterations;
  bool proportions;
  float concentration, mean_weight, precision, degrees;
};

struct HeinsenOptions {
  int iterations;
  float epsilon;
  bool shared;  // one row of each parameter, and of the bias, for all children
};

// Of all routings that fit a mixture of Gaussians. poses [b h w c_in p], activations [b h w c_in], weight
// [(k) c_in c_out q e]; parameters [k c_out], what a routing learns beside (see its formulas); vote_offset [h w d] or
// null; bias of the votes [i c_out d] or null, i = 1 where it is shared; start [i c_out] (couplings of the first iteration over the types at one
// site) or null for even ones.
struct MixtureInputs {
  const float *poses, *activations, *weight, *parameters, *vote_offset, *bias, *start;
};

// means, variances of the votes [n t d padded]; log_odds, data, log_total [n t padded]; log_normalisers
// [t - 1, b h w c_in], only where parents compete everywhere. A parent's data is sum_i R_ij a_i; log_total is the
// logarithm of the same with each a_i at least LEAST_ACTIVATION, by which children's shares are divided.
struct MixtureKept {
  float *means, *variances, *log_odds, *data, *log_total, *log_normalisers;
};

struct MixtureGradients {
  float *poses, *activations, *weight, *parameters, *bias;  // bias null where the votes have none
};

template <class Options>
using MixtureForward = void(const Conv&, const Options&, const MixtureInputs&, MixtureKept, float* poses,
                            float* log_odds, int threads);
template <class Options>
using MixtureBackward = void(const Conv&, const Options&, const MixtureInputs&, MixtureKept, const float* grad_poses,
                             const float* grad_log_odds, MixtureGradients, int threads);

struct DynamicOptions {
  int iterations;
  bool leaky;
};

// poses [b h w c_in p], weight [(k) c_in c_out q e], vote_offset [h w d] or null, bias [c_out d] or null. Tied
// weights take no vote_offset.
struct DynamicInputs {
  const float *poses, *weight, *vote_offset, *bias;
};

// bias is null where the votes have none.
struct DynamicGradients {
  float *poses, *weight, *bias;
};

// sums [n t c_out d]: s of every iteration, bias included, which forward keeps for backward.
using DynamicForward = void(const Conv&, const DynamicOptions&, const DynamicInputs&, float* sums, float* poses,
                            float* activations, int threads);
using DynamicBackward = void(const Conv&, const DynamicOptions&, const DynamicInputs&, const float* sums,
                             const float* grad_poses, const float* grad_activations, DynamicGradients, int threads);

// poses [b h w c_in p], weight [(k) c_in c_out q e], vote_offset [h w d] or null: what makes votes V_ij.
struct VoteInputs {
  const float *poses, *weight, *vote_offset;
};

struct VoteGradients {
  float *poses, *weight;
};

// Of every window n. weights [n i c_out], sums [n c_out d] = sum_i weights_ij V_ij.
using VoteSums = void(const Conv&, const VoteInputs&, const float* weights, float* sums, int threads);
// poses [n c_out d] of parents, agreements [n i c_out] = V_ij · poses_j.
using VoteAgreements = void(const Conv&, const VoteInputs&, const float* poses, float* agreements, int threads);
// Of sum_nij weights_ij V_ij · poses_j.
using VoteDerivatives = void(const Conv&, const VoteInputs&, const float* weights, const float* poses, VoteGradients,
                             int threads);

// A bfloat16 number: the upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

// votes [batch children votes elements] of all pose elements of all parents; poses [batch elements], weights
// [batch children elements].
struct Clusters {
  int64_t batch, children, votes, elements;
};

template <class T>
using ClusterForward = void(const Clusters&, const T* votes, float* poses, float* weights, int threads);
template <class T>
using ClusterBackward = void(const Clusters&, const T* votes, const float* grad_poses, const float* grad_weights,
                             T* grad_votes, int threads);

// Maps that are stored channels last, [b height width channels], and those of a 3x3 convolution with stride 1 of them,
// [b rows columns out_channels]. Channels are multiples of 16.
struct Maps {
  int64_t batch, height, width, channels, rows, columns, out_channels, padding;
};

using WinogradForward = void(const Maps&, const float* maps, const float* spectrum, const float* bias, float* out,
                             int threads);
using WinogradWeights = void(const Maps&, const float* maps, const float* slopes, float* grad_spectrum, int threads);

struct Kernels {
  const char* name;
  MixtureForward<EMOptions>* em_forward;
  MixtureBackward<EMOptions>* em_backward;
  MixtureForward<VariationalOptions>* variational_forward;
  MixtureBackward<VariationalOptions>* variational_backward;
  MixtureForward<HeinsenOptions>* heinsen_forward;
  MixtureBackward<HeinsenOptions>* heinsen_backward;
  DynamicForward* dynamic_forward;
  DynamicBackward* dynamic_backward;
  VoteSums* vote_sums;
  VoteAgreements* vote_agreements;
  VoteDerivatives* vote_gradients;
  ClusterForward<float>* cluster_forward;
  ClusterBackward<float>* cluster_backward;
  ClusterForward<BFloat16>* cluster_forward_bfloat16;
  ClusterBackward<BFloat16>* cluster_backward_bfloat16;
  WinogradForward* winograd_forward;
  WinogradWeights* winograd_weights;
};

namespace baseline { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
namespace avx512bf16 { extern const Kernels kernels; }

}  // namespace capsella
