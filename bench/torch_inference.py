#!/usr/bin/env python3
"""Inference with PyTorch, eager, half precision, one picture or text at a time with a wait after each: requests per second of clients
that share a GPU, natively, under NVIDIA's MPS and under OpenMPS.

    python3 bench/torch_inference.py --processes 1,8

Needs PyTorch and a GPU. The models have random weights of a fixed seed; their checksums, before and after the work,
must be the same everywhere. Exits with 1 when they are not.
"""

import sys

import torch_clients


def resnet18(torch):
    """He et al. 2015, table 1, 18 layers, in plain layers."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
                nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
            is_same = stride == 1 and inputs == outputs
            self.shortcut = nn.Identity() if is_same else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            return torch.relu(self.body(x) + self.shortcut(x))

    stages = [Block(inputs, outputs, stride) for inputs, outputs, stride in
              [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]]
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
                         *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def transformer(torch):
    """12 encoder layers of 512."""
    # The fused path would leave little of what eager programs launch.
    torch.backends.mha.set_fastpath_enabled(False)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)


MODELS = {"resnet18": (resnet18, (1, 3, 224, 224)), "transformer": (transformer, (1, 128, 512))}


def make(name, device):
    import torch

    torch.manual_seed(7)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    build, shape = MODELS[name]
    # Seeded numbers of the processor: the same whatever the device is.
    model, request = build(torch).eval(), torch.randn(shape)
    model, request = model.to(device).half(), request.to(device).half()

    def post():
        with torch.no_grad():
            return model(request)

    return post, torch.cuda.synchronize, lambda: f"{post().double().abs().sum().item():.4g}"


if __name__ == "__main__":
    sys.exit(torch_clients.main(__file__, __doc__, list(MODELS), make))
