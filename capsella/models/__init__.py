"""Registered networks: each a function whose body is its hyper-parameters.

A trained one brings along `confidence`, its calibrated probabilities, and `novelty`: which images are like those it was
trained on. `stems` takes over the first part of a trained network.
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
from capsella.models.confidence.fitted import Confidence, images_needed
from capsella.models.confidence.temperature import fit_confidence
from capsella.models.multi_crop import MultiCrop
from capsella.models.novelty.fit import fit_novelty
from capsella.models.novelty.fitted import Novelty
