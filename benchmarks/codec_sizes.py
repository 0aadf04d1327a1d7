"""Codecs on frames and vectors: encoded size, and the time to encode, decode and gather; and what else was tried.

    python benchmarks/codec_sizes.py [--quick] [--out FOLDER] [--frames-cache FOLDER]
    python benchmarks/codec_sizes.py --segments 6000    # segments of 8 to 128 steps of games' frames
    python benchmarks/codec_sizes.py --floats 5120      # lossless codecs on MuJoCo's observations: pip install pcodec
    python benchmarks/codec_sizes.py --tokens 7         # rows of any length

Columns of 128 steps, as segments hold them; the dictionary is trained on the first and used for all. Times are the
fastest of several passes, in processor time of all threads where it says CPU. ``--segments``: bytes a step, index
included, and processor time to append one, and to take one in that an actor has encoded. ``--floats``: encoded size of
real observations, column by column, and time to decode them; a sampled row needs its own bytes only if rows are raw,
every other codec unpacks its whole column. ``--tokens``: rows of 200 to 2,000 tokens below 50,000, how fast they are
written and drawn, and how many bytes they take, beside numpy's object arrays of int32 arrays, from which a batch's rows
are joined; medians of so many interleaved rounds. Then the bytes that batches of one small field, and of all fields,
read from disk; and what steps of a prompt and an answer take where each prompt has 16 answers, in random order, with
and without ``shared=True``; and the memory that a distinct shared value on disk takes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import frames
import numpy as np
import numpy.typing as npt
import runner

import sharpwave as sw
from sharpwave.bench.played import LANES
from sharpwave.codecs.codec_protocol import Packed
from sharpwave.codecs.codec_registry import by_name

GAMES = ("pong", "breakout", "qbert", "seaquest")
COLUMN = 128
FRAMES: dict[tuple[int, ...], dict[str, Any]] = {
    (84, 84): {},
    (210, 160, 3): {"grayscale": False, "img_height": 210, "img_width": 160},
}
SEGMENT_LANES, LENGTHS = 2, (8, 16, 32, 64, 128)
SETS = (
    ("Hopper-v5", "float32"),
    ("HalfCheetah-v5", "float32"),
    ("HalfCheetah-v5", "float64"),
    ("Humanoid-v5", "float32"),
)
STACK = 4
ROWS, TOKENS, ANSWERS = 2_000, 50_000, 16
CODECS = ("patches", "delta", "zstd", "predict", "raw")

Rows = npt.NDArray[Any]


def vectors(size: int, steps: int) -> Rows:
    """Make float32 [steps, size] like MuJoCo's: smooth joints, and, from 300 on, contact forces, mostly zero."""
    rng = np.random.default_rng(0)
    rows: npt.NDArray[np.float64] = (
        np.cumsum(rng.normal(scale=0.05, size=(steps, size)), axis=0, dtype=np.float64) % 6.0 - 3.0
    )
    if size > 100:
        rows[:, 293:] *= rng.binomial(1, 0.05, (steps, size - 293))
    return rows.astype(np.float32)


def counts(size: int, steps: int) -> Rows:
    """Make float32 [steps, size] of small integers, as counts on a board: zstd gains much, delta little."""
    return np.random.default_rng(0).integers(0, 8, (steps, size)).astype(np.float32)


def fastest(call: Callable[[], Any], passes: int) -> float:
    """Return the seconds of processor time (all threads) of the quickest of ``passes`` calls."""
    best = np.inf
    for _ in range(passes):
        begin = time.process_time()
        call()
        best = min(best, time.process_time() - begin)
    return best


def measure(rows: Rows, codec: str, passes: int) -> dict[str, float]:
    """Measure one codec on the steps of one lane, ``rows`` [steps, *shape]."""
    field = sw.Field(rows.shape[1:], rows.dtype.name, stack=STACK if rows.ndim > 2 else None)
    flat = rows.reshape(len(rows), -1).view(np.uint8)
    packer, line = by_name(codec), field.line_bytes
    columns = [flat[i : i + COLUMN] for i in range(0, len(flat), COLUMN)]
    dictionary = packer.train(columns[0])
    encoder = packer.encoder(flat.shape[1], line, COLUMN)

    def encode(column: Rows) -> bytes | None:
        return encoder.encode(column, dictionary)

    packed = [(column, encode(column)) for column in columns]
    kept = [(column, payload) for column, payload in packed if payload is not None]

    def decode() -> None:
        for column, payload in kept:
            packer.decode(Packed(payload, len(column), flat.shape[1], dictionary, line))

    decode()
    answer = {
        "bytes": sum(column.nbytes if payload is None else len(payload) for column, payload in packed) / len(rows),
        "encode_us": fastest(lambda: [encode(column) for column in columns], passes) / len(rows) * 1e6,
        "decode_us": fastest(decode, passes) / max(1, sum(len(column) for column, _ in kept)) * 1e6,
    }
    return answer | gather(rows, field, codec, passes)


def gather(rows: Rows, field: sw.Field, codec: str, passes: int) -> dict[str, float]:
    """Sample batches of 256 from a store of ``rows``: transitions per second, and processor time of each."""
    store = sw.Store(
        sw.Spec(obs=field, action=sw.Field((), "int64")), capacity=len(rows), codec={"obs": codec}, segment_steps=COLUMN
    )
    nothing = np.int64(0)
    for row in rows:
        store.append(obs=row, action=nothing, reward=nothing, terminated=False, truncated=False)
    replay = store.transitions()
    replay.sample(256)
    wall, cpu = [], []
    for _ in range(4 * passes):
        begin, spent = time.perf_counter(), time.process_time()
        replay.sample(256)
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - spent)
    return {"gather_per_s": 256 / float(np.median(wall)), "gather_cpu_us": float(np.median(cpu)) / 256 * 1e6}


def camera(steps: int) -> Rows:
    """Make uint8 [steps, 96, 96, 3]: a still picture with a camera's noise of sigma 2."""
    still = (np.add.outer(np.arange(96), np.arange(96)) % 200)[:, :, None] + np.array([0, 20, 40])
    noisy: Rows = np.clip(still + np.random.default_rng(0).normal(0, 2, (steps, *still.shape)), 0, 255).astype(np.uint8)
    return noisy


def photographs(steps: int) -> Rows:
    """Cut uint8 [steps, 96, 96, 3] out of the photographs that scikit-image ships; none without it."""
    try:
        from skimage import data
    except ImportError:
        return np.empty((0, 96, 96, 3), np.uint8)
    rng = np.random.default_rng(0)
    pictures = [getattr(data, name)() for name in ("astronaut", "coffee", "chelsea", "rocket")]

    def cut(picture: Rows) -> Rows:
        y, x = (int(rng.integers(0, size - 96)) for size in picture.shape[:2])
        found: Rows = picture[y : y + 96, x : x + 96]
        return found

    return np.stack([cut(pictures[k * len(pictures) // steps]) for k in range(steps)])


def rendered(steps: int) -> Rows:
    """Render uint8 [steps, 96, 96, 3] of MuJoCo's HalfCheetah; none without it, or without OSMesa or EGL."""
    try:
        import gymnasium as gym

        env = gym.make("HalfCheetah-v5", render_mode="rgb_array", width=96, height=96)
        env.reset(seed=0)
        env.action_space.seed(0)
        found: list[Any] = []
        while len(found) < steps:
            env.step(env.action_space.sample())
            found.append(env.render())
        frames_found: Rows = np.stack(found)
        return frames_found
    except Exception as error:
        print(f"HalfCheetah is not rendered: {error}")
        return np.empty((0, 96, 96, 3), np.uint8)


def sources(steps: int, cache: Path) -> dict[str, Rows]:
    """Return the measured data by name: one lane's consecutive steps."""
    played = {game: frames.load(game, LANES * steps, cache=cache).obs for game in GAMES}
    found = {game: np.array(obs[:steps, 0]) for game, obs in played.items()}
    colour = frames.load("pong", LANES * 512, cache=cache, grayscale=False, img_height=210, img_width=160)
    found["pong 210x160x3"] = np.array(colour.obs[: min(steps, 512), 0])
    few = min(steps, 512)
    others = {"camera 96x96x3": camera(few), "photographs": photographs(few), "MuJoCo 96x96x3": rendered(few)}
    found |= {name: rows for name, rows in others.items() if len(rows)}
    found |= {f"vector {size}": vectors(size, steps) for size in (17, 376)}
    return found | {f"counts {size}": counts(size, steps) for size in (64, 256)}


def segments(steps: int) -> None:
    """Print, for each game and kind of frame, bytes a step, and times to append one and to take one in, by length."""
    from ale_py.vector_env import AtariVectorEnv

    for game in GAMES:
        for shape, settings in FRAMES.items():
            env: Any = AtariVectorEnv(game, num_envs=SEGMENT_LANES, stack_num=1, **settings)
            obs, _ = env.reset(seed=1)
            rng = np.random.default_rng(0)
            spec = sw.Spec(obs=sw.Field(shape, "uint8"), action=sw.Field((), "int64"))
            stores = {length: sw.Store(spec, capacity=100_000, segment_steps=length) for length in LENGTHS}
            learners = {length: sw.Store(spec, capacity=100_000, segment_steps=length) for length in LENGTHS}
            sealed: dict[int, list[sw.SealedSegment]] = {length: [] for length in LENGTHS}
            writers = {
                length: sw.SegmentWriter(spec, SEGMENT_LANES, some.append, segment_steps=length)
                for length, some in sealed.items()
            }
            spent = dict.fromkeys(stores, 0.0)
            for _ in range(steps // SEGMENT_LANES):
                action = rng.integers(0, int(env.single_action_space.n), SEGMENT_LANES)
                after, reward, terminated, truncated, _ = env.step(action)
                step = {
                    "obs": obs[:, 0], "action": action, "reward": reward, "terminated": terminated,
                    "truncated": truncated, "next_obs": after[:, 0],
                }  # fmt: skip
                for length, store in stores.items():
                    begin = time.process_time()
                    store.extend(**step)
                    spent[length] += time.process_time() - begin
                    writers[length].extend(**step)
                obs = after.copy()
            found = []
            for length, store in stores.items():
                stats = store.stats()
                encoded = stats["encoded_bytes_per_step"] + stats["bytes"]["index"] / len(store)
                begin = time.process_time()
                for one in sealed[length]:
                    learners[length].add_segment(one.packed, one.dictionaries)
                taken = 1e6 * (time.process_time() - begin) / max(1, len(learners[length]))
                found.append(
                    f"{length}: {encoded:.1f} B, {1e6 * spent[length] / steps:.1f} us, taken in {taken:.1f} us"
                )
            print(f"{game} {shape}: " + "; ".join(found), flush=True)


def played(name: str, dtype: str, steps: int) -> Any:
    """Return observations [steps, size] of random play."""
    import gymnasium as gym

    env: Any = gym.make(name)
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    rows = []
    for _ in range(steps):
        rows.append(obs.astype(dtype))
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    return np.stack(rows)


def transposed(column: Any) -> bytes:
    """Return a column's bytes, variable by variable, and in each first all first bytes, then all second ones."""
    values = np.ascontiguousarray(column.T).reshape(-1)
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T).tobytes()


def floats(steps: int) -> None:
    """Print what lossless codecs leave of each robot's observations."""
    import zstandard
    from pcodec import ChunkConfig, standalone

    compressor = zstandard.ZstdCompressor(level=1)
    ways: dict[str, Callable[[Any], bytes]] = {
        "zstd": lambda column: compressor.compress(column.tobytes()),
        "transposed + zstd": lambda column: compressor.compress(transposed(column)),
        "pcodec": lambda column: standalone.simple_compress(np.ascontiguousarray(column.T).reshape(-1), ChunkConfig()),
    }
    print("bytes a row, and microseconds to unpack a column (raw: to copy a row)")
    for name, dtype in SETS:
        rows = played(name, dtype, steps)
        columns = [rows[i : i + COLUMN] for i in range(0, len(rows), COLUMN)]
        found = [f"raw {rows[0].nbytes}"]
        for way, pack in ways.items():
            found.append(f"{way} {sum(len(pack(column)) for column in columns) / len(rows):.1f}")
        packed = ways["pcodec"](columns[0])
        found.append(f"pcodec unpacks in {least_us(partial(standalone.simple_decompress, packed)):.1f} us")
        found.append(f"raw {least_us(rows[0].copy):.1f} us")
        print(f"{name} {dtype}: " + ", ".join(found))


def least_us(call: Callable[[], Any]) -> float:
    """Return the least microseconds of 200 calls."""
    times = []
    for _ in range(200):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e6 * min(times)


# rows of any length


def bytes_read(spec: sw.Spec, steps: dict[str, Any], rows: list[Any], fields: tuple[str, ...] | None) -> int:
    """Return the bytes that batches of all steps read from disk."""
    with tempfile.TemporaryDirectory(prefix="sharpwave-ragged-") as folder:
        with sw.Store(spec, capacity=2 * ROWS, disk=folder) as store:
            store.add_episode(**steps, terminated=True, tokens=rows)
        with sw.Store.open(folder) as store:
            view = store.transitions()
            view.fetch(view.sampleable_ids(), fields=fields)
            return int(store.stats()["disk"]["bytes_read"])


def prompt_bytes(rows: list[Any], shared: bool, **where: Any) -> float:
    """Return the bytes of memory, or with ``disk=`` of files, of a step with one of ``rows`` as its prompt."""
    prompt, answer = sw.Field((None,), "int32", shared=shared), sw.Field((None,), "int32")
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), prompt=prompt, answer=answer)
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(len(rows)), ANSWERS)).tolist()
    with sw.Store(spec, capacity=2 * len(order), **where) as store:
        for at in order:
            values = {"prompt": rows[at], "answer": rows[at][:50]}
            store.append(obs=0, action=0, reward=0, terminated=True, truncated=False, **values)
        taken, disk = store.stats()["bytes"], store._log.disk
        if disk is not None:
            return float(sum(region.used for region in disk.regions.regions.values()) / len(order))
        return float(sum(taken.get(name, 0) for name in ("arena_used", "index", "shared_values")) / len(order))


def distinct_bytes(count: int) -> tuple[float, float]:
    """Return the bytes of memory, and of files, of each of ``count`` distinct shared values of a store on disk."""
    prompt = sw.Field((None,), "int32", shared=True)
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), prompt=prompt)
    rows = np.random.default_rng(0).integers(0, TOKENS, (count, 300)).astype(np.int32)
    with tempfile.TemporaryDirectory(prefix="sharpwave-ragged-") as folder:
        store = sw.Store(spec, capacity=2 * count, ram="64MiB", disk=folder)
        with store:
            for row in rows:
                store.append(obs=0, action=0, reward=0, terminated=True, truncated=False, prompt=row)
            found = store.stats()
            return found["bytes"]["shared_values"] / count, found["shared"]["prompt"]["bytes"] / count


def tokens(rounds: int, batch: int = 256) -> None:
    """Print bytes a token and speeds of a store and of arrays of objects, then bytes read and bytes of prompts."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, TOKENS, rng.integers(200, 2001)).astype(np.int32) for _ in range(ROWS)]
    spec = sw.Spec(obs=sw.Field((), "float32"), action=sw.Field((), "int64"), tokens=sw.Field((None,), "int32"))
    zeros = np.zeros(ROWS + 1, np.float32)
    steps: dict[str, Any] = {"obs": zeros, "action": np.zeros(ROWS, np.int64), "reward": zeros[1:]}
    stores: list[sw.Store] = []
    arrays = np.empty(ROWS, object)

    def write() -> None:
        stores[:] = [sw.Store(spec, capacity=2 * ROWS)]
        stores[0].add_episode(**steps, terminated=True, tokens=rows)

    def write_arrays() -> None:
        for i, row in enumerate(rows):
            arrays[i] = row.copy()

    def draw_arrays() -> None:
        chosen = arrays[rng.integers(0, ROWS, batch)]
        np.concatenate(chosen), np.cumsum([len(row) for row in chosen])

    def seconds(call: Callable[[], object], calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / calls

    times: list[list[float]] = []
    for _ in range(rounds):
        written = seconds(write, 1), seconds(write_arrays, 1)
        stores[0].stats()
        view = stores[0].transitions()
        view.sample(batch)
        times.append([*written, seconds(partial(view.sample, batch), 20), seconds(draw_arrays, 20)])
    median = np.median(times, axis=0).reshape(2, 2)
    log, mean = stores[0]._log, sum(map(len, rows)) / ROWS
    sealed = np.flatnonzero(log.index.sealed[: log.index.highest])
    assert (log.index.codec[log.layout.ragged_columns[0], sealed] == 6).all()
    nbytes = log.inventory.sealed_bytes / sum(len(row) for row in rows[: int(log.index.rows[sealed].sum())])
    columns = ("bytes a token", "rows/s written", "Mtokens/s", "rows/s drawn", "Mtokens/s")
    title = f"{ROWS:,} rows of {mean:,.0f} int32 tokens below {TOKENS:,}, batches of {batch}"
    shown = runner.table(title, "", *columns)
    for name, size, (write_s, draw_s) in zip(
        ("sharpwave", "object arrays"), (nbytes, 4 + 112 / mean), median.T, strict=True
    ):
        speeds = (
            text for one in (ROWS / write_s, batch / draw_s) for text in (f"{one:,.0f}", f"{one * mean / 1e6:,.0f}")
        )
        shown.add_row(name, f"{size:.2f}", *speeds)
    runner.console(120).print(shown)
    every, some = bytes_read(spec, steps, rows, None), bytes_read(spec, steps, rows, ("action",))
    print(f"all steps from disk: {every:,} bytes; fields=('action',): {some:,}, {some / every:.3f} of them")
    for shared in (False, True):
        with tempfile.TemporaryDirectory(prefix="sharpwave-ragged-") as folder:
            memory, files = prompt_bytes(rows[:100], shared), prompt_bytes(rows[:100], shared, disk=folder)
        text = f"{memory:,.0f} bytes a step in memory, {files:,.0f} on disk"
        print(f"{ANSWERS} answers a prompt, shared={shared}: {text}")
    memory, files = distinct_bytes(10 * ROWS)
    print(f"{10 * ROWS:,} distinct values: {memory:,.0f} bytes of memory each, cache included, {files:,.0f} on disk")


def main() -> None:
    """Run the command line."""
    parser = runner.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--out", type=Path, default=runner.RESULTS, help="folder of the results")
    parser.add_argument("--frames-cache", type=Path, default=frames.CACHE, help="folder for played frames")
    parser.add_argument("--segments", type=int, metavar="STEPS", help="segments of several lengths instead")
    parser.add_argument("--floats", type=int, metavar="STEPS", help="codecs of other libraries on vectors instead")
    parser.add_argument("--tokens", type=int, metavar="ROUNDS", help="rows of any length instead")
    arguments = parser.parse_args()
    for instead, rounds in ((segments, arguments.segments), (floats, arguments.floats), (tokens, arguments.tokens)):
        if rounds:
            return instead(rounds)
    steps, passes = (1024, 3) if arguments.quick else (8192, 7)
    results: dict[str, Any] = {}
    columns = ("raw bytes", "bytes", "of raw", "encode us", "decode us", "gather/s", "gather CPU us")
    title = "Codecs, columns of 128 steps (CPU: processor time)"
    shown = runner.table(title, "", "codec", *columns, left=("", "codec"))
    for name, rows in sources(steps, arguments.frames_cache).items():
        size = rows[0].nbytes
        for codec in CODECS:
            found = results.setdefault(name, {"raw_bytes": size})[codec] = measure(rows, codec, passes)
            times = (f"{found[key]:.2f}" for key in ("encode_us", "decode_us"))
            rest = (f"{found['gather_per_s']:,.0f}", f"{found['gather_cpu_us']:.2f}")
            share = f"{found['bytes'] / size:.1%}"
            shown.add_row(name, codec, f"{size:,}", f"{found['bytes']:,.0f}", share, *times, *rest)
        shown.add_section()
    runner.console(120).print(shown)
    runner.write(arguments.out / "codec_sizes.json", results)


if __name__ == "__main__":
    main()
