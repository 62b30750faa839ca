"""NCCL through PyTorch: collectives and their capture in a graph, one process for each GPU, two at most, as NCCL takes no GPU twice."""

import os
import socket
import sys

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from digest import show

COUNT = 100_003


def collectives(rank, ranks, port):
    """All results of one rank, by name; equal for each run, as the inputs are small integers."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    mine = (torch.arange(COUNT, device="cuda", dtype=torch.float32) % 1000) * (rank + 1)
    results = {}
    total = mine.clone()
    distributed.all_reduce(total)
    results["all_reduce"] = total
    first = mine.clone()
    distributed.broadcast(first, src=0)
    results["broadcast"] = first
    gathered = torch.empty(ranks * COUNT, device="cuda")
    distributed.all_gather_into_tensor(gathered, mine)
    results["all_gather"] = gathered
    scattered = torch.empty(COUNT, device="cuda")
    distributed.reduce_scatter_tensor(scattered, gathered)
    results["reduce_scatter"] = scattered
    exchanged = torch.empty(ranks * 1000, device="cuda")
    distributed.all_to_all_single(exchanged, mine[: ranks * 1000].contiguous())
    results["all_to_all"] = exchanged
    large = torch.ones(1 << 24, device="cuda", dtype=torch.bfloat16)
    distributed.all_reduce(large)
    results["large"] = large.float().sum()
    captured, graph = mine.clone(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        distributed.all_reduce(captured)
    captured.copy_(mine)
    graph.replay()
    torch.cuda.synchronize()
    results["in a graph"] = captured
    distributed.barrier()
    results = {name: tensor.cpu() for name, tensor in results.items()}
    distributed.destroy_process_group()
    return results


def child(rank, ranks, port):
    collectives(rank, ranks, port)


if __name__ == "__main__":
    ranks = min(torch.cuda.device_count(), 2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    others = [multiprocessing.get_context("spawn").Process(target=child, args=(rank, ranks, port)) for rank in range(1, ranks)]
    for other in others:
        other.start()
    for name, tensor in collectives(0, ranks, port).items():
        show(name, tensor)
    for other in others:
        other.join(60)
        print("exit", other.exitcode)
    sys.stdout.flush()
