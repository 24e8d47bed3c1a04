"""A plain PyTorch DDP script. It does not use hpc-amp and only needs torch.

It fits a small network to a function and prints the loss on rank 0. With `--checkpoint FILE`, it
saves after every epoch, and a second run goes on from there.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoint")
    arguments = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)

    first_epoch = 0
    if arguments.checkpoint and os.path.exists(arguments.checkpoint):
        state = torch.load(arguments.checkpoint, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"]

    generator = torch.Generator().manual_seed(rank)
    for epoch in range(first_epoch, arguments.epochs):
        for _ in range(100):
            inputs = torch.rand(64, 2, generator=generator).to(device)
            targets = torch.sin(3 * inputs[:, :1]) * inputs[:, 1:]
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1} of {arguments.epochs}, {world_size} ranks, loss {loss:.5f}")
            if arguments.checkpoint:
                state = {
                    "epoch": epoch + 1,
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                }
                torch.save(state, arguments.checkpoint + ".new")
                os.replace(arguments.checkpoint + ".new", arguments.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
