"""rlax and jax in float64 on the CPU, imported without the deprecations that they raise among themselves."""

import os
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import jax
    import jax.numpy as jnp
    import rlax

    rlax.signed_hyperbolic  # noqa: B018 - its modules are imported on first use

__all__ = ["jax", "jnp", "rlax"]
