// Two runs or stores side by side.
import { chart, dots, line, soft, stepped } from "./chart.js";
import { get, nothing } from "./data.js";
import { bytes, card, flat, h, name, number, several, table, whole } from "./dom.js";
import { extremes } from "./overview.js";

export async function show(context) {
  const { sources, state } = context;
  const root = h("div", { class: "grid" });
  if (sources.length < 2) {
    root.append(
      card(
        "Compare",
        "w12",
        h(
          "p",
          { class: "empty" },
          "Name two runs or stores, or a folder of them, to see them side by side: sharpwave view RUN OTHER. " +
            "A store is compared with its versions, which store.snapshot(NAME) makes.",
        ),
      ),
    );
    return { root };
  }
  const known = (id) => sources.some((one) => String(one.id) === id);
  const ids = [
    state.source,
    known(state.with) ? state.with : String(sources.find((one) => String(one.id) !== state.source).id),
  ];
  const sides = await Promise.all(
    ids.map(async (id) => {
      const told = await get(`${id}/overview`);
      return { id, told, log: told.source.has_log ? await get(`${id}/curve`) : null };
    }),
  );
  const choice = (place, key) =>
    h(
      "select",
      {
        "aria-label": `${place ? "second" : "first"} of the two`,
        on: { change: (event) => context.go({ [key]: event.target.value }) },
      },
      sources.map((one) => h("option", { value: one.id, selected: String(one.id) === ids[place] }, one.name)),
    );
  const differ = sides.every(({ told }) => told.memory)
    ? await get(`${ids[0]}/differences`, { with: ids[1] }).catch((error) => ({ error }))
    : null;
  const key = state.by === "minutes" ? "minutes" : "steps";
  const by = (one) =>
    h(
      "button",
      {
        class: "button",
        "aria-pressed": String(one === key),
        on: { click: () => context.go({ by: one === "steps" ? null : one }) },
      },
      one,
    );
  root.append(
    h("div", { class: "title w12" }, choice(0, "source"), h("span", { class: "quiet" }, "beside"), choice(1, "with")),
  );
  if (sides.some((one) => one.log?.episodes.steps.length))
    root.append(
      card(["Learning curves", h("div", { class: "right" }, by("steps"), by("minutes"))], "w12", curves(sides, key)),
    );
  root.append(card("Numbers", "w12", numbers(sides)));
  if (differ?.error) root.append(h("div", { class: "note bad w12" }, differ.error.message));
  if (differ?.histogram) root.append(card("Returns of whole episodes", "w12", returns(sides, differ.histogram)));
  if (differ?.same_store) root.append(...differ.only.map((one, side) => only(context, sides, side, one, differ.both)));
  for (const { id, told } of sides) {
    const title = (text) => [h("span", {}, text, " – ", name(told.source.name))];
    root.append(
      told.memory
        ? extremes(title("Best episodes"), told.memory.best, told.memory, context, "w6", id)
        : card(title("Best episodes"), "w6", h("p", { class: "empty" }, nothing(told.source).message)),
    );
  }
  const [first, second] = sides.map(({ told }) => new Map(flat(told.run?.settings?.settings ?? {})));
  const settings = [...new Set([...first.keys(), ...second.keys()])].filter(
    (setting) => first.get(setting) !== second.get(setting),
  );
  if (first.size || second.size)
    root.append(
      card(
        "Settings that differ",
        "w12",
        settings.length
          ? table(
              [["setting"], [sides[0].told.source.name], [sides[1].told.source.name]],
              settings.map((setting) => [name(setting), first.get(setting) ?? "–", second.get(setting) ?? "–"]),
            )
          : h("p", { class: "quiet" }, "None."),
      ),
    );
  return { root };
}

/** Histograms of two sources' returns in one picture. */
function returns(sides, { edges, counts }) {
  const x = edges,
    values = counts.map((one) => [...one, one[one.length - 1]]); // the last step is as wide as its bin
  const bin = (k) => (k === null ? "–" : `${number(edges[k])} to ${number(edges[Math.min(k + 1, edges.length - 1)])}`);
  return chart(
    240,
    () => ({
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
      series: [
        { label: "return", value: (_, value, __, k) => bin(k) },
        ...sides.map(({ told }, side) =>
          line(told.source.name, side, {
            paths: stepped,
            fill: soft(side, 18),
            value: (_, value) => (value === null ? "–" : whole(value)),
          }),
        ),
      ],
      axes: [{ label: "return" }, { label: "episodes" }],
    }),
    [x, ...values],
  );
}

/** Episodes that only one of two versions of a store has. */
function only(context, sides, side, { total, steps, rows }, both) {
  const { id, told } = sides[side];
  return card(
    [
      h("span", {}, "Only in ", name(told.source.name)),
      h("span", { class: "quiet small num" }, `${several(total, "episode")}, ${several(steps, "step")}; ${whole(both)} in both`),
    ],
    "w6",
    total
      ? h(
          "div",
          { class: "only" },
          table(
            [["#", 1], ["return", 1], ["length", 1], ["lane", 1], ["end"]],
            rows.map((row) => [
              h(
                "a",
                { href: context.link({ tab: "episode", source: id, lane: row.lane, first: row.first }) },
                whole(row.number),
              ),
              number(row.return, 4),
              whole(row.length),
              row.lane,
              h("span", { class: "tag" }, row.begun ? row.end : `${row.end}, begin evicted`),
            ]),
          ),
          total > rows.length ? h("p", { class: "quiet small" }, `the newest ${rows.length}`) : null,
        )
      : h("p", { class: "empty" }, "None."),
  );
}

function curves(sides, key) {
  const rows = [];
  sides.forEach(({ log }, side) => {
    if (!log) return;
    const row = (x, values) => {
      const made = [x, null, null, null, null, null, null];
      values.forEach((value, k) => {
        made[1 + 3 * side + k] = value;
      });
      rows.push(made);
    };
    log.episodes[key].forEach(
      (x, k) => x !== null && row(x, [log.episodes.reward[k], log.episodes.mean_reward[k], null]),
    );
    log.evaluations[key].forEach((x, k) => x !== null && row(x, [null, null, log.evaluations.mean[k]]));
  });
  rows.sort((a, b) => a[0] - b[0]);
  return chart(
    320,
    () => ({
      series: [
        { label: key, value: (_, value) => (value === null ? "–" : number(value, 4)) },
        ...sides.flatMap(({ told }, side) => [
          dots(`${told.source.name}: episode`, side),
          line(`${told.source.name}: mean of 100`, side, { width: 2.2 }),
          dots(`${told.source.name}: held-out`, side, { points: { show: true, size: 9, width: 2, fill: undefined } }),
        ]),
      ],
      axes: [{ label: key === "steps" ? "environment steps" : "minutes" }, { label: "return" }],
    }),
    [0, 1, 2, 3, 4, 5, 6].map((k) => rows.map((one) => one[k])),
  );
}

function numbers(sides) {
  const last = (column) => column?.findLast((one) => one !== null) ?? null;
  const rows = [
    ["environment steps", whole, ({ log }) => last(log?.reports.steps)],
    ["minutes of training", number, ({ log }) => last(log?.reports.minutes)],
    ["mean of the last 100 returns", number, ({ log }) => last(log?.episodes.mean_reward)],
    ["held-out mean", number, ({ told, log }) => (told.run?.summary?.final ?? told.run?.summary?.held_out)?.mean ?? last(log?.evaluations.mean)],
    ["updates", whole, ({ log }) => last(log?.reports.updates)],
    ["steps a second", whole, ({ log }) => last(log?.reports.avg_fps)],
    ["steps in memory", whole, ({ told }) => told.memory?.steps ?? null],
    ["episodes in memory", whole, ({ told }) => told.memory?.episodes ?? null],
    ["whole episodes in memory", whole, ({ told }) => told.memory?.whole ?? null],
    ["mean return in memory", number, ({ told }) => told.memory?.returns?.mean ?? null],
    ["best return in memory", number, ({ told }) => told.memory?.returns?.max ?? null],
    ["mean length in memory", number, ({ told }) => told.memory?.lengths?.mean ?? null],
    ["bytes a step, encoded", number, ({ told }) => told.memory?.bytes.per_step ?? null],
    ["encoded steps", bytes, ({ told }) => told.memory?.bytes.segments ?? null],
    ["smaller than raw by", number, ({ told }) => told.memory?.bytes.ratio ?? null],
    ["columns added later", (text) => (text === null ? "–" : name(text)), ({ told }) => told.memory?.columns.map((one) => one.name).join(", ") || null],
  ];
  const filled = rows
    .map(([label, format, value]) => [label, format, ...sides.map(value)])
    .filter(([, , a, b]) => a !== null || b !== null);
  return table(
    [[""], [sides[0].told.source.name, 1], [sides[1].told.source.name, 1], ["ratio", 1]],
    filled.map(([label, format, a, b]) => [label, format(a), format(b), a > 0 && b > 0 ? number(b / a, 3) : "–"]),
  );
}
