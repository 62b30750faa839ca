"""PyTorch: captured CUDA graphs, replayed with other inputs."""

import torch
from digest import show

torch.manual_seed(4)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).cuda()
placed = torch.randn(32, 256, device="cuda")
with torch.no_grad():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(placed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(placed)
    for _ in range(5):
        placed.copy_(torch.randn(32, 256, device="cuda"))
        graph.replay()
        show("replayed", result.cpu())
        show("eager", model(placed).cpu())

    callable_ = torch.cuda.make_graphed_callables(torch.nn.Linear(256, 16).cuda(), (placed,))
    show("callable", callable_(placed).cpu())
