"""PyTorch's own profiler: how many kernels it has seen of those that ran."""

import torch
from torch.profiler import ProfilerActivity, profile

matrix = torch.ones(256, 256, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    for _ in range(5):
        matrix = matrix @ matrix / 256
    torch.cuda.synchronize()
assert float(matrix.sum()) == 65536.0
kernels = sum(event.count for event in profiler.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)
print("profiled", kernels)
