"""Maps for images that draw random numbers: they come after a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshmend.errors import JobError


def random_crop(size: int | tuple[int, int], *, mirror: bool = False) -> Callable[[Any, np.random.Generator], Any]:
    """A map that cuts out a part of this size, elsewhere each time, of the first part of a sample.

    `mirror` turns it around half of the time.
    """
    height, width = (size, size) if isinstance(size, int) else size

    def crop(sample: Any, rng: np.random.Generator) -> Any:
        image, *rest = sample
        if image.shape[0] < height or image.shape[1] < width:
            raise JobError(
                f"random_crop({height}, {width}) got an image of {image.shape[0]} x {image.shape[1]}; decode images to "
                "at least that size"
            )
        y, x = int(rng.integers(image.shape[0] - height + 1)), int(rng.integers(image.shape[1] - width + 1))
        part = image[y : y + height, x : x + width]
        return (part[:, ::-1] if mirror and rng.random() < 0.5 else part, *rest)

    return crop
