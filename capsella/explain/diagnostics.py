"""The routing diagnostics of a trained model over a set of images."""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.routing import LayerDiagnostics, RoutingTrace, diagnose, record


def routing_diagnostics(
    model: ImageClassifier, images: Float[Tensor, "n c h w"], batch_size: int = 16
) -> list[LayerDiagnostics]:
    """Coupling entropy and dead capsules of every routed layer with at least two parents, over `images`.

    Returns:
        One entry a routed layer, in the order of the forward pass; none for a model without routing.

    Raises:
        ValueError: no images, or images of another shape than the model's.
    """
    model.check_images(images)
    if len(images) == 0:
        raise ValueError("images: must hold at least one image, got none")

    def recorded() -> Iterator[list[RoutingTrace]]:
        with inference(model) as device:
            for batch in images.split(batch_size):
                with record() as traces:
                    model(batch.to(device))
                yield traces

    return diagnose(recorded())
