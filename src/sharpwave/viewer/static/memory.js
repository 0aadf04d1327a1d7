// Memory and disk by field, codec and file.
import { chart, color, line } from "./chart.js";
import { nothing } from "./data.js";
import { bytes, card, facts, h, name, number, smaller, table, whole } from "./dom.js";

// Steps between the ticks of an axis of bytes.
const POWERS = Array.from({ length: 50 }, (_, k) => 2 ** k);

export async function show(context) {
  const told = await context.get("overview"),
    { memory } = told;
  const log = told.source.has_log ? await context.get("curve") : null;
  const root = h("div", { class: "grid" });
  if (told.source.trouble) root.append(h("div", { class: "note bad w12" }, told.source.trouble));
  const last = (column) => column?.findLast((one) => one !== null);
  if (memory) root.append(...onDisk(memory, last(log?.reports.resident_segments)));
  if (log) root.append(...reported(log));
  if (!memory && !log) throw nothing(told.source);
  if (memory) {
    root.append(
      card(
        [
          "Region files",
          h(
            "span",
            { class: "quiet small" },
            memory.region_count > memory.regions.length
              ? `the newest ${memory.regions.length} of ${whole(memory.region_count)}`
              : "",
          ),
        ],
        "w6",
        table(
          [["file"], ["size", 1], ["used", 1], ["segments", 1], ["tails", 1], ["dictionaries", 1]],
          memory.regions.map((one) => [
            name(one.name),
            bytes(one.bytes),
            bytes(one.used),
            whole(one.segments),
            whole(one.tails),
            whole(one.dictionaries),
          ]),
        ),
      ),
      card(
        [
          "Lanes",
          h(
            "span",
            { class: "quiet small" },
            memory.lane_count > memory.lanes.length
              ? `the first ${memory.lanes.length} of ${whole(memory.lane_count)}`
              : "",
          ),
        ],
        "w6",
        table(
          [["lane"], ["steps", 1], ["first step", 1], ["last step", 1], ["missing between", 1]],
          memory.lanes.map((one) => [
            one.lane,
            whole(one.steps),
            whole(one.first_step),
            whole(one.last_step),
            one.missing ? whole(one.missing) : "–",
          ]),
        ),
      ),
    );
    if (memory.damage_count)
      root.append(
        card(
          `${whole(memory.damage_count)} damaged places`,
          "w12",
          h(
            "p",
            { class: "quiet small" },
            "They are left out of all numbers. sharpwave verify names all of them; sharpwave.Store.open restores what is intact.",
          ),
          h(
            "ul",
            {},
            memory.damages.map((one) => h("li", { class: "name small" }, one)),
          ),
        ),
      );
  }
  return { root };
}

function onDisk(memory, cached) {
  const { bytes: sizes, packed } = memory;
  const parts = [
    ...packed.map((one) => ({ ...one, label: one.name })),
    { label: "headers, tables, checksums", codec: "", bytes: sizes.overhead },
    { label: "dictionaries", codec: "", bytes: sizes.dictionaries },
    { label: "shared values in all files", codec: "", bytes: sizes.shared_values },
  ]
    .filter((one) => one.bytes)
    .sort((a, b) => b.bytes - a.bytes);
  const total = parts.reduce((sum, one) => sum + one.bytes, 0) || 1,
    shade = new Map(parts.map((one, index) => [one, index]));
  const stack = h(
    "div",
    { class: "stack" },
    parts.map((one) =>
      h("i", {
        title: `${one.label} ${one.codec}: ${bytes(one.bytes)}`,
        style: { width: `${(100 * one.bytes) / total}%`, background: color(shade.get(one)) },
      }),
    ),
  );
  const rows = parts.map((one) => [
    h("span", {}, h("i", { class: "key", style: { background: color(shade.get(one)) } }), name(one.label)),
    one.codec || "–",
    bytes(one.bytes),
    number(one.bytes / Math.max(1, memory.steps), 3),
    one.raw_bytes === undefined ? "–" : bytes(one.raw_bytes),
    one.raw_bytes === undefined ? "–" : `${number(one.raw_bytes / one.bytes, 3)}×`,
  ]);
  return [
    card(
      "Steps, encoded",
      "w12",
      facts(
        [bytes(sizes.segments), "encoded steps"],
        [number(sizes.per_step, 3), "bytes a step"],
        [bytes(sizes.raw), "as raw arrays"],
        memory.steps ? smaller(memory) : null,
        [bytes(sizes.used), "used in region files"],
        [bytes(sizes.files), "size of region files"],
        cached === undefined
          ? null
          : [
              `${whole(cached)} of ${whole(memory.segments)}`,
              "segments cached in memory",
              "as of the run's last report",
            ],
      ),
    ),
    card(
      "By field and codec",
      "w12",
      stack,
      table([["field"], ["codec"], ["bytes", 1], ["bytes a step", 1], ["raw", 1], ["smaller by", 1]], rows),
    ),
  ];
}

function reported(log) {
  const { reports } = log,
    has = (key) => reports[key]?.some((one) => one !== null);
  const plot = (lines, label, format) =>
    chart(
      190,
      () => ({
        series: [
          { label: "steps", value: (_, value) => (value === null ? "–" : whole(value)) },
          ...lines.map(([text], index) =>
            line(text, index, { value: (_, value) => (value === null ? "–" : format(value)) }),
          ),
        ],
        axes: [
          { label: "environment steps" },
          {
            label,
            size: label === "bytes" ? 74 : 64,
            incrs: label === "bytes" ? POWERS : undefined,
            values: (_, ticks) => ticks.map((one) => format(one)),
          },
        ],
      }),
      [reports.steps, ...lines.map(([, column]) => column)],
    );
  const cards = [];
  if (has("replay_bytes"))
    cards.push(
      card(
        "Memory of the run",
        "w6",
        plot(
          [
            ["replay memory", reports.replay_bytes],
            ...(has("process_bytes") ? [["whole process", reports.process_bytes]] : []),
            ...(has("bytes") ? [["on disk", reports.bytes]] : []),
          ],
          "bytes",
          bytes,
        ),
      ),
    );
  if (has("bytes_per_step"))
    cards.push(
      card(
        "Bytes a step, everything included",
        "w6",
        plot([["bytes a step", reports.bytes_per_step]], "", (one) => number(one)),
      ),
    );
  if (has("hits")) {
    const rate = change(reports.hits, reports.misses, (hits, misses) =>
      hits + misses ? (100 * hits) / (hits + misses) : null,
    );
    cards.push(
      card(
        "Hit rate of the cache",
        "w6",
        !rate.some((one) => one !== null)
          ? h("p", { class: "empty" }, "No batch was sampled yet.")
          : plot([["segments found in memory", rate]], "%", (one) => number(one)),
      ),
      card(
        "Stalls",
        "w6",
        plot([["batches that waited for the disk", reports.stalls]], "", (one) => whole(one)),
        h(
          "p",
          { class: "quiet small" },
          `${number(reports.waited_s.findLast((one) => one !== null))} s of waiting in all`,
        ),
      ),
    );
  } else if (has("replay_bytes"))
    cards.push(
      card(
        "Hit rate and stalls",
        "w12",
        h(
          "p",
          { class: "empty" },
          "This run keeps all of its memory in RAM, or was made by a release that did not log its disk tier: nothing is read from disk.",
        ),
      ),
    );
  return cards;
}

/** Combine the increases of two counters. */
function change(one, other, combine) {
  return one.map((value, k) =>
    k && value !== null && one[k - 1] !== null ? combine(value - one[k - 1], other[k] - other[k - 1]) : null,
  );
}
