// All episodes: a list that fetches only its visible rows, and a contact sheet of the chosen episode.
import { nothing, thumbnails } from "./data.js";
import { card, h, number, pairs, plain, several, whole } from "./dom.js";

const ROW = 32,
  PAGE = 100,
  MOST = 400000;
const COLUMNS = [
  ["number", "#", null],
  ["return", "return", "return"],
  ["length", "length", "length"],
  ["age", "steps ago", "age"],
  ["priority", "mean priority", "priority"],
  ["lane", "lane", "lane"],
  ["end", "end", null],
];

export async function show(context) {
  const { state, link, go } = context;
  const { memory, source } = await context.get("overview");
  if (!memory) throw nothing(source);
  const sort = state.sort ?? "written",
    desc = state.desc ?? "1",
    only = state.whole ?? "0";
  const query = { sort, desc, whole: only, where: state.where };
  let pages = new Map(),
    total = 0,
    all = 0,
    previewed = null,
    chosen = state.pick === undefined ? null : Number(state.pick);

  const body = h("div", { class: "window", role: "listbox", tabindex: "0", "aria-label": "episodes" });
  const space = h("div", {});
  body.append(space);
  const count = h("span", { class: "quiet small num" });
  const filter = filterBox(context);
  const side = h("div", { class: "side" });
  const buttons = COLUMNS.map(([, label, key]) => {
    const right = label === "end" ? "" : "r";
    if (!key) return h("span", { class: `${right} quiet small` }, label);
    const sorted = key === sort;
    return h(
      "span",
      { class: right },
      h(
        "button",
        {
          "aria-sort": sorted ? (desc === "1" ? "descending" : "ascending") : undefined,
          on: { click: () => go({ sort: key, desc: sorted && desc === "1" ? "0" : "1", pick: null }) },
        },
        `${label}${sorted ? (desc === "1" ? " ↓" : " ↑") : ""}`,
      ),
    );
  });
  const toggle = (label, on, changes) =>
    h("button", { class: "button", "aria-pressed": String(on), on: { click: () => go(changes) } }, label);
  const list = h(
    "section",
    { class: "card list" },
    h(
      "div",
      { class: "tools" },
      h("h2", {}, "Episodes"),
      count,
      h("span", { class: "right" }),
      toggle("newest first", sort === "written", { sort: null, desc: null, pick: null }),
      toggle("best first", sort === "return" && desc === "1", { sort: "return", desc: "1", pick: null }),
      toggle("worst first", sort === "return" && desc === "0", { sort: "return", desc: "0", pick: null }),
      toggle("whole only", only === "1", { whole: only === "1" ? null : "1", pick: null }),
    ),
    filter.root,
    h("div", { class: "rowhead" }, buttons),
    body,
  );

  async function fetchPage(number) {
    if (pages.has(number)) return;
    const rows = context.get("episodes", { ...query, offset: number * PAGE, limit: PAGE }).then((told) => {
      total = told.total;
      all = told.of;
      return told.rows;
    });
    pages.set(number, rows);
    rows
      .then((found) => {
        pages.set(number, found);
        draw();
      })
      .catch(() => pages.delete(number));
    await rows;
  }

  const address = (row) =>
    link({ tab: "episode", lane: row.lane, first: row.first, ...listed(state) });

  function draw() {
    const rows = Math.min(total, MOST);
    count.textContent =
      total > MOST
        ? `first ${whole(MOST)} of ${whole(total)}`
        : state.where
          ? failed
            ? ""
            : `${whole(total)} of ${whole(all)}`
          : whole(total);
    space.style.setProperty("height", `${rows * ROW}px`);
    const first = Math.max(0, Math.floor(body.scrollTop / ROW) - 8),
      last = Math.min(rows, first + Math.ceil((body.clientHeight || 600) / ROW) + 16);
    const drawn = [];
    for (let place = first; place < last; place += 1) {
      const found = pages.get(Math.floor(place / PAGE));
      if (!Array.isArray(found)) {
        fetchPage(Math.floor(place / PAGE)).catch(() => {});
        continue;
      }
      const row = found[place % PAGE];
      if (row) drawn.push(line(row, place));
    }
    space.replaceChildren(...drawn);
  }

  function line(row, place) {
    const end = row.begun ? row.end : `${row.end}, begin evicted`;
    return h(
      "a",
      {
        class: `row ${place === chosen ? "chosen" : ""}`,
        href: address(row),
        role: "option",
        "aria-selected": String(place === chosen),
        tabindex: "-1",
        style: { top: `${place * ROW}px` },
        on: {
          click: (event) => {
            if (event.detail === 1 && place !== chosen) {
              event.preventDefault();
              event.stopPropagation();
              choose(place);
            }
          },
        },
      },
      h("span", { class: "r quiet" }, row.number),
      h("span", { class: "r" }, number(row.return, 4)),
      h("span", { class: "r" }, whole(row.length)),
      h("span", { class: "r" }, whole(row.age)),
      h("span", { class: "r" }, number(row.priority)),
      h("span", { class: "r" }, row.lane),
      h("span", {}, h("span", { class: "tag" }, end)),
    );
  }

  async function choose(place, moved = false) {
    chosen = Math.max(0, Math.min(place, Math.min(total, MOST) - 1));
    go({ pick: chosen }, { replace: true, quiet: true });
    if (moved) {
      const top = chosen * ROW;
      if (top < body.scrollTop) body.scrollTop = top;
      else if (top + ROW > body.scrollTop + body.clientHeight) body.scrollTop = top + ROW - body.clientHeight;
    }
    draw();
    const turn = chosen;
    await fetchPage(Math.floor(chosen / PAGE));
    const rows = await pages.get(Math.floor(chosen / PAGE));
    if (turn === chosen && rows[chosen % PAGE]) preview(rows[chosen % PAGE]);
  }

  async function preview(row) {
    const same = ["lane", "first", "length", "end", "priority"].every((key) => previewed?.[key] === row[key]);
    previewed = row;
    if (same) return;
    const told = await context.get("episode", { lane: row.lane, first: row.first }).catch((error) => ({ error }));
    if (told.error) {
      side.replaceChildren(card("Episode", "", h("p", { class: "empty" }, told.error.message)));
      return;
    }
    side.replaceChildren(sheetCard(context, told, memory, 24, address(row)));
  }

  let failed = false;
  await fetchPage(0).catch((error) => {
    if (!state.where) throw error;
    failed = true;
    filter.say(error.message);
  });
  if (total) await choose(chosen ?? 0);
  else
    side.append(
      card(
        "Episode",
        "",
        h(
          "p",
          { class: "empty" },
          failed
            ? "The filter cannot be evaluated."
            : state.where
              ? "No episode matches the filter."
              : "No episode yet.",
        ),
      ),
    );
  body.addEventListener("scroll", () => requestAnimationFrame(draw));
  const resized = new ResizeObserver(draw);
  resized.observe(body);
  return {
    root: h("div", { class: "episodes" }, list, side),
    shown: () => {
      body.scrollTop = Math.max(0, (chosen ?? 0) * ROW - 160);
      draw();
    },
    leave: () => resized.disconnect(),
    refresh: async () => {
      pages = new Map();
      await fetchPage(Math.floor(body.scrollTop / ROW / PAGE)).catch(() => {});
      draw();
      if (!total) return;
      const page = Math.floor((chosen ?? 0) / PAGE); // the chosen episode, which newer ones have moved, stays chosen
      await fetchPage(page).catch(() => {});
      const rows = (await pages.get(page)) ?? [];
      const place = rows.findIndex((row) => row.lane === previewed?.lane && row.first === previewed?.first);
      await choose(place < 0 ? (chosen ?? 0) : page * PAGE + place);
    },
    key: (event) => {
      const move = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity }[event.key];
      if (move !== undefined && total) choose((chosen ?? 0) + Math.max(-total, Math.min(total, move)), true);
      else if (event.key === "Enter" && chosen !== null && !event.target.closest("button, a:not(.row)"))
        Promise.resolve(pages.get(Math.floor(chosen / PAGE))).then((rows) => {
          const row = rows?.[chosen % PAGE];
          if (row)
            go({ tab: "episode", lane: row.lane, first: row.first, ...listed(state) });
        });
      else return false;
      return true;
    },
  };
}

/** The parts of a state that choose the list, which an episode's page keeps. */
export const listed = ({ sort, desc, whole, where }) => ({ sort, desc, whole, where });

/** A box for a condition in SQL; `say` shows why it cannot be evaluated. */
function filterBox({ state, get, go }) {
  const proposed = state.where === undefined ? state.proposed : undefined;
  const box = h("input", {
    type: "search",
    class: "filter",
    maxlength: 2000,
    spellcheck: "false",
    autocomplete: "off",
    "aria-label": "filter: a condition in SQL",
    placeholder: "filter in SQL, as: length > 100 and ended = 'terminated'",
    value: state.where ?? proposed,
  });
  const apply = () => go({ where: box.value.trim() || null, proposed: null, pick: null });
  box.addEventListener("keydown", (event) => event.key === "Enter" && apply());
  box.addEventListener("search", () => box.value || !(state.where || proposed) || apply());
  const error = h("p", { class: "small bad-text", role: "alert", hidden: true });
  const hint = h("p", { class: "small quiet", hidden: true });
  const show = (place, ...text) => {
    place.replaceChildren(...text);
    place.hidden = false;
  };
  if (proposed) show(hint, "Another page's link proposes this filter. Press Enter to apply it.");
  const names = h("details", { class: "small", hidden: true }, h("summary", {}, "columns"));
  get("filters")
    .then(({ columns, needs }) => {
      if (needs) {
        box.disabled = true;
        show(hint, needs);
      } else {
        names.append(
          h("p", {}, columns.map((one, k) => [k ? ", " : "", h("bdi", {}, one)])),
          h("p", { class: "quiet" }, `Text is in single quotes; "return" and names with spaces are in double quotes.`),
        );
        names.hidden = false;
      }
    })
    .catch(() => {});
  return {
    root: h(
      "div",
      { class: "filters" },
      h("div", {}, box, h("button", { class: "button", on: { click: apply } }, "Filter")),
      error,
      hint,
      names,
    ),
    say: (text) => {
      show(error, text);
      names.open = true;
    },
  };
}

/** A card with an episode's numbers and evenly spaced frames. */
export function sheetCard(context, episode, memory, frames, href) {
  const field = episode.pictures[0];
  const open = (step) => `${href}${href.includes("?") ? "&" : "?"}step=${step}`;
  const content = field
    ? h(
        "div",
        { class: "sheet", style: { "--cell": field.picture.width > 1.5 * field.picture.height ? "110px" : "76px" } },
        thumbnails(
          context.state.source,
          { ...episode, store: memory.store.slice(0, 8) },
          field,
          frames,
          128,
          (canvas, step) =>
            h(
              "a",
              { href: open(Math.min(step, episode.length - 1)), title: `step ${step}` },
              canvas,
              h("span", {}, step === episode.length ? "final" : whole(step)),
            ),
        ),
      )
    : h("p", { class: "quiet small" }, "Its observations are not pictures; open it to see them as curves.");
  const annotations = Object.entries(episode.annotations)
    .slice(0, 20)
    .map(([key, value]) => [h("bdi", {}, key), plain(value)]);
  return card(
    [`Episode ${episode.number}`, h("div", { class: "right" }, h("a", { class: "button", href }, "Open"))],
    "",
    pairs([
      ["return", number(episode.return, 5)],
      ["length", several(episode.length, "step")],
      ["lane", `${episode.lane}, from its step ${whole(episode.first)}`],
      ["end", episode.begun ? episode.end : `${episode.end}; its beginning was evicted`],
      ...(episode.priority === null ? [] : [["mean priority", number(episode.priority)]]),
      ...annotations,
    ]),
    h("br"),
    content,
  );
}
