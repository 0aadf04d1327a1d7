"""Recipe `pong` trained with five seeds, two at a time: a table, results/pong.json, and one figure of all curves.

    python benchmarks/pong.py [--seeds 100 101 ...] [--at-a-time 2] [--runs FOLDER] [--out FOLDER] [-- any options of
    `sharpwave train pong`]

Each run has one torch thread. Finished runs are not trained again, interrupted ones are resumed.
"""

from solving import main

if __name__ == "__main__":
    main("pong", "Pong from pixels: sharpwave train pong", [100, 101, 102, 103, 104], 2, ["--threads", "1"])
