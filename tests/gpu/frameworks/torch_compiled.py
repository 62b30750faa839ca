"""PyTorch: torch.compile, whose kernels Triton makes."""

import torch
from digest import show

torch.manual_seed(3)
torch.set_float32_matmul_precision("highest")


@torch.compile
def step(x, weight, bias):
    y = torch.nn.functional.gelu(x @ weight + bias)
    return (y - y.mean(dim=-1, keepdim=True)) / (y.std(dim=-1, keepdim=True) + 1e-5)


x, weight, bias = (torch.randn(*shape, device="cuda") for shape in ((256, 128), (128, 512), (512,)))
for _ in range(3):
    show("step", step(x, weight, bias).cpu())
weight.requires_grad_()
step(x, weight, bias).square().sum().backward()
show("gradient", weight.grad.cpu())
