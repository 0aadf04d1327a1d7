// Versions of a store: who made them when, what is in them, and what they may be compared with.
import { get } from "./data.js";
import { bytes, card, h, name, number, pairs, plain, table, whole } from "./dom.js";

const AGAIN_MS = 2000;

export async function show(context) {
  const { state, link } = context,
    [store, version] = state.source.split("@");
  const root = h("div", { class: "grid" });
  let told = null,
    timer = null,
    left = false;

  async function look() {
    const rows = await get(`${store}/versions`);
    const text = JSON.stringify(rows);
    if (text !== told) draw(rows);
    told = text;
  }

  const made = (row) => {
    const when = new Date(row.created);
    return Number.isNaN(when.getTime()) ? row.created : when.toLocaleString("sv").slice(0, 16);
  };
  const beside = (one, other) => link({ tab: "compare", source: one, with: other });
  const note = ({ note }) => {
    const { who, ...others } = note;
    const more = Object.entries(others).map(([key, value]) => [h("bdi", {}, key), plain(value)]);
    return [
      who === undefined ? (more.length ? null : "–") : h("bdi", {}, plain(who, 100)),
      more.length ? h("details", { class: "small" }, h("summary", {}, "note"), pairs(more)) : null,
    ];
  };

  function draw(rows) {
    const list = rows.length
      ? table(
          [["version"], ["made"], ["steps", 1], ["episodes", 1], ["mean return", 1], ["bytes", 1], ["its own", 1], ["parent"], ["made by"], [""]],
          rows.map((row) => {
            const parent = rows.find((one) => one.name === row.parent);
            return [
              h("a", { href: link({ tab: "episodes", source: row.id }) }, name(row.name)),
              h("span", { class: "num", title: row.created }, made(row)),
              whole(row.steps),
              row.trouble ? h("span", { class: "bad-text", title: row.trouble }, "damaged") : whole(row.episodes),
              number(row.mean_return),
              bytes(row.bytes),
              bytes(row.own_bytes),
              row.parent === null ? "–" : name(row.parent),
              note(row),
              h(
                "span",
                { class: "small" },
                h("a", { href: beside(row.id, store) }, "beside the store"),
                parent ? [" · ", h("a", { href: beside(parent.id, row.id) }, "beside its parent")] : null,
              ),
            ];
          }),
        )
      : h(
          "p",
          { class: "empty" },
          "This store has no versions. store.snapshot(NAME) gives its data a name under which they stay, without copying them.",
        );
    root.replaceChildren(
      card(
        ["Versions", h("span", { class: "quiet small" }, rows.length ? "the newest first; its own bytes are freed when it is deleted" : "")],
        "w12 versions",
        version === undefined
          ? null
          : h("p", { class: "small quiet" }, "The other tabs show ", name(version), "."),
        list,
      ),
    );
  }

  await look();
  const again = () => {
    timer = setTimeout(async () => {
      if (document.visibilityState === "visible") await look().catch(() => {});
      if (!left) again();
    }, AGAIN_MS);
  };
  again();
  return {
    root,
    still: true,
    leave: () => {
      left = true;
      clearTimeout(timer);
    },
  };
}
