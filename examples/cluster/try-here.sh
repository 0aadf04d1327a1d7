#!/bin/bash
# Runs what the files beside this one run, smaller, on one Linux machine: two network namespaces, 10.9.0.1 and 10.9.0.2,
# which reach each other and nothing else, stand for two machines. It needs unshare, nsenter, ip, and for Ray the extra
# ray and ray[default].
#   examples/cluster/try-here.sh serve     the container of serve.yaml, a learner beside it, and actors at the other end
#   examples/cluster/try-here.sh slurm     slurm.sh's `ray symmetric-run` on both
#   examples/cluster/try-here.sh rayjob    Ray as rayjob.yaml's pods start it, and its entrypoint as a job

set -euo pipefail

if [ "${INSIDE:-}" != yes ]; then
    INSIDE=yes exec unshare --user --map-root-user --net --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi

export SHARPWAVE_SECRET=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$SHARPWAVE_SECRET RAY_USAGE_STATS_ENABLED=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

unshare --net sleep infinity & # the other end
sleep 0.5
ip link set lo up
ip link add here type veth peer name there netns $!
ip addr add 10.9.0.1/24 dev here
ip link set here up
ip route add default via 10.9.0.2
other=(nsenter --target $! --net)
"${other[@]}" sh -c "ip link set lo up; ip addr add 10.9.0.2/24 dev there; ip link set there up; ip route add default via 10.9.0.1"

# Limits are smaller, too: with those of serve.yaml each shard reserves 39 GB of address space.
small=(--actors 2 --num-envs 4 --steps "${STEPS:-4000}" --warmup-steps 2000 --report-every 1000 --out "$folder/run")

case "${1:-}" in
serve)
    sharpwave serve --shards=4 --listen=0.0.0.0:7070 --disk="$folder/cluster" --disk-limit=4GiB --ram=1GiB &
    serving=$!
    sleep 3
    "${other[@]}" sharpwave actors --hub 10.9.0.1:7060 &
    acting=$!
    sharpwave train apex --connect 10.9.0.1:7070 --hub-listen 0.0.0.0:7060 "${small[@]}"
    wait $acting
    kill -TERM $serving && wait $serving
    for store in "$folder"/cluster/shard-*/store; do
        sharpwave verify "$store"
    done
    ;;
slurm)
    run=(ray symmetric-run --address 10.9.0.1:6379 --min-nodes 2 --num-cpus 1 --)
    run+=(sharpwave train apex --ray auto --shards 4 --capacity 100000 "${small[@]}")
    "${other[@]}" "${run[@]}" &
    "${run[@]}"
    wait $! || true # it ends when its head does
    ;;
rayjob)
    ray start --head --node-ip-address 10.9.0.1 --num-cpus 0 --dashboard-host 0.0.0.0
    "${other[@]}" ray start --address 10.9.0.1:6379 --node-ip-address 10.9.0.2 --num-cpus 1
    ray job submit --address http://10.9.0.1:8265 -- \
        sharpwave train apex --ray auto --shards 4 --capacity 100000 "${small[@]}"
    ray stop
    ;;
*)
    sed -n '2,8s/^# //p' "$0"
    exit 2
    ;;
esac
