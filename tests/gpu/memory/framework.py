"""What a framework is told of a GPU's memory, and whether it can have that: `framework.py NAME`, the programs of memory.py's part `told`.

Each takes what its documents say it takes by default or as a part of the whole, computes there, and is refused more than the whole. Prints
`total BYTES` and `ok`, or ends with what went wrong.
"""

import json
import pathlib
import sys
import tempfile

# Of what is told, so much must be there: a context's start, a framework's own streams and code count too.
PART = 0.75
WORDS = 1 << 20


def torch():
    import torch

    free, total = torch.cuda.mem_get_info()
    said = torch.cuda.get_device_properties(0).total_memory
    assert said == total, f"properties say {said}, cuMemGetInfo {total}"
    assert PART * total <= free <= total, f"{free} bytes of {total} are free"
    whole = torch.ones(int(total * PART) // 4, dtype=torch.float32, device="cuda")
    assert whole[-WORDS:].sum().item() == WORDS
    try:
        torch.ones(total // 4, dtype=torch.float32, device="cuda")
        raise AssertionError("more than the whole was had")
    except torch.cuda.OutOfMemoryError:
        pass
    del whole
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.5)
    half = torch.ones(int(total * 0.4) // 4, dtype=torch.float32, device="cuda")
    assert half[:WORDS].sum().item() == WORDS
    try:
        torch.ones(int(total * 0.2) // 4, dtype=torch.float32, device="cuda")
        raise AssertionError("more than half of the whole was had")
    except torch.cuda.OutOfMemoryError:
        pass
    return total


def jax():
    # With its own preallocation: three quarters of the whole.
    import jax
    import jax.numpy as jnp

    device = jax.devices()[0]
    square = jnp.ones((1024, 1024), dtype=jnp.float32)
    assert float((square @ square).sum()) == 1024.0**3
    limit = device.memory_stats()["bytes_limit"]
    large = jnp.ones(int(limit * 0.8) // 4, dtype=jnp.float32).block_until_ready()
    assert float(large[:WORDS].sum()) == WORDS
    return round(limit / 0.75)


def cupy():
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    said = cupy.cuda.runtime.getDeviceProperties(0)["totalGlobalMem"]
    assert said == total, f"properties say {said}, cuMemGetInfo {total}"
    assert PART * total <= free <= total, f"{free} bytes of {total} are free"
    whole = cupy.ones(int(total * PART) // 4, dtype=cupy.float32)
    assert float(whole[-WORDS:].sum()) == WORDS
    try:
        cupy.ones(total // 4, dtype=cupy.float32)
        raise AssertionError("more than the whole was had")
    except cupy.cuda.memory.OutOfMemoryError:
        pass
    del whole
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(fraction=0.5)
    assert pool.get_limit() == total // 2, f"half of the whole is {pool.get_limit()}"
    return total


def vllm():
    # Takes nine tenths of the whole by default; the weights are random.
    import torch
    from vllm import LLM, SamplingParams

    model = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    }
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "config.json").write_text(json.dumps(model))
        engine = LLM(directory, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True)
        settings = SamplingParams(max_tokens=16, ignore_eos=True, detokenize=False)
        made = engine.generate([{"prompt_token_ids": list(range(3, 35))}], settings)
    assert len(made[0].outputs[0].token_ids) == 16
    return torch.cuda.mem_get_info()[1]


PROGRAMS = {"torch": torch, "jax": jax, "cupy": cupy, "vllm": vllm}

if __name__ == "__main__":
    print(f"total {PROGRAMS[sys.argv[1]]()}")
    print("ok")
