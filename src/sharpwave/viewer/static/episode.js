// One episode, step by step: its frame, all values, and curves with a common cursor.
import { chart, color, line, marker, stepped, synchronized } from "./chart.js";
import { Frames, thumbnails } from "./data.js";
import { card, h, name, number, pairs, plain, several, whole } from "./dom.js";
import { listed } from "./episodes.js";

const SHEET = 18,
  MOST_POINTS = 4000,
  FOLDED = 900, // characters
  FOLDED_LINES = 10,
  WHOLE = Array.from({ length: 36 }, (_, k) => [1, 2, 5][k % 3] * 10 ** Math.floor(k / 3)); // between ticks

/** Whether there is a single value, of which no line is drawn. */
const lone = (values) => values.filter((one) => one !== null).length === 1;

export async function show(context) {
  const { state, link, go } = context,
    source = state.source;
  if (state.lane === undefined || state.first === undefined) {
    const { rows } = await context.get("episodes", { sort: "return", desc: 1, whole: 1, limit: 1 });
    const [best] = rows.length ? rows : (await context.get("episodes", { limit: 1, desc: 1 })).rows;
    if (!best) throw new Error("No episode yet.");
    go({ lane: best.lane, first: best.first }, { replace: true, quiet: true });
    Object.assign(state, { lane: best.lane, first: best.first });
  }
  const hasPolicy = !["store", "version"].includes(context.source?.kind);
  const of = { lane: state.lane, first: state.first };
  const order = { ...listed(state), desc: state.desc ?? "1" };
  const begin = state.begin === undefined ? 0 : Number(state.begin);
  const episode = await context.get("episode", { ...of, ...order });
  const end = Math.min(state.end === undefined ? episode.length : Number(state.end), episode.length);
  const [curves, { memory }] = await Promise.all([
    context.get("steps", { ...of, begin, end }).catch((error) => ({ error })),
    context.get("overview"),
  ]);
  Object.assign(episode, { store: memory.store.slice(0, 8) });
  const last = episode.frames - 1;
  let step = Math.max(0, Math.min(Number(state.step ?? begin) || 0, last)),
    playing = null,
    asked = -1,
    speed = Number(state.speed ?? 15) || 15;

  const field = episode.pictures.find((one) => String(one.number) === state.field) ?? episode.pictures[0];
  const canvas = h("canvas", { class: "pixel", role: "img", "aria-label": "frame" });
  const frames = field ? new Frames(source, episode, field, () => field && frames.draw(canvas, step)) : null;
  const slider = h("input", {
    type: "range",
    min: 0,
    max: last,
    value: step,
    "aria-label": "step",
    on: { input: () => to(Number(slider.value)) },
  });
  const at = h("span", { class: "at" });
  const values = h("div", { class: "values" });
  const rows = h("div", { class: "rows-of-step" });
  const ragged = memory.fields.some((one) => one.ragged);
  const play = h("button", { class: "button", title: "play, pause (space)", on: { click: () => toggle() } }, "▶");
  const speeds = h(
    "select",
    {
      "aria-label": "steps a second",
      title: "steps a second",
      on: {
        change: () => {
          speed = Number(speeds.value);
          go({ speed }, { replace: true, quiet: true });
          if (playing) {
            toggle();
            toggle();
          }
        },
      },
    },
    [5, 15, 30, 60].map((one) => h("option", { value: one, selected: one === speed }, `${one}/s`)),
  );
  const pictures =
    episode.pictures.length > 1
      ? h(
          "select",
          { "aria-label": "which picture", on: { change: (event) => go({ field: event.target.value, step }) } },
          episode.pictures.map((one) => h("option", { value: one.number, selected: one === field }, one.name)),
        )
      : null;

  let sheet = null;
  if (field) {
    sheet = h(
      "div",
      { class: "sheet", style: { "--cell": field.picture.width > 1.5 * field.picture.height ? "120px" : "84px" } },
      thumbnails(source, episode, field, SHEET, 128, (canvas, step) =>
        h(
          "button",
          { title: `step ${step}`, "data-step": step, on: { click: () => to(step) } },
          canvas,
          h("span", {}, step === episode.length ? "final" : whole(step)),
        ),
      ),
    );
  }

  const groups = new Map();
  for (const curve of curves.curves ?? []) {
    const key =
      curve.label.startsWith("priority") ||
      curve.label.startsWith("TD error") ||
      curve.label.startsWith("times sampled")
        ? curve.label
        : curve.name;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(curve);
  }
  const late = new Set((curves.curves ?? []).filter((one) => one.late).map((one) => one.name)); // columns added later
  const RANK = (key) =>
    key === "reward"
      ? 0
      : late.has(key)
        ? 0.5
      : key === "action"
        ? 1
        : key.startsWith("Q") || key.startsWith("value")
          ? 2
          : key.startsWith("TD")
            ? 3
            : key.startsWith("priority")
              ? 4
              : key.startsWith("obs")
                ? 9
                : 6;
  const names = [...groups.keys()].sort((a, b) => RANK(a) - RANK(b)); // a curve's index in it is its number in the URL
  const further = new Set((memory.views ?? []).slice(1).map((one) => `(${one.name})`)); // views but the first: on request
  const off = new Set(
    state.off === undefined
      ? names
          .map((key, place) => (further.has(key.slice(key.lastIndexOf("("))) ? place : -1))
          .filter((place) => place >= 0)
      : state.off.split(",").filter(Boolean).map(Number),
  );
  const charts = [];
  const stack = h("div", {});
  const drawStack = () => {
    charts.length = 0;
    stack.replaceChildren(
      ...names
        .map((key, place) => [key, place])
        .filter(([, place]) => !off.has(place))
        .sort(([a], [b]) => RANK(a) - RANK(b))
        .map(([key, place]) =>
          h("div", { class: "curve" }, h("h2", { class: "quiet small" }, name(key)), plot(key, place)),
        ),
    );
    if (!stack.children.length) stack.append(h("p", { class: "empty" }, "No curve is chosen."));
  };
  function plot(key, place) {
    const group = groups.get(key),
      gaps = key === "reward" || late.has(key),
      whole_numbers =
        key === "action" &&
        group.every((one) => one.values.every((value) => value === null || Number.isInteger(value)));
    const one = chart(
      group.length > 1 ? 150 : 104,
      () => ({
        series: [
          { label: "step", value: (_, value) => (value === null ? "–" : whole(value)) },
          ...group.map((curve, index) =>
            line(curve.label, group.length > 1 ? index : place, {
              paths: whole_numbers ? stepped : undefined,
              width: group.length > 1 ? 1.4 : 1.6,
              spanGaps: !gaps,
              ...((late.has(key) && curve.values.includes(null)) || lone(curve.values)
                ? { points: { show: true, size: 5, width: 0, fill: color(group.length > 1 ? index : place) } }
                : {}),
            }),
          ),
        ],
        scales: end - begin === 1 ? { x: { range: [begin - 0.5, begin + 0.5] } } : {},
        axes: [{ size: 24, incrs: WHOLE }, { space: 18 }],
        legend: { show: true },
        cursor: {
          sync: { key: synchronized("episode").key, setSeries: false },
          drag: { x: true, y: false, setScale: false },
        },
        plugins: [marker(() => step)],
        hooks: {
          setSelect: [
            (plot) => {
              if (plot.select.width < 6) return;
              const low = Math.round(plot.posToVal(plot.select.left, "x")),
                high = Math.round(plot.posToVal(plot.select.left + plot.select.width, "x"));
              if (high > low + 1) go({ begin: Math.max(0, low), end: high + 1, step });
            },
          ],
          ready: [
            (plot) => {
              let pressed = 0;
              plot.over.addEventListener("mousedown", (event) => {
                pressed = event.clientX;
              });
              plot.over.addEventListener("click", (event) => {
                if (Math.abs(event.clientX - pressed) < 4) to(Math.round(plot.posToVal(plot.cursor.left, "x")));
              });
              plot.over.addEventListener("dblclick", () => go({ begin: null, end: null, step }));
            },
          ],
        },
      }),
      [curves.step, ...group.map((curve) => curve.values)],
    );
    charts.push(one);
    return one;
  }
  const chip = (key, place) =>
    h(
      "button",
      {
        class: "chip",
        "aria-pressed": String(!off.has(place)),
        on: {
          click: (event) => {
            off.has(place) ? off.delete(place) : off.add(place);
            event.target.setAttribute("aria-pressed", String(!off.has(place)));
            go({ off: [...off].join(",") || "none" }, { replace: true, quiet: true });
            drawStack();
          },
        },
      },
      key,
    );
  const chips = h("div", { class: "chips" }, names.map(chip));
  if (!curves.error) drawStack();

  let told = null,
    waiting = false;
  async function tell() {
    if (waiting) return;
    waiting = true;
    while (asked !== step) {
      asked = step;
      try {
        told = step >= episode.length ? { final: true } : await context.get("step", { ...of, step });
      } catch (error) {
        told = { error };
      }
      if (told.error) values.replaceChildren(h("p", { class: "empty" }, told.error.message));
      else if (told.final)
        values.replaceChildren(
          h("p", { class: "quiet small" }, "The final observation: it has no action and no reward."),
        );
      else {
        const long = (one) => one.text.length > 40,
          rank = (one) => 20 * long(one) + RANK(one.name);
        const ordered = [...told.values.filter((one) => !one.unit), ...extra()].sort((a, b) => rank(a) - rank(b));
        values.replaceChildren(pairs(ordered.map((one) => [h("bdi", {}, one.name), one.text])));
      }
      rows.replaceChildren(...(told.values ?? []).filter((one) => one.unit).map(row));
      if (playing) await new Promise((done) => setTimeout(done, 90));
    }
    waiting = false;
  }
  const unfolded = new Set();
  /** A row of any length: a text, bytes or numbers; a long one is folded. */
  function row(one) {
    const text = one.decoded ?? one.text;
    const long = text.length > FOLDED || text.split("\n").length > FOLDED_LINES;
    const verbs = long ? ["unfold", "fold"] : ["show", "hide"];
    const mono = one.unit === "characters" || one.decoded !== undefined ? "" : "mono";
    const content = h("div", { class: `row-text ${mono}`, dir: "auto" }, text);
    const ids = one.decoded === undefined ? null : h("div", { class: "row-text mono quiet" }, one.text); // when unfolded
    const fold = h("button", {
      class: "button small",
      on: {
        click: () => {
          unfolded.has(one.name) ? unfolded.delete(one.name) : unfolded.add(one.name);
          folding();
        },
      },
    });
    const folding = () => {
      const folded = !unfolded.has(one.name);
      content.classList.toggle("folded", long && folded);
      if (ids) ids.hidden = folded;
      fold.setAttribute("aria-expanded", String(!folded));
      fold.textContent = `${verbs[Number(!folded)]}${ids ? (long ? ", with ids" : " ids") : ""}`;
    };
    folding();
    const shown = one.left_out ? `, the first ${whole(one.count - one.left_out)} shown` : "";
    return h(
      "div",
      { class: "row-field" },
      h(
        "div",
        { class: "head" },
        name(one.name),
        h("span", { class: "quiet small num" }, `${whole(one.count)} ${one.unit}${shown}`),
        one.count && (long || ids) ? fold : null,
      ),
      one.count ? content : null,
      one.count ? ids : null,
    );
  }
  function extra() {
    if (!curves.exact) return [];
    const at = step - begin,
      each = valued?.each?.[at];
    return [
      ...names
        .filter((key) => /^(Q-values|priority|TD error|times sampled)/.test(key))
        .flatMap((key) => groups.get(key))
        .map((one) => ({ name: one.label, text: number(one.values[at], 4) })),
      ...(each ? [{ name: "Q of each action", text: each.map((one) => number(one, 4)).join(" · ") }] : []),
    ];
  }

  const wanted = state.values === "1" && hasPolicy;
  const valuesNote = h("p", { class: "quiet small values-note", role: "status" });
  let valued = null,
    left = false;
  async function value() {
    while (!left) {
      const found = await context
        .get("values", { ...of, begin, end })
        .catch((error) => ({ state: "none", why: error.message }));
      if (left) return;
      if (found.state === "computing") {
        valuesNote.textContent = "Q-values are being computed ...";
        await new Promise((done) => setTimeout(done, 400));
        continue;
      }
      if (found.state === "none") {
        valuesNote.textContent = `No Q-values: ${found.why}`;
        return;
      }
      valuesNote.textContent = `Q-values by the policy saved after ${whole(found.saved_after)} steps`;
      valued = found;
      for (const curve of found.curves) {
        if (!groups.has(curve.name)) {
          groups.set(curve.name, []);
          chips.append(chip(curve.name, names.push(curve.name) - 1));
        }
        groups.get(curve.name).push(curve);
      }
      drawStack();
      asked = -1;
      tell();
      return;
    }
  }

  let noted = 0;
  function to(next) {
    step = Math.max(0, Math.min(next, last));
    slider.value = step;
    at.textContent = step === episode.length ? "final observation" : `step ${whole(step)} of ${whole(episode.length)}`;
    frames?.draw(canvas, step);
    for (const one of charts) one.plot?.redraw(false);
    if (sheet) {
      const buttons = [...sheet.children];
      const now = buttons.findLast((one) => Number(one.dataset.step) <= step);
      for (const one of buttons) one.classList.toggle("now", one === now);
    }
    tell();
    clearTimeout(noted);
    noted = setTimeout(() => go({ step }, { replace: true, quiet: true }), 150);
  }
  function toggle() {
    if (playing) {
      clearInterval(playing);
      playing = null;
      play.textContent = "▶";
      return;
    }
    if (step >= last) to(0);
    play.textContent = "⏸";
    playing = setInterval(() => {
      if (step >= last) toggle();
      else to(step + 1);
    }, 1000 / speed);
  }

  const list = link({ tab: "episodes", ...listed(state) });
  const neighbour = (one) => one && link({ lane: one.lane, first: one.first, step: null, begin: null, end: null });
  const move = (label, one, title) =>
    h("a", { class: "button", href: neighbour(one) ?? undefined, "aria-disabled": String(!one), title }, label);
  const zoomed = begin > 0 || end < episode.length;
  const root = h(
    "div",
    {},
    h(
      "div",
      { class: "title" },
      h("a", { href: list }, "Episodes"),
      h("span", { class: "quiet" }, "/"),
      h("h1", {}, `Episode ${episode.number}`),
      h(
        "span",
        { class: "quiet num" },
        `return ${number(episode.return, 5)} · ${several(episode.length, "step")} · lane ${episode.lane} · ${episode.end}${episode.begun ? "" : ", beginning evicted"} · ${several(episode.age, "step")} ago`,
      ),
      h(
        "span",
        { class: "right" },
        move("← previous", episode.previous, "previous of the list ([)"),
        move("next →", episode.next, "next of the list (])"),
      ),
    ),
    h(
      "div",
      { class: "player" },
      h(
        "div",
        { class: "left" },
        h(
          "section",
          { class: "card" },
          field ? h("div", { class: "stage" }, canvas) : null,
          slider,
          h("br"),
          h(
            "div",
            { class: "controls" },
            h("button", { class: "button", title: "back (←)", on: { click: () => to(step - 1) } }, "‹"),
            play,
            h("button", { class: "button", title: "on (→)", on: { click: () => to(step + 1) } }, "›"),
            speeds,
            pictures,
            at,
          ),
        ),
        card(
          "At this step",
          "",
          values,
          Object.keys(episode.annotations).length
            ? h(
                "details",
                {},
                h("summary", {}, "annotations of the episode"),
                pairs(
                  Object.entries(episode.annotations)
                    .slice(0, 40)
                    .map(([key, value]) => [h("bdi", {}, key), plain(value)]),
                ),
              )
            : null,
        ),
      ),
      h(
        "div",
        {},
        sheet ? card("Contact sheet", "", sheet) : null,
        sheet ? h("br") : null,
        ragged ? card("Text and rows of this step", "", rows) : null,
        ragged ? h("br") : null,
        card(
          [
            "Curves",
            h(
              "div",
              { class: "right" },
              !hasPolicy
                ? null
                : h(
                    "button",
                    {
                      class: "button",
                      "aria-pressed": String(wanted),
                      title: "Q-values of these steps by the run's newest policy",
                      on: { click: () => go({ values: wanted ? null : 1, step }) },
                    },
                    "Q-values",
                  ),
              zoomed
                ? h(
                    "button",
                    { class: "button", on: { click: () => go({ begin: null, end: null, step }) } },
                    `steps ${whole(begin)} – ${whole(end - 1)} · show all`,
                  )
                : null,
              curves.exact === false
                ? h(
                    "span",
                    { class: "quiet small" },
                    `smallest and largest of each ${Math.ceil((2 * (end - begin)) / MOST_POINTS)} steps; zoom for all`,
                  )
                : null,
            ),
          ],
          "",
          curves.error ? h("p", { class: "empty" }, curves.error.message) : [chips, h("br"), valuesNote, stack],
        ),
      ),
    ),
  );
  return {
    root,
    still: true,
    shown: () => {
      to(step);
      if (wanted && !curves.error) value();
    },
    leave: () => {
      left = true;
      clearInterval(playing);
      clearTimeout(noted);
    },
    key: (event) => {
      const far = event.shiftKey ? 10 : 1;
      if (event.key === "ArrowRight") to(step + far);
      else if (event.key === "ArrowLeft") to(step - far);
      else if (event.key === "Home") to(0);
      else if (event.key === "End") to(last);
      else if (event.key === " " && !event.target.closest("button, a")) toggle();
      else if (event.key === "[" && episode.previous)
        go({ lane: episode.previous.lane, first: episode.previous.first, step: null, begin: null, end: null });
      else if (event.key === "]" && episode.next)
        go({ lane: episode.next.lane, first: episode.next.first, step: null, begin: null, end: null });
      else if (event.key === "Escape") {
        if (zoomed) go({ begin: null, end: null, step });
        else {
          history.pushState(null, "", list);
          dispatchEvent(new PopStateEvent("popstate"));
        }
      } else return false;
      return true;
    },
  };
}
