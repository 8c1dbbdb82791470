"""Registered networks: each a function whose body is its hyper-parameters.

A trained one has `calibration` and `ood_detector`: see `capsella.uncertainty`.
"""

from capsella.models import (
    attention_capsnet,
    capsnet,
    cluster_capsnet,
    cnn,
    efficient_capsnet,
    forslov2018,
    heinsen_capsnet,
    league,
    matrix_capsnet,
    resnet,
    self_routing_capsnet,
    self_routing_cnn,
    stem_capsnet,
    stems,
    variational_capsnet,
)  # which registers them
from capsella.models.base import (
    ImageClassifier,
    count_parameters,
    create_model,
    list_models,
    model_function,
    register_model,
)
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.models.multi_crop import MultiCrop
