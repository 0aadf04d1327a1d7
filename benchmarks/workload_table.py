"""The eight loads of ``workloads.py``: what memories of known size hold, and how fast they are added to and sampled."""

from __future__ import annotations

from dataclasses import dataclass

LANES = 8


@dataclass(frozen=True)
class Load:
    """A memory as an algorithm needs it.

    Attributes:
        name: algorithm and environment.
        elements: capacity.
        kind: "prioritized", "uniform", or "use-counted".
        element_bytes: of an element, as the table of the loads says. Its elements of frames are float32, a stack of
            four at each step; frames are bytes, so that is what is stored and sampled here, a quarter of it.
        adds, samples: elements a second.
        data: source of its steps, of ``workload_data.py``.
        window: steps of an element; 0: a transition.
        burn_in: steps before the window.
        uses: how often an element is sampled at most.
        batch: elements of a batch.
    """

    name: str
    elements: int
    kind: str
    element_bytes: int
    adds: float
    samples: float
    data: str
    window: int = 0
    burn_in: int = 0
    uses: int | None = None
    batch: int = 64

    @property
    def steps(self) -> int:
        """Steps that an element adds to the memory."""
        return self.window or 1

    @property
    def stack(self) -> int | None:
        """Frames of an observation."""
        return 4 if self.data == "qbert" else None


LOADS = {
    "dqn-atari": Load("DQN, Atari Qbert", 400_000, "prioritized", 110_000, 400, 1650, "qbert"),
    "ppo-atari": Load("PPO, Atari Qbert", 100_000, "use-counted", 120_000, 50, 87, "qbert", uses=2),
    "r2d2-atari": Load(
        "R2D2, Atari Qbert", 10_000, "prioritized", 10_000_000, 3, 45, "qbert", window=80, burn_in=8, batch=16
    ),
    "impala-atari": Load(
        "IMPALA, Atari Qbert", 100_000, "use-counted", 3_000_000, 4, 253, "qbert", window=26, uses=64, batch=32
    ),
    "sac-mujoco": Load("SAC, MuJoCo", 1_000_000, "uniform", 3_000, 71, 138, "humanoid"),
    "qmix-smac": Load("QMIX, SMAC 3s5z", 50_000, "uniform", 290_000, 19, 60, "smac", window=10, batch=32),
    "masac-smac": Load("MASAC, SMAC 3s5z", 1_000_000, "uniform", 29_000, 116, 63, "smac"),
    "dqn-gobigger": Load("DQN, GoBigger", 100_000, "prioritized", 400_000, 30, 83, "gobigger", batch=32),
}  # fmt: skip
