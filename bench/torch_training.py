#!/usr/bin/env python3
"""A small training loop with PyTorch: steps per second of clients that share a GPU, natively, under NVIDIA's MPS and under OpenMPS.

    python3 bench/torch_training.py --processes 1,8

A step: 64 small pictures to the device, forward and backward through four convolutions, Adam, and the loss back. Needs PyTorch and a GPU.
The checksum is the loss after eleven steps, from weights and pictures of a fixed seed, before and after the work. Exits with 1 when checksums differ.
"""

import sys

import torch_clients


STEPS_OF_CHECKSUM = 11


def make(_, device):
    import torch

    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    nn = torch.nn

    def fresh():
        """A model that has learned nothing, and what changes it."""
        torch.manual_seed(11)
        layers = [layer for inputs, outputs in [(3, 32), (32, 64), (64, 64), (64, 128)]
                  for layer in (nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)).to(device)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    model, optimizer = fresh()
    pictures, labels = torch.randn(64, 3, 32, 32).pin_memory(), torch.randint(0, 10, (64,)).to(device)
    loss_now = None

    def post():
        nonlocal loss_now
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(pictures.to(device, non_blocking=True)), labels)
        loss.backward()
        optimizer.step()
        loss_now = loss.detach()

    def wait():
        return loss_now.item()

    def checksum():
        """Learns from the beginning: the same whenever it is asked for."""
        nonlocal model, optimizer
        model, optimizer = fresh()
        for _ in range(STEPS_OF_CHECKSUM):
            post()
            found = wait()
        return f"{found:.3f}"

    return post, wait, checksum


if __name__ == "__main__":
    sys.exit(torch_clients.main(__file__, __doc__, ["training"], make))
