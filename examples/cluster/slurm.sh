#!/bin/bash
# Ape-X over four machines by Slurm: a learner in the driver, shards and actors wherever Ray places them.
#   sbatch examples/cluster/slurm.sh
#SBATCH --job-name=sharpwave
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=08:00:00

set -euo pipefail

# Ray runs the code of whoever reaches its ports, so it asks for a token; the file is on a disk that all nodes share.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH="$HOME/.sharpwave-ray-token-$SLURM_JOB_ID"
(umask 077 && python -c 'import secrets; print(secrets.token_hex(32))' > "$RAY_AUTH_TOKEN_PATH")
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# symmetric-run begins Ray on every node, and the command on the first of them once all are there.
srun ray symmetric-run \
    --address "$head:6379" \
    --min-nodes "$SLURM_NNODES" \
    --num-cpus "$SLURM_CPUS_PER_TASK" \
    -- \
    sharpwave train apex --ray auto --shards 4 --actors 96 --num-envs 96 --capacity 10000000
