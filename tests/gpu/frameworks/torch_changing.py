"""PyTorch, eager: training and inference in turns, each posted far ahead of the device, so that what is submitted together is never long the same.

Many at once show most: `python3 tests/gpu/frameworks.py --at-once 16 torch_changing`.
"""

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
from digest import show

torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False


def block(channels, stride):
    inside = channels * stride
    return torch.nn.Sequential(torch.nn.Conv2d(channels, inside, 3, stride, 1), torch.nn.BatchNorm2d(inside), torch.nn.ReLU(), torch.nn.Conv2d(inside, inside, 3, 1, 1), torch.nn.BatchNorm2d(inside), torch.nn.Hardtanh())


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 16, 7, 2, 3), *[block(16 << at, 2) for at in range(3)], torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 10)).cuda()


trained, asked = network(), network().half().eval()
optimizer = torch.optim.Adam(trained.parameters(), lr=1e-4, foreach=True)
images, labels = torch.randn(8, 3, 32, 32, device="cuda"), torch.randint(10, (8,), device="cuda")
pictures = torch.randn(4, 3, 64, 64, device="cuda", dtype=torch.float16)
for turn in range(12):
    for _ in range(15 + turn):
        loss = torch.nn.functional.cross_entropy(trained(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    show(f"loss {turn}", loss.detach().cpu())
    with torch.inference_mode():
        answers = torch.stack([asked(pictures * (1 + step / 64)) for step in range(30 + turn)])
    show(f"answers {turn}", answers.cpu())
for name, parameter in trained.named_parameters():
    show(name, parameter.detach().cpu())
