"""Accumulate the gradients of a PyTorch module with adjoint, by name.

The batch has sequences of different lengths, so its micro-batches have different numbers of tokens:
the mean of their means is not the mean over all tokens.  adjoint's accumulator weights them.

    python examples/torch_accumulation.py
"""

from __future__ import annotations

import torch

import adjoint as ad


def make_batch(sequences: int = 12, longest: int = 20) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return sequences of tokens with their next tokens, each of its own length."""
    lengths = torch.randint(2, longest, (sequences,))
    tokens = [torch.randint(0, 50, (int(n) + 1,)) for n in lengths]
    return [(t[:-1], t[1:]) for t in tokens]


def mean_loss(model: torch.nn.Module, batch: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the mean of the loss over all tokens of a batch."""
    logits = torch.cat([model(x) for x, _ in batch])
    return torch.nn.functional.cross_entropy(logits, torch.cat([y for _, y in batch]))


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of a module by name, without a copy."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def main() -> None:
    """Compare accumulated gradients with those of the full batch, then make an update."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 32), torch.nn.Tanh(),
                                torch.nn.Linear(32, 50))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batch = make_batch()

    model.zero_grad()
    mean_loss(model, batch).backward()
    full = {name: g.clone() for name, g in gradients(model).items()}

    acc = ad.GradientAccumulator(accumulation_steps=4, max_grad_norm=10.0)
    for name, p in model.named_parameters():
        acc.register(name, p.shape)
    acc.on("full", lambda event: print(f"window of {event.micro_batches}, {event.weight:g} tokens"))

    naive = {name: torch.zeros_like(g) for name, g in full.items()}
    for start in range(0, len(batch), 3):
        micro = batch[start : start + 3]
        model.zero_grad()
        mean_loss(model, micro).backward()
        acc.step(gradients(model), weight=sum(len(y) for _, y in micro))
        for name, g in gradients(model).items():
            naive[name] += g / 4

    def worst(found: dict[str, torch.Tensor]) -> float:
        return max(float((found[name] - g).abs().max()) for name, g in full.items())

    exact = {name: torch.from_dlpack(g) for name, g in acc.gradients().items()}
    print(f"largest difference from the full batch: {worst(exact):.1e} weighted, {worst(naive):.1e} naive")

    before = mean_loss(model, batch).item()
    for name, p in model.named_parameters():
        p.grad = exact[name]
    optimizer.step()
    acc.reset()
    print(f"loss {before:.3f} -> {mean_loss(model, batch).item():.3f} after one update")


if __name__ == "__main__":
    main()
