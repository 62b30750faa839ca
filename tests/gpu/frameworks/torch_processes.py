"""PyTorch: tensors of the device that one process gives another (CUDA IPC)."""

import torch
import torch.multiprocessing as multiprocessing
from digest import show


def work(inbox, outbox):
    tensor = inbox.get()
    tensor.mul_(2)
    torch.cuda.synchronize()
    outbox.put("doubled")
    other = inbox.get()
    outbox.put(float(other.sum()))
    del tensor, other
    inbox.get()


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    inbox, outbox = multiprocessing.Queue(), multiprocessing.Queue()
    child = multiprocessing.Process(target=work, args=(inbox, outbox))
    child.start()
    tensor = torch.arange(1000, dtype=torch.float32, device="cuda")
    inbox.put(tensor)
    print(outbox.get(timeout=90))
    show("tensor", tensor.cpu())
    inbox.put(torch.ones(4096, device="cuda"))
    print(outbox.get(timeout=90))
    inbox.put(None)
    child.join(60)
    print("exit", child.exitcode)
