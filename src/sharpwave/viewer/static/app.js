// The page: its state is the URL's query. It shows one source, in one of the tabs.
import { get } from "./data.js";
import { bytes, duration, h } from "./dom.js";
import * as compare from "./compare.js";
import * as episode from "./episode.js";
import * as episodes from "./episodes.js";
import * as memory from "./memory.js";
import * as overview from "./overview.js";
import * as priorities from "./priorities.js";
import * as versions from "./versions.js";

const TABS = {
  overview: ["Overview", overview],
  episodes: ["Episodes", episodes],
  episode: ["Episode", episode],
  priorities: ["Priorities", priorities],
  memory: ["Memory", memory],
  compare: ["Compare", compare],
  versions: ["Versions", versions],
};
const HIDDEN = new Set(["episode"]);
const POLL_MS = 2000;

const bar = document.getElementById("bar"),
  page = document.getElementById("page");
let sources = [],
  shown = null,
  drawing = 0;

export function state() {
  const query = Object.fromEntries(new URLSearchParams(location.search));
  const tab = Object.hasOwn(TABS, query.tab ?? "") ? query.tab : "overview";
  return { ...query, tab, source: /^\d{1,4}(@[\w.-]+)?$/.test(query.source ?? "") ? query.source : "0" };
}

/** The source of an id: a number, or that and the name of a version of its store. */
const named = (id) => sources.find((one) => String(one.id) === String(id));

/** The URL of the state changed by `changes`; another tab starts with the source only. */
export function link(changes) {
  const now = state();
  const kept = changes.tab && changes.tab !== now.tab ? { source: now.source } : now;
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries({ ...kept, tab: now.tab, ...changes }))
    if (
      value !== undefined &&
      value !== null &&
      value !== "" &&
      !(key === "tab" && value === "overview") &&
      !(key === "source" && String(value) === "0")
    )
      query.set(key, value);
  const text = query.toString();
  return text ? `/?${text}` : "/";
}

/** Go to a state. `quiet`: the shown page updates itself. */
export function go(changes, { replace = false, quiet = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", link(changes));
  if (!quiet) draw();
}

async function draw(keep = false) {
  const now = state(),
    turn = ++drawing,
    [label, module] = TABS[now.tab];
  if (!keep) shown?.leave?.();
  if (!named(now.source) || ["versions", "compare"].includes(now.tab))
    sources = await get("sources").catch(() => sources); // versions come and go
  if (turn !== drawing) return;
  heading(now);
  const source = named(now.source);
  document.title = `${label} – ${source?.name ?? "Sharpwave"}`;
  try {
    const next = await module.show({
      state: now,
      source,
      sources,
      link,
      go,
      get: (path, query) => get(`${now.source}/${path}`, query),
    });
    if (turn !== drawing) {
      next.leave?.();
      return;
    }
    if (keep) shown?.leave?.();
    const scrolled = window.scrollY;
    shown = { ...next, source: now.source, tab: now.tab, version: source?.version };
    page.replaceChildren(next.root);
    next.shown?.();
    window.scrollTo(0, keep ? scrolled : 0);
  } catch (error) {
    if (turn !== drawing) return;
    shown = { source: now.source, tab: now.tab, version: null };
    page.replaceChildren(
      h("div", { class: `note ${error.message.includes("first time") ? "" : "bad"}` }, error.message),
    );
  }
}

function heading(now) {
  const source = named(now.source);
  const links = Object.entries(TABS)
    .filter(([key]) => !HIDDEN.has(key))
    .map(([key, [label]]) =>
      h(
        "a",
        {
          href: link({ tab: key }),
          "aria-current": key === now.tab || (key === "episodes" && now.tab === "episode") ? "page" : undefined,
        },
        label,
      ),
    );
  const choice =
    sources.length > 1 && now.tab !== "compare"
      ? h(
          "select",
          {
            "aria-label": "run or store",
            on: { change: (event) => go({ source: event.target.value, lane: null, first: null, step: null }) },
          },
          source ? null : h("option", { selected: true }, now.source),
          sources.map((one) => h("option", { value: one.id, selected: one === source }, one.name)),
        )
      : source
        ? h("span", { class: "name quiet", title: source.path, hidden: now.tab === "compare" }, source.name)
        : null;
  const [kind, text] = condition(source);
  bar.replaceChildren(
    h(
      "a",
      { class: "brand", href: "/", title: "Sharpwave" },
      h("img", { src: "/icon.svg", alt: "" }),
      h("span", {}, "Sharpwave"),
    ),
    choice,
    h("nav", { "aria-label": "pages" }, links),
    h(
      "div",
      { class: "status", role: "status", title: source ? source.path : "" },
      h("span", { class: `dot ${kind}` }),
      h("span", { class: "text" }, text),
      h("button", { class: "button", title: "keys (?)", on: { click: keys } }, "?"),
    ),
  );
}

function condition(source) {
  if (!source) return ["", ""];
  if (source.gone) return ["bad", "deleted"];
  if (source.lost) return ["bad", "no connection"];
  if (source.trouble) return ["bad", "cannot be read"];
  if (source.updating && source.to_read && source.age_s === null) // later updates are short
    return [source.live ? "live" : "", `reading ${bytes(source.read)} of ${bytes(source.to_read)}`];
  const age = source.age_s === null ? "" : ` · updated ${duration(source.age_s)} ago`;
  return source.live ? ["live", `live${age}`] : ["", source.kind === "run" ? "run ended" : source.kind];
}

async function poll() {
  const now = state();
  if (document.visibilityState === "visible") {
    try {
      const wanted =
        now.tab === "compare"
          ? [...new Set([now.source, now.with])].filter((id) => named(id) && !named(id).gone)
          : [now.source];
      for (const id of wanted) {
        const told = await get(`${id}/status`).catch((error) => {
          if (error.status !== 404) throw error;
          return { ...named(id), gone: true, version: -1 }; // a version that was deleted meanwhile
        });
        sources = sources.map((one) => (String(one.id) === String(id) ? told : one));
      }
      const source = named(now.source);
      if (shown && source && shown.source === now.source && shown.tab === now.tab && shown.version !== source.version) {
        shown.version = source.version;
        if (source.gone) draw();
        else if (shown.refresh) shown.refresh(source);
        else if (!shown.still) draw(true);
      }
    } catch {
      if (named(now.source)) named(now.source).lost = true;
    }
    const status = bar.querySelector(".status");
    if (status) {
      const [kind, text] = condition(named(state().source));
      status.querySelector(".dot").className = `dot ${kind}`;
      status.querySelector(".text").textContent = text;
    }
  }
  setTimeout(poll, POLL_MS);
}

function keys() {
  const rows = [
    ["1 – 6", "overview, episodes, priorities, memory, compare, versions"],
    ["↑ ↓", "choose an episode in the list"],
    ["Enter", "open it"],
    ["← →", "one step back, on; with Shift ten"],
    ["Home End", "first, last step"],
    ["Space", "play, pause"],
    ["[ ]", "previous, next episode of the list"],
    ["Esc", "back to the list; whole episode"],
    ["?", "this help"],
  ];
  const dialog = h(
    "dialog",
    { on: { close: () => dialog.remove(), click: (event) => event.target === dialog && dialog.close() } },
    h("h2", {}, "Keys"),
    h("p", { class: "quiet small" }, "Drag in a chart to zoom, double-click to see all."),
    h("br"),
    pairsOf(rows),
    h("br"),
    h("button", { class: "button", on: { click: () => dialog.close() } }, "Close"),
  );
  document.body.append(dialog);
  dialog.showModal();
}

const pairsOf = (rows) =>
  h(
    "dl",
    { class: "pairs" },
    rows.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]),
  );

document.addEventListener("keydown", (event) => {
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    event.target.closest("dialog, select, input:not([type=range]), textarea")
  )
    return;
  const tab = Object.keys(TABS).filter((one) => !HIDDEN.has(one))[Number(event.key) - 1];
  if (event.key === "?") keys();
  else if (tab) go({ tab });
  else if (!shown?.key?.(event)) return;
  event.preventDefault();
});
document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[href^='/']");
  if (!anchor || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.defaultPrevented) return;
  event.preventDefault();
  history.pushState(null, "", anchor.getAttribute("href"));
  draw();
});
window.addEventListener("popstate", () => draw());

try {
  sources = await get("sources");
  await draw();
  poll();
} catch (error) {
  page.replaceChildren(h("div", { class: "note bad" }, error.message));
}
