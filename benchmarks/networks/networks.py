"""The networks that the papers trained, in PyTorch, at their published sizes; and small twins of them.

    alexnet     61,100,840   arXiv 1404.5997, one device, no groups         the networks of arXiv 1709.03316
    googlenet   13,378,280   arXiv 1409.4842, with its two auxiliary heads
    resnet50    25,557,032   arXiv 1512.03385, version 1.5 as in MLPerf     the networks of arXiv 2011.03605
    bert       336,226,108   arXiv 1810.04805, BERT-large in pre-training

`tests/test_networks.py` compares every count with the simulator's, which adds them up from shapes. A twin has the same
layers with an eighth or less of the width, and takes images of 64x64 or texts of 32 tokens of 1,000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor
CLASSES, WORDS = 1000, 30522
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64), "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64), "4c": (128, 128, 256, 24, 64, 64), "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128), "5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128),
}  # fmt: skip
"""Channels of the 1x1; before the 3x3 and of it; before the 5x5 and of it; after the pooling."""


@dataclass(frozen=True)
class Size:
    """How large a network is, and what it takes: the published size unless it is said."""

    part: int = 1
    """The widths are divided by this."""
    image: int = 224
    tokens: int = 128
    words: int = WORDS
    blocks: int = 24

    def of(self, channels: int) -> int:
        """A width."""
        return max(channels // self.part, 2)


PUBLISHED = Size()
TWIN = Size(part=16, image=64, tokens=32, words=1000, blocks=2)


class AlexNet(nn.Module):
    """Five convolutions and three dense layers, which hold 58.6 M of the parameters."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        of, pool = size.of, nn.MaxPool2d(3, 2)
        self.features = nn.Sequential(
            nn.Conv2d(3, of(64), 11, 4, 2), nn.ReLU(), pool, nn.Conv2d(of(64), of(192), 5, padding=2), nn.ReLU(), pool,
            nn.Conv2d(of(192), of(384), 3, padding=1), nn.ReLU(), nn.Conv2d(of(384), of(256), 3, padding=1), nn.ReLU(),
            nn.Conv2d(of(256), of(256), 3, padding=1), nn.ReLU(), pool if size.image > 64 else nn.Identity(),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout(), nn.Linear(36 * of(256), of(4096)), nn.ReLU(),
            nn.Dropout(), nn.Linear(of(4096), of(4096)), nn.ReLU(), nn.Linear(of(4096), CLASSES),
        )  # fmt: skip

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of a lane, summed over its images."""
        return nn.functional.cross_entropy(self.classifier(self.features(images)), labels, reduction="sum")


def _conv(inner: int, outer: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inner, outer, kernel, stride, kernel // 2), nn.ReLU())


class Inception(nn.Module):
    """Four branches side by side."""

    def __init__(self, inner: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        one, before3, three, before5, five, pooled = channels
        self.branches = nn.ModuleList([
            _conv(inner, one, 1),
            nn.Sequential(_conv(inner, before3, 1), _conv(before3, three, 3)),
            nn.Sequential(_conv(inner, before5, 1), _conv(before5, five, 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(inner, pooled, 1)),
        ])  # fmt: skip
        self.outer = one + three + five + pooled

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class GoogLeNet(nn.Module):
    """Nine inceptions, and two auxiliary heads whose losses count 0.3 each: biases, no batch norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        of, self._pool = size.of, nn.MaxPool2d(3, 2, ceil_mode=True)
        self.stem = nn.Sequential(
            _conv(3, of(64), 7, 2), self._pool, _conv(of(64), of(64), 1), _conv(of(64), of(192), 3), self._pool
        )
        self.inceptions, self.heads, inner = nn.ModuleDict(), nn.ModuleDict(), of(192)
        for name, channels in INCEPTIONS.items():
            self.inceptions[name] = Inception(inner, tuple(map(of, channels)))
            inner = self.inceptions[name].outer
            if name in ("4a", "4d"):
                self.heads[name] = nn.Sequential(
                    nn.AdaptiveAvgPool2d(4), _conv(inner, of(128), 1), nn.Flatten(),
                    nn.Linear(16 * of(128), of(1024)), nn.ReLU(), nn.Dropout(0.7), nn.Linear(of(1024), CLASSES),
                )  # fmt: skip
        self.last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(inner, CLASSES))

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of a lane with those of both heads, summed over its images."""
        x, total = self.stem(images), torch.zeros(())
        for name, inception in self.inceptions.items():
            x = inception(x)
            if name in self.heads:
                total = total + 0.3 * nn.functional.cross_entropy(self.heads[name](x), labels, reduction="sum")
            if name in ("3b", "4e"):
                x = self._pool(x)
        return total + nn.functional.cross_entropy(self.last(x), labels, reduction="sum")


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the stride is in the 3x3, which is version 1.5."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outer, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """Sixteen bottlenecks in four stages."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        inner = size.of(64)
        layers: list[nn.Module] = [nn.Conv2d(3, inner, 7, 2, 3, bias=False), nn.BatchNorm2d(inner), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2, 1))
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                width = size.of(64 << stage)
                layers.append(Bottleneck(inner, width, 2 if stage and not block else 1))
                inner = 4 * width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, CLASSES))

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of a lane, summed over its images."""
        return nn.functional.cross_entropy(self.layers(images), labels, reduction="sum")


class Bert(nn.Module):
    """BERT-large: 24 blocks of width 1024 and 16 heads; it guesses masked words, and whether two texts belong together.

    The kernel of the guessing head is the word table.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.of(1024)
        self.words, self.places = nn.Embedding(size.words, width), nn.Embedding(512, width)
        self.segments, self.norm, self.drop = nn.Embedding(2, width), nn.LayerNorm(width), nn.Dropout(0.1)
        block = nn.TransformerEncoderLayer(width, 16, size.of(4096), 0.1, "gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(block, size.blocks, enable_nested_tensor=False)
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.next = nn.Linear(width, 2)
        self.guess = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(size.words))
        for part in self.modules():
            if isinstance(part, nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)

    def loss(self, texts: Tensor, labels: Tensor) -> Tensor:
        """The loss of a lane: every seventh word is masked (word 103) and guessed; `labels` say what is together."""
        places = torch.arange(texts.shape[1], device=texts.device)
        masked = places % 7 == 3
        given = torch.where(masked, 103, texts)
        halves = (places >= texts.shape[1] // 2).long()
        x = self.drop(self.norm(self.words(given) + self.places(places) + self.segments(halves)))
        x = self.blocks(x)
        scores = self.guess(x[:, masked]) @ self.words.weight.T + self.bias
        guessed = nn.functional.cross_entropy(scores.flatten(0, 1), texts[:, masked].flatten(), reduction="sum")
        together = nn.functional.cross_entropy(self.next(self.pooler(x[:, 0])), labels % 2, reduction="sum")
        return guessed / masked.sum() + together


NETWORKS: dict[str, Any] = {"alexnet": AlexNet, "googlenet": GoogLeNet, "resnet50": ResNet50, "bert": Bert}
