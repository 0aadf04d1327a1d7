// Overview of a source's content.
import { chart, color, dots, line } from "./chart.js";
import { nothing, thumbnails } from "./data.js";
import { bytes, card, duration, facts, flat, h, name, number, pairs, plain, several, smaller, table, whole } from "./dom.js";

const CURVE = 330; // pixels high

export async function show(context) {
  const told = await context.get("overview");
  const { memory, run } = told;
  const log = told.source.has_log ? await context.get("curve") : null;
  const root = h("div", { class: "grid" });
  if (told.source.trouble) root.append(h("div", { class: "note bad w12" }, told.source.trouble));
  root.append(card(null, "w12", headline(memory, run, log)));
  if (memory?.damage_count)
    root.append(
      h(
        "div",
        { class: "note bad w12" },
        `${whole(memory.damage_count)} damaged places are left out of these numbers; sharpwave verify names all. The first: `,
        name(memory.damages[0]),
      ),
    );
  if (log) root.append(...runCards(log, run, memory));
  if (memory) {
    root.append(
      extremes("Best episodes", memory.best, memory, context),
      extremes("Worst episodes", memory.worst, memory, context),
    );
    if (memory.history.return.length) root.append(stored(memory, context, log ? "w12" : "w12"));
    root.append(fields(memory), about(memory, run, context));
  } else if (!told.source.trouble)
    root.append(card("Replay memory", "w12", h("p", { class: "empty" }, nothing(told.source).message)));
  return { root };
}

function headline(memory, run, log) {
  const summary = run?.summary ?? {},
    reports = log?.reports,
    last = (column) => column?.findLast?.((one) => one !== null);
  const list = [];
  if (log) {
    list.push([whole(last(reports.steps) ?? last(log.episodes.steps)), "environment steps"]);
    const mean = last(log.episodes.mean_reward);
    if (mean !== undefined) list.push([number(mean), "mean of the last 100 returns"]);
    const held = (summary.final ?? summary.held_out)?.mean ?? last(log.evaluations.mean);
    if (held !== undefined && held !== null) list.push([number(held), "held-out mean"]);
    const minutes = last(reports.minutes);
    if (minutes !== undefined) list.push([duration(minutes * 60), "of training"]);
    const speed = last(reports.avg_fps);
    if (speed !== undefined && !summary.reason) list.push([whole(speed), "steps a second"]);
  }
  if (memory) {
    list.push(
      [whole(memory.steps), "steps stored"],
      [
        whole(memory.whole),
        memory.episodes === memory.whole ? "whole episodes" : `whole of ${whole(memory.episodes)} episodes`,
      ],
    );
    if (!log && memory.returns)
      list.push([number(memory.returns.mean), "mean return"], [number(memory.returns.max), "best return"]);
    if (memory.steps) list.push([number(memory.bytes.per_step, 3), "bytes a step, encoded"], smaller(memory));
  }
  return facts(...list);
}

export function curveChart(log, key, goal) {
  const { episodes, evaluations } = log;
  const held = evaluations.mean.length > 0;
  const label = key === "steps" ? "environment steps" : "minutes";
  return chart(
    CURVE,
    () => ({
      series: [
        { label, value: (_, value) => (value === null ? "–" : key === "steps" ? whole(value) : number(value)) },
        dots("episode", 0),
        line("mean of 100", 0, { width: 2.2 }),
        ...(held ? [dots("held-out mean", 1, { points: { show: true, size: 9, fill: color(1), width: 0 } })] : []),
        ...(goal === undefined ? [] : [line(`goal ${number(goal)}`, 5, { dash: [6, 5], width: 1.2 })]),
      ],
      axes: [{ label }, { label: "return" }],
    }),
    merged(episodes, evaluations, key, held, goal),
  );
}

function merged(episodes, evaluations, key, held, goal) {
  const rows = episodes[key].map((x, k) => [x, episodes.reward[k], episodes.mean_reward[k], null]);
  if (held) evaluations[key].forEach((x, k) => rows.push([x, null, null, evaluations.mean[k]]));
  rows.sort((a, b) => a[0] - b[0]);
  const columns = [0, 1, 2, ...(held ? [3] : [])].map((k) => rows.map((row) => row[k]));
  if (goal !== undefined) columns.push(rows.map(() => goal));
  return columns;
}

function runCards(log, run, memory) {
  const goal = run?.settings?.settings?.evaluation?.stop_reward;
  const wanted = Number.isFinite(goal) ? goal : undefined;
  const steps = curveChart(log, "steps", wanted),
    minutes = curveChart(log, "minutes", wanted);
  minutes.hidden = true;
  const choose = (event, one, other) => {
    one.hidden = false;
    other.hidden = true;
    one.plot?.setSize({ width: one.clientWidth, height: CURVE });
    for (const button of event.target.parentElement.children)
      button.setAttribute("aria-pressed", button === event.target);
  };
  const toggle = h(
    "div",
    { class: "right" },
    h(
      "button",
      { class: "button", "aria-pressed": "true", on: { click: (event) => choose(event, steps, minutes) } },
      "steps",
    ),
    h(
      "button",
      { class: "button", "aria-pressed": "false", on: { click: (event) => choose(event, minutes, steps) } },
      "minutes",
    ),
  );
  const cards = [
    card(
      ["Learning curve", toggle],
      "w8",
      log.episodes.steps.length ? [steps, minutes] : h("p", { class: "empty" }, "No episode has ended yet."),
    ),
  ];
  const { reports } = log;
  const metric = (title, key, index, format = number) =>
    reports[key].some((one) => one !== null)
      ? h(
          "div",
          {},
          h("h2", { class: "quiet small" }, title),
          chart(
            112,
            () => ({
              legend: { show: false },
              series: [{}, line(title, index)],
              axes: [{ size: 22 }, { size: 50, values: (_, ticks) => ticks.map((one) => format(one)) }],
            }),
            [reports.steps, reports[key]],
          ),
        )
      : null;
  const metrics = [
    metric("steps a second", "avg_fps", 2, (one) => number(one)),
    metric("loss, running mean", "avg_loss", 3),
    metric("epsilon", "epsilon", 4),
  ].filter(Boolean);
  if (metrics.length) cards.push(card("Progress", "w4", ...metrics));
  if (run?.summary?.reason)
    cards[0].append(h("p", { class: "small quiet" }, "Ended by ", plain(run.summary.reason), "."));
  return cards;
}

export function extremes(title, episodes, memory, context, width = "w6", source = context.state.source) {
  const field = memory.fields.find((one) => one.picture);
  const strips = episodes.map((episode) => {
    const href = context.link({ tab: "episode", source, lane: episode.lane, first: episode.first });
    const thumbs = field
      ? h(
          "div",
          { class: "thumbs" },
          thumbnails(source, { ...episode, store: memory.store.slice(0, 8) }, field, 7, 96, (canvas) => {
            canvas.style.setProperty("height", "58px");
            return canvas;
          }),
        )
      : sparkline(context, source, episode);
    return h(
      "a",
      { class: "strip", href },
      h(
        "div",
        {},
        h("b", {}, number(episode.return)),
        h("div", { class: "small quiet num" }, several(episode.length, "step")),
      ),
      thumbs,
    );
  });
  return card(
    title,
    width,
    strips.length ? h("div", { class: "strips" }, strips) : h("p", { class: "empty" }, "No episode is whole."),
  );
}

function sparkline(context, source, episode) {
  const canvas = h("canvas", { class: "line" });
  const draw = async () => {
    const { get } = await import("./data.js");
    const told = await get(`${source}/steps`, { lane: episode.lane, first: episode.first, end: 2000 }).catch(
      () => null,
    );
    const curves = told?.curves.filter((one) => one.name.startsWith("obs")).slice(0, 6) ?? [];
    if (!curves.length || !canvas.isConnected) return;
    Object.assign(canvas, { width: canvas.clientWidth * devicePixelRatio, height: 56 * devicePixelRatio });
    const pen = canvas.getContext("2d");
    pen.lineWidth = 1.3 * devicePixelRatio;
    curves.forEach((curve, index) => {
      const known = curve.values.filter((one) => one !== null),
        low = Math.min(...known),
        span = Math.max(...known) - low || 1;
      pen.strokeStyle = color(index);
      pen.beginPath();
      curve.values.forEach(
        (one, k) =>
          one !== null &&
          pen.lineTo(
            (k / Math.max(1, curve.values.length - 1)) * canvas.width,
            canvas.height * (0.94 - (0.88 * (one - low)) / span),
          ),
      );
      pen.stroke();
    });
  };
  requestAnimationFrame(draw);
  return canvas;
}

function stored(memory, context, width) {
  const { age, return: returns, length, lane, first } = memory.history;
  const x = age.map((one) => -one),
    oldest = Math.max(1, ...age);
  const place = chart(
    200,
    () => ({
      series: [
        { label: "steps ago", value: (_, value) => (value === null ? "–" : whole(-value)) },
        dots("return", 0, { points: { show: true, size: 5, width: 0, fill: color(0) } }),
      ],
      scales: { x: { range: [-1.02 * oldest, 0.02 * oldest] } },
      axes: [
        { label: "environment steps ago", values: (_, ticks) => ticks.map((one) => whole(Math.abs(one))) },
        { label: "return" },
      ],
      hooks: {
        ready: [
          (plot) =>
            plot.over.addEventListener("click", () => {
              const k = plot.cursor.idx;
              if (k !== null && k !== undefined) context.go({ tab: "episode", lane: lane[k], first: first[k] });
            }),
        ],
      },
    }),
    [x, returns, length],
  );
  return card(["Whole episodes in memory", h("span", { class: "quiet small" }, "click one to open it")], width, place);
}

function fields(memory) {
  return card(
    "Fields",
    "w7",
    table(
      [["field"], ["shape"], ["dtype"], ["stack", 1], ["codec"]],
      memory.fields.map((one) => [
        name(one.name),
        one.ragged ? `any${one.shape.slice(1).map((n) => `×${n}`).join("")}` : one.shape.join("×") || "()",
        one.dtype,
        one.stack ?? (one.every ? `every ${one.every}` : "–"),
        one.shared ? `${one.codec}, shared` : one.codec,
      ]).concat(
        memory.columns.map((one) => [
          name(one.name),
          one.shape.join("×") || "()",
          one.dtype,
          "–",
          h("span", { class: "quiet" }, "added later"),
        ]),
      ),
    ),
    memory.columns_trouble ? h("p", { class: "small bad-text" }, memory.columns_trouble) : null,
    memory.fields_hidden ? h("p", { class: "quiet small" }, `and ${memory.fields_hidden} more`) : null,
    memory.fields
      .filter((one) => Object.keys(one.metadata).length)
      .map((one) =>
        h("p", { class: "small" }, name(one.name), ": ", h("span", { class: "quiet name" }, plain(one.metadata))),
      ),
  );
}

function about(memory, run, context) {
  const limits = Object.entries(memory.limits)
    .filter(([, value]) => value !== null)
    .map(([key, value]) => [key, key === "ram" || key === "disk_limit" ? bytes(value) : whole(value)]);
  const annotations = flat(memory.annotations);
  const lanes = memory.lanes.filter((one) => Object.keys(one.annotations).length);
  const settings = run ? flat(run.settings.settings ?? {}) : [];
  return card(
    "About",
    "w5",
    pairs([
      ["path", h("span", { class: "name" }, context.source.path)],
      ["lanes", whole(memory.lane_count)],
      ["segments", `${whole(memory.segments)} of up to ${memory.segment_steps} steps`],
      ...(memory.deleted_steps ? [["deleted steps", `${whole(memory.deleted_steps)}, in segments with others`]] : []),
      ...limits,
      [
        "episodes' ends",
        Object.entries(memory.ends)
          .filter(([, count]) => count)
          .map(([end, count]) => `${whole(count)} ${end}`)
          .join(", ") || "–",
      ],
      ...annotations.map(([key, value]) => [h("bdi", {}, key), value]),
    ]),
    lanes.length
      ? h(
          "details",
          {},
          h("summary", {}, "annotations of lanes"),
          pairs(lanes.map((one) => [`lane ${one.lane}`, plain(one.annotations)])),
        )
      : null,
    settings.length
      ? h("details", {}, h("summary", {}, `settings of the run (${settings.length})`), pairs(settings))
      : null,
  );
}
