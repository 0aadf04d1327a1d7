"""Replay buffer for TorchRL over a Sharpwave store.

Use ``ReplayBuffer(100_000, batch_size=128)`` instead of ``TensorDictReplayBuffer(storage=LazyTensorStorage(100_000),
batch_size=128)``; the rest stays. See docs/frameworks/torchrl.md.
"""

from sharpwave.extras import install

try:
    import torchrl.data  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}; install TorchRL with: {install('torchrl')}") from error

from sharpwave.integrations.torchrl.storage import SharpwaveStorage
from sharpwave.integrations.torchrl.tensordict_buffer import ReplayBuffer

__all__ = ["ReplayBuffer", "SharpwaveStorage"]
