"""A Transformer encoder text classifier, written as users write it, and a task it can learn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

PADDING = 0


@dataclass(frozen=True)
class Size:
    """The model and how long it trains; `batch` sequences a micro-batch, `length` tokens each."""

    vocabulary: int
    d_model: int
    heads: int
    layers: int
    feedforward: int
    length: int
    batch: int
    micro_batches: int
    steps: int
    learning_rate: float
    classes: int = 4


SMALL = Size(
    vocabulary=512,
    d_model=64,
    heads=4,
    layers=2,
    feedforward=128,
    length=24,
    batch=16,
    micro_batches=2,
    steps=16,
    learning_rate=4e-3,
)
# The size of BERT base, which is what users train.
FULL = Size(
    vocabulary=30522,
    d_model=768,
    heads=12,
    layers=12,
    feedforward=3072,
    length=128,
    batch=32,
    micro_batches=2,
    steps=20,
    learning_rate=1e-4,
)
# A class's own tokens; few, so that a large vocabulary does not make the task slow to learn.
_OWN_TOKENS = 50


class TextClassifier(nn.Module):  # type: ignore[misc]
    """Tokens (batch, length), 0 = padding -> logits (batch, classes)."""

    def __init__(self, size: Size, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.d_model, padding_idx=PADDING)
        self.positions = nn.Embedding(size.length, size.d_model)
        layer = nn.TransformerEncoderLayer(
            d_model=size.d_model,
            nhead=size.heads,
            dim_feedforward=size.feedforward,
            dropout=dropout,
            activation="gelu",
            batch_first=True,
        )
        # Nested tensors only speed up inference, and warn that they are a prototype.
        self.encoder = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(size.d_model, size.classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, classes) for `tokens` (batch, length)."""
        padding = tokens.eq(PADDING)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.positions(places)
        hidden = self.encoder(hidden, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * kept).sum(dim=1) / kept.sum(dim=1)
        return self.classifier(pooled)


def micro_batch(size: Size, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Micro-batch `index` of the task: tokens (batch, length) and labels (batch,), on the CPU.

    Half of a sequence's tokens come from its class's own part of the vocabulary, the others from
    anywhere. Sequences end in padding after at least half their length.
    """
    source = torch.Generator().manual_seed(1000 + index)
    shape = (size.batch, size.length)
    labels = torch.randint(size.classes, (size.batch,), generator=source)
    anywhere = torch.randint(1, size.vocabulary, shape, generator=source)
    choice = torch.randint(_OWN_TOKENS, shape, generator=source)
    preferred = 1 + labels[:, None] * _OWN_TOKENS + choice
    own = torch.randint(2, shape, generator=source).bool()
    ends = torch.randint(size.length // 2, size.length + 1, (size.batch, 1), generator=source)
    tokens = torch.where(own, preferred, anywhere)
    tokens[torch.arange(size.length)[None, :] >= ends] = PADDING
    return tokens, labels
