"""PyTorch with expandable segments: its allocator grows reservations of virtual addresses."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
import torch
from digest import show

torch.manual_seed(5)
kept = []
for round_ in range(6):
    blocks = [torch.randn(1 << (16 + round_), device="cuda") for _ in range(4)]
    kept.append(torch.stack(blocks).sum(dim=0))
    del blocks
    if round_ % 2:
        torch.cuda.empty_cache()
for tensor in kept:
    show("kept", tensor.cpu())
segments = torch.cuda.memory_snapshot()
print("expandable", any(segment.get("is_expandable") for segment in segments))
