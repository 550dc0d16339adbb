"""A character model of Python's manual in PyTorch: a small transformer with tied weights, as an existing loop.

    python examples/text_torch.py
    meshmend run -n 4 examples/text_torch.py

The loop is an ordinary one over a DataLoader; `wrap` and `Sampler` make it go on when workers die.
"""

import argparse
import pydoc_data.topics

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import meshmend as mm

torch.set_num_threads(1)  # the workers share this machine's cores already
TEXT = "\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items()))
LETTERS = sorted(set(TEXT))
LENGTH = 64


class Transformer(nn.Module):
    """Guesses the next character from those before it."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.letter = nn.Embedding(len(LETTERS), width)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.guess = nn.Linear(width, len(LETTERS), bias=False)
        self.guess.weight = self.letter.weight
        nn.init.normal_(self.letter.weight, std=0.02)

    def forward(self, ids):
        """Scores of the next character at every place."""
        x = self.letter(ids) + self.place[: ids.shape[1]]
        ahead = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.guess(self.layers(x, mask=ahead, is_causal=True))

    @torch.no_grad()
    def write(self, text: str, count: int) -> str:
        """Go on with a text, always with the likeliest character."""
        ids = [LETTERS.index(letter) for letter in text]
        for _ in range(count):
            ids.append(int(self(torch.tensor([ids[-LENGTH:]]))[0, -1].argmax()))
        return "".join(LETTERS[one] for one in ids)


def load(characters: int):
    """Pieces of the text, and the same one character later."""
    index = {letter: number for number, letter in enumerate(LETTERS)}
    ids = torch.tensor([index[letter] for letter in TEXT[: characters + 1]])
    count = (len(ids) - 1) // LENGTH
    return TensorDataset(ids[: count * LENGTH].view(count, LENGTH), ids[1 : count * LENGTH + 1].view(count, LENGTH))


def main(epochs: int, characters: int, width: int, layers: int) -> None:
    """Train, then write a little."""
    data = load(characters)
    torch.manual_seed(0)
    model = Transformer(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    with mm.Job(data, batch=32, lanes=4, reduction="exact") as job:
        clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # noqa: E731
        model, optimizer = mm.torch.wrap(model, optimizer, job, after_sum=clip)
        loader = DataLoader(data, batch_sampler=mm.torch.Sampler(job))
        for _ in job.epochs(epochs):
            for ids, after in loader:
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = cross_entropy(model(ids).flatten(0, 1), after.flatten())
                loss.backward()
                optimizer.step(loss=loss)
    model.eval()
    print(repr(model.write("The ", 60)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on the text of Python's manual.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--characters", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    main(**vars(parser.parse_args()))
