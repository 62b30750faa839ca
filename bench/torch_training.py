#!/usr/bin/env python3
"""A small training loop with PyTorch: steps per second of clients that share a GPU, natively, under NVIDIA's MPS and under OpenMPS.

    python3 bench/torch_training.py --processes 1,8

A step: 64 small pictures to the device, forward and backward through four convolutions, Adam, and the loss back. Needs PyTorch and a GPU.
The checksum is the loss after eleven steps, from weights and pictures of a fixed seed. Exits with 1 when checksums differ.
"""

import sys

import torch_clients


def make(_, device):
    import torch

    torch.manual_seed(11)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    nn = torch.nn
    layers = [layer for inputs, outputs in [(3, 32), (32, 64), (64, 64), (64, 128)]
              for layer in (nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
    pictures, labels = torch.randn(64, 3, 32, 32).pin_memory(), torch.randint(0, 10, (64,))
    model, labels = model.to(device), labels.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses, unread = [], []

    def post():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(pictures.to(device, non_blocking=True)), labels)
        loss.backward()
        optimizer.step()
        unread.append(loss.detach())

    def wait():
        losses.append(unread.pop().item())

    def checksum():
        post()
        wait()
        return f"{losses[10]:.3f}"

    return post, wait, checksum


if __name__ == "__main__":
    sys.exit(torch_clients.main(__file__, __doc__, ["training"], make))
