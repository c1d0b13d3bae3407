"""A small decoder-only transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Shapes: B samples, T tokens, D width, H heads.


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[B, T, D] to float[B, T, D]."""
        batch, length, width = x.shape
        qkv: Tensor = self.to_qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.dropout(self.from_heads(mixed))
        hidden = F.gelu(self.widen(self.perceptron_norm(x)))
        out: Tensor = x + self.dropout(self.narrow(hidden))
        return out


class Transformer(nn.Module):
    """Predicts the next token; input and output embeddings are one matrix."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64[B, T] to logits float[B, T, vocabulary]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross entropy in nats of predicting ``windows[:, 1:]`` from ``windows[:, :-1]``; int64[B, T + 1]."""
        logits: Tensor = self(windows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def num_parameters(model: nn.Module) -> int:
    """Return how many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters())


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate
