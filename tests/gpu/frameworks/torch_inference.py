"""PyTorch, eager: convolution and attention without gradients, half and single precision, on several streams."""

import torch
from digest import show

torch.manual_seed(2)
torch.backends.cudnn.benchmark = False
convolution = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 7, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3)).cuda().eval()
transformer = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2).cuda().half().eval()
with torch.inference_mode():
    for _ in range(3):
        show("convolution", convolution(torch.randn(4, 3, 96, 96, device="cuda")).cpu())
        show("transformer", transformer(torch.randn(4, 64, 128, device="cuda", dtype=torch.float16)).cpu())
    q, k, v = (torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    attention = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    show("attention", attention.float().cpu())
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    for index, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            matrix = torch.full((512, 512), index + 1.0, device="cuda")
            results.append((matrix @ matrix).sum())
    torch.cuda.synchronize()
    show("streams", torch.stack(results).cpu())
    show("sorted", torch.sort(torch.randn(100_000, device="cuda")).values.cpu())
    show("fft", torch.view_as_real(torch.fft.fft(torch.randn(4096, device="cuda"))).cpu())
