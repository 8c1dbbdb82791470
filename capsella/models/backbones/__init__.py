"""Pretrained backbones: the part of a trained network that computes feature maps, used by another network."""

from capsella.models.backbones import heads  # registers the networks
from capsella.models.backbones.backbone import Backbone, BackboneDescription, find_backbone
