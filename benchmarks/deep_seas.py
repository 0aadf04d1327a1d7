"""Deep seas by number, ``deep_seas:DeepSea7-v0``: as ``sharpwave/DeepSea-v0``, with which action means right drawn from
that number."""

import gymnasium

NUMBERS = range(1_000)

for number in NUMBERS:
    gymnasium.register(f"DeepSea{number}-v0", "sharpwave.envs.deep_sea:DeepSea", kwargs={"mapping": number})
