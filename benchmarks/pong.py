"""Recipe `pong` trained with ten seeds, one at a time: a table, results/pong.json, and one figure of all curves.

    python benchmarks/pong.py [--seeds 701 702 ...] [--at-a-time 1] [--name NAME] [--runs FOLDER] [--out FOLDER]
        [-- any options of `sharpwave train pong`]

Each run has one torch thread, and its environments' two threads the core that is left. Finished runs are not trained
again, interrupted ones are resumed. As critics ask: `--name pong-fair -- --sticky 0.25 --actions "" --crop 0:210`.
"""

from solving import main

if __name__ == "__main__":
    main("pong", "Pong from pixels: sharpwave train pong", [*range(701, 711)], 1, ["--threads", "1"])
