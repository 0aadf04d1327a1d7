// Sampling of a view: priorities, TD errors against age, times sampled.
import { chart, histogram, line, soft } from "./chart.js";
import { nothing } from "./data.js";
import { card, duration, facts, h, name, number, pairs, whole } from "./dom.js";

export async function show(context) {
  const { memory, source } = await context.get("overview");
  if (!memory) throw nothing(source);
  const root = h("div", { class: "grid" });
  const { views } = memory;
  if (memory.checkpoint_trouble) root.append(h("div", { class: "note bad w12" }, memory.checkpoint_trouble));
  if (!views.length) {
    root.append(
      card(
        "Priorities",
        "w12",
        h(
          "p",
          { class: "empty" },
          "Priorities are saved with checkpoints, and no checkpoint here has a view. A store keeps them with store.checkpoint(...); a run, every --checkpoint-every steps.",
        ),
      ),
    );
    return { root };
  }
  const chosen = Math.min(Number(context.state.view ?? 0) || 0, views.length - 1),
    view = views[chosen];
  const told = await context.get("priorities", { view: chosen });
  const choice =
    views.length > 1
      ? h(
          "select",
          { "aria-label": "view", on: { change: (event) => context.go({ view: event.target.value }) } },
          views.map((one, index) => h("option", { value: index, selected: index === chosen }, one.name)),
        )
      : null;
  const untried =
    told.at_largest === undefined
      ? null
      : [
          `${whole((100 * told.at_largest) / Math.max(1, told.items))} %`,
          "at the largest priority",
          "New items get the largest priority so far: most of these were not sampled yet. They are left out of the charts.",
        ];
  root.append(
    card(
      [
        name(`View “${view.name}”`),
        choice,
        h(
          "span",
          { class: "quiet small right" },
          memory.checkpoint_age_s === null ? "" : `as of the checkpoint ${duration(memory.checkpoint_age_s)} ago`,
        ),
      ],
      "w12",
      facts(
        [whole(told.items), told.span > 1 ? `windows, one each ${told.span} steps` : "items in memory"],
        [whole(told.samples), "samples drawn"],
        [number(told.samples / Math.max(1, told.inserts), 3), "samples a step inserted"],
        untried,
        told.share ? [`${number(100 * told.share["0.01"], 3)} %`, "of draws go to the top 1 %"] : null,
        told.share ? [`${number(100 * told.share["0.1"], 3)} %`, "to the top 10 %"] : null,
        told.largest ? [number(told.largest), "largest priority so far"] : null,
      ),
    ),
  );
  if (told.priority)
    root.append(card("Priorities", "w6", histogram(told.priority, "priority, before the power alpha", 0, 260)));
  if (told.td_error)
    root.append(
      card(
        ["TD error against age", h("span", { class: "quiet small" }, "median, quartiles, 5 % to 95 %")],
        "w6",
        quantiles(told.td_error, "|TD error|", 3),
      ),
    );
  if (told.times_sampled)
    root.append(
      card("Times sampled", "w6", histogram(told.times_sampled, `times, of at most ${told.max_times_sampled}`, 2, 260)),
      card("Times sampled against age", "w6", quantiles(told.uses_by_age, "times sampled", 2)),
    );
  if (!told.priority)
    root.append(
      card(
        "Priorities",
        told.times_sampled ? "w12" : "w6",
        h(
          "p",
          { class: "empty" },
          told.at_largest
            ? "No item was sampled yet: all have the same priority."
            : `This view draws by ${view.sampler}, which has no priorities.`,
        ),
      ),
    );
  if (!told.times_sampled)
    root.append(
      card(
        "Times sampled",
        told.priority ? "w12" : "w6",
        h(
          "p",
          { class: "empty" },
          "A store counts samples of each item only if max_times_sampled limits them; this view has no limit. On average each step inserted was sampled ",
          number(told.samples / Math.max(1, told.inserts), 3),
          " times.",
        ),
      ),
    );
  root.append(card("Settings", "w12", pairs([["sampler", view.sampler], ...Object.entries(view.settings)])));
  return { root };
}

function quantiles(told, label, index) {
  const x = told.age.map((one) => -one).reverse(),
    [low, first, median, third, high] = told.quantiles.map((one) => [...one].reverse());
  return chart(
    260,
    () => ({
      series: [
        { label: "steps ago", value: (_, value) => (value === null ? "–" : whole(-value)) },
        line("5 %", index, { width: 0, stroke: "transparent" }),
        line("25 %", index, { width: 0, stroke: "transparent" }),
        line("median", index, { width: 2 }),
        line("75 %", index, { width: 0, stroke: "transparent" }),
        line("95 %", index, { width: 0, stroke: "transparent" }),
      ],
      bands: [
        { series: [5, 1], fill: soft(index, 14) },
        { series: [4, 2], fill: soft(index, 26) },
      ],
      axes: [
        {
          label: "environment steps ago (newest at the right)",
          values: (_, ticks) => ticks.map((one) => whole(Math.abs(one))),
        },
        { label },
      ],
    }),
    [x, low, first, median, third, high],
  );
}
