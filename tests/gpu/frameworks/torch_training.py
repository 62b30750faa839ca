"""PyTorch, eager: a convolutional network is trained, in single and in mixed precision."""

import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
from digest import show

torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False


def train(precision):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * 16 * 16, 10),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=precision is not None)
    for _ in range(8):
        images, labels = torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(10, (32,), device="cuda")
        with torch.autocast("cuda", dtype=precision or torch.float16, enabled=precision is not None):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    show(f"loss {precision}", loss.detach().float().cpu())
    for name, parameter in model.named_parameters():
        show(name, parameter.detach().cpu())


for precision in (None, torch.float16, torch.bfloat16):
    train(precision)
