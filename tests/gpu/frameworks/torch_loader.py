"""PyTorch: a data loader with worker processes, pinned memory and copies that do not block."""

import torch
from digest import show


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((3, 64), float(index)).square()


if __name__ == "__main__":
    torch.zeros(1, device="cuda")
    loader = torch.utils.data.DataLoader(Squares(), batch_size=16, num_workers=2, pin_memory=True)
    total = torch.zeros(3, 64, device="cuda")
    for batch in loader:
        assert batch.is_pinned()
        total += batch.to("cuda", non_blocking=True).sum(dim=0)
    show("total", total.cpu())
