"""Pictures in folders, one folder per class, decoded by Pillow: the layout of torchvision's `ImageFolder`.

train/cat/1.jpg  train/cat/2.jpg  train/dog/7.png     (image, label): uint8 [height, width, 3], and 0 for cat
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError, MissingLibrary
from meshmend.job.data.source import Source

Bytes = npt.NDArray[np.uint8]
ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff"}


class Images(Source):
    """The files of all classes in the order of their names, the same on every worker."""

    def __init__(self, folder: str | Path, decode: Callable[[Bytes], Bytes] | None) -> None:
        self._folder, self._decode = Path(folder), decode
        if not self._folder.is_dir():
            raise JobError(
                f"mm.data.images got {str(folder)!r}, which is not a folder; give one that has a subfolder per class"
            )
        self.classes = sorted(path.name for path in self._folder.iterdir() if path.is_dir())
        """The names of the classes; a label is a place in this list."""
        self._files = [
            (str(path.relative_to(self._folder)), label)
            for label, name in enumerate(self.classes)
            for path in sorted((self._folder / name).rglob("*"))
            if path.suffix.lower() in ENDINGS
        ]
        if not self._files:
            raise JobError(f"{str(folder)!r} holds no images; expected files such as {folder}/CLASS/NAME.jpg")

    def __len__(self) -> int:
        return len(self._files)

    @property
    def identity(self) -> str:
        """All names: the same on every worker."""
        return f"images {self._files} {self._decode.__qualname__ if self._decode else ''}"

    def name(self, number: int) -> str:
        """Its file."""
        return f"{self._folder / self._files[number][0]} (sample {number})"

    def read(self, number: int) -> Any:
        """The image, or the bytes of its file, and the label."""
        path, label = self._files[number]
        data = np.frombuffer((self._folder / path).read_bytes(), np.uint8)
        return (data if self._decode is None else self._decode(data)), np.int64(label)


def decoder(size: int | tuple[int, int] | None, mode: str) -> Callable[[Bytes], Bytes]:
    """A function from the bytes of a file to an array; `size` scales the shorter side and cuts out the middle."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ModuleNotFoundError:
        raise MissingLibrary("images need Pillow, which is not installed; run pip install 'meshmend[data]'") from None
    wanted = (size, size) if isinstance(size, int) else size

    def decode(data: Bytes) -> Bytes:
        try:
            opened = Image.open(io.BytesIO(data.data))
        except UnidentifiedImageError:
            raise ValueError("no image of a known format") from None  # Pillow's own names an object in memory
        with opened as image:
            picture = image.convert(mode)
            if wanted is not None and (picture.height, picture.width) != wanted:
                picture = ImageOps.fit(picture, (wanted[1], wanted[0]), Image.Resampling.BILINEAR)
            return np.asarray(picture)

    decode.__qualname__ = f"decode({wanted}, {mode})"  # tells caches of different sizes apart
    return decode
