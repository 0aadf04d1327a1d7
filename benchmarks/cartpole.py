"""Recipe `cartpole` trained with ten seeds, one after the other: a table, results/cartpole.json, and a figure.

python benchmarks/cartpole.py [--seeds 701 702 ...] [--at-a-time 1] [--runs FOLDER] [--out FOLDER]
"""

from solving import main

if __name__ == "__main__":
    main("cartpole", "CartPole-v1: sharpwave train cartpole", list(range(701, 711)), 1, [])
