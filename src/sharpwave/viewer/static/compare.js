// Two runs or stores side by side.
import { chart, dots, line } from "./chart.js";
import { get, nothing } from "./data.js";
import { bytes, card, flat, h, name, number, table, whole } from "./dom.js";
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
          "Name two runs or stores, or a folder of them, to see them side by side: sharpwave view RUN OTHER",
        ),
      ),
    );
    return { root };
  }
  const given = Number(state.with ?? NaN);
  const ids = [
    state.source,
    Number.isInteger(given) && sources[given] ? given : sources.findIndex((one) => one.id !== state.source),
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
      sources.map((one) => h("option", { value: one.id, selected: one.id === ids[place] }, one.name)),
    );
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
  for (const { id, told } of sides) {
    const title = (text) => [h("span", {}, text, " – ", name(told.source.name))];
    root.append(
      told.memory
        ? extremes(title("Best episodes"), told.memory.best, told.memory, context, "w6", id)
        : card(title("Best episodes"), "w6", h("p", { class: "empty" }, nothing(told.source).message)),
    );
  }
  const [one, other] = sides.map(({ told }) => new Map(flat(told.run?.settings?.settings ?? {})));
  const differ = [...new Set([...one.keys(), ...other.keys()])].filter(
    (setting) => one.get(setting) !== other.get(setting),
  );
  if (one.size || other.size)
    root.append(
      card(
        "Settings that differ",
        "w12",
        differ.length
          ? table(
              [["setting"], [sides[0].told.source.name], [sides[1].told.source.name]],
              differ.map((setting) => [name(setting), one.get(setting) ?? "–", other.get(setting) ?? "–"]),
            )
          : h("p", { class: "quiet" }, "None."),
      ),
    );
  return { root };
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
    ["whole episodes in memory", whole, ({ told }) => told.memory?.whole ?? null],
    ["mean return in memory", number, ({ told }) => told.memory?.returns?.mean ?? null],
    ["best return in memory", number, ({ told }) => told.memory?.returns?.max ?? null],
    ["mean length in memory", number, ({ told }) => told.memory?.lengths?.mean ?? null],
    ["bytes a step, encoded", number, ({ told }) => told.memory?.bytes.per_step ?? null],
    ["encoded steps", bytes, ({ told }) => told.memory?.bytes.segments ?? null],
    ["smaller than raw by", number, ({ told }) => told.memory?.bytes.ratio ?? null],
  ];
  const filled = rows
    .map(([label, format, value]) => [label, format, ...sides.map(value)])
    .filter(([, , a, b]) => a !== null || b !== null);
  return table(
    [[""], [sides[0].told.source.name, 1], [sides[1].told.source.name, 1], ["ratio", 1]],
    filled.map(([label, format, a, b]) => [label, format(a), format(b), a > 0 && b > 0 ? number(b / a, 3) : "–"]),
  );
}
