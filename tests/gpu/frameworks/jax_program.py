"""JAX: compiled functions, gradients, random numbers, linear algebra."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".1")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
import jax
import jax.numpy as jnp
from digest import show

print(jax.devices()[0].platform)
key = jax.random.key(9)
x, weight = jax.random.normal(key, (128, 256)), jax.random.normal(key, (256, 64))
show("random", x)
show("product", jax.jit(lambda x, w: jnp.tanh(x @ w))(x, weight))
show("gradient", jax.jit(jax.grad(lambda w: jnp.square(jnp.tanh(x @ w)).sum()))(weight))
show("scan", jax.lax.scan(lambda carry, row: (carry + row, carry.sum()), jnp.zeros(256), x)[1])
show("fft", jnp.fft.fft(x[0]))
show("cholesky", jnp.linalg.cholesky(x @ x.T + 256 * jnp.eye(128)))
