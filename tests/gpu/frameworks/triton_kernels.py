"""Triton: an element-wise kernel, a softmax, a matrix product on tensor cores."""

import torch
import triton
import triton.language as tl
from digest import show


@triton.jit
def softmax(out, rows, columns, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(rows + row * columns + offsets, mask=offsets < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + offsets, powers / tl.sum(powers, axis=0), mask=offsets < columns)


@triton.jit
def product(a, b, c, N: tl.constexpr, BLOCK: tl.constexpr):
    rows, columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        total += tl.dot(tl.load(a + rows[:, None] * N + inner[None, :]), tl.load(b + inner[:, None] * N + columns[None, :]))
    tl.store(c + rows[:, None] * N + columns[None, :], total)


torch.manual_seed(8)
x = torch.randn(64, 1000, device="cuda")
out = torch.empty_like(x)
softmax[(64,)](out, x, 1000, BLOCK=1024)
show("softmax", out.cpu())
a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
c = torch.empty(256, 256, device="cuda")
product[(8, 8)](a, b, c, N=256, BLOCK=32)
show("product", c.cpu())
