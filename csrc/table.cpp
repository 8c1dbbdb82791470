// The kernels of one instruction set, under the name CAPSELLA_ISA.
#include "kernels.h"

#define CAPSELLA_TEXT(name) #name
#define CAPSELLA_NAME(name) CAPSELLA_TEXT(name)

namespace capsella::CAPSELLA_ISA {

MixtureForward<EMOptions> em_forward;
MixtureBackward<EMOptions> em_backward;
MixtureForward<VariationalOptions> variational_forward;
MixtureBackward<VariationalOptions> variational_backward;
MixtureForward<HeinsenOptions> heinsen_forward;
MixtureBackward<HeinsenOptions> heinsen_backward;
DynamicForward dynamic_forward;
DynamicBackward dynamic_backward;
VoteSums vote_sums;
VoteAgreements vote_agreements;
VoteDerivatives vote_gradients;
ClusterForward<float> cluster_forward;
ClusterBackward<float> cluster_backward;
ClusterForward<BFloat16> cluster_forward_bfloat16;
ClusterBackward<BFloat16> cluster_backward_bfloat16;
WinogradForward winograd_forward;
WinogradWeights winograd_weights;

const Kernels kernels = {CAPSELLA_NAME(CAPSELLA_ISA), em_forward,       em_backward,
                         variational_forward,         variational_backward,
                         heinsen_forward,             heinsen_backward,
                         dynamic_forward,             dynamic_backward,
                         vote_sums,                   vote_agreements,
                         vote_gradients,              cluster_forward,
                         cluster_backward,            cluster_forward_bfloat16,
                         cluster_backward_bfloat16,   winograd_forward,
                         winograd_weights};

}  // namespace capsella::CAPSELLA_ISA
