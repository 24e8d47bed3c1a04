"""Trains a linear model with apex, as its users did in 2020."""

import torch
from apex import amp


def parse():
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--apex", action="store_true")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def batches(count):
    generator = torch.Generator().manual_seed(args.seed)
    for _ in range(count):
        x = torch.randn(32, 10, generator=generator)
        yield x.cuda(), x.sum(dim=1, keepdim=True).cuda()


def evaluate(model):
    with torch.no_grad():
        return sum(torch.nn.functional.mse_loss(model(x), target) for x, target in batches(4))


args = parse()
model = torch.nn.Linear(10, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
if args.apex:
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
scaler = torch.amp.GradScaler("cuda")

for x, target in batches(100):
    optimizer.zero_grad()
    with torch.cuda.amp.autocast(args.amp):
        prediction = model(x)
        loss = torch.nn.functional.mse_loss(prediction, target)

    # The gradients of a large batch are clipped.
    # So they are here.

    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()

print(evaluate(model))
