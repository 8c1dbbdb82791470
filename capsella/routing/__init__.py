"""Routing algorithms: pure functions without parameters, and the options by which a layer names one."""

from capsella.routing.base import (
    ROUTINGS,
    LogisticRouting,
    Routed,
    RoutedLogits,
    Routing,
    register_routing,
    routing_from_dict,
)
from capsella.routing.cluster import Clustered, cluster_routing
from capsella.routing.convolution import Geometry, RoutingInputs, RoutingShape, capsule_votes
from capsella.routing.dynamic import DynamicRouting, dynamic_routing
from capsella.routing.em import EMRouting, em_routing
from capsella.routing.fixed import RandomRouting, UniformRouting, random_routing, uniform_routing
from capsella.routing.functional import length, squash, squash_exponential
from capsella.routing.heinsen import HeinsenRouting, heinsen_routing
from capsella.routing.inverted_attention import InvertedAttentionRouting, attend, inverted_attention_routing
from capsella.routing.recording import RoutingTrace, coupling_entropy, is_recording, record
from capsella.routing.self_attention import SelfAttentionRouting, self_attention_routing
from capsella.routing.self_routing import SelfRouting, self_routing
from capsella.routing.variational import VariationalRouting, variational_routing
