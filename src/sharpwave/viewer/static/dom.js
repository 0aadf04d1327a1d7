// Elements and numbers. All values of a store become text: no markup is ever parsed.

/** Make an element. Properties: class, on (listeners), style (CSS by name), or attributes; children: elements or text. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "on")
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children
      .flat(4)
      .filter((one) => one !== null && one !== undefined && one !== false)
      .map((one) => (one instanceof Node ? one : String(one))),
  );
  return element;
}

export const name = (text) => h("bdi", { class: "name" }, text);

export function whole(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9 || size < 1e-3) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return value.toLocaleString("en", {
    maximumSignificantDigits: Math.min(21, Math.max(digits, 1, 1 + Math.floor(Math.log10(size)))),
  });
}

export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return size && size < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(size < 1 ? 2 : 4));
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  while (count >= 1024 && unit < 5) {
    count /= 1024;
    unit += 1;
  }
  return `${unit ? count.toLocaleString("en", { maximumFractionDigits: count < 10 ? 2 : 1 }) : count} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** The text of so many things; a plural ends with s. */
export const several = (count, thing) => `${whole(count)} ${thing}${count === 1 ? "" : "s"}`;

/** The ratio of a memory's steps to raw arrays, as a fact: the sizes of ragged and shared values are not known raw. */
export function smaller({ bytes: { ratio }, fields }) {
  const partly = fields.some((one) => one.ragged || one.shared) ? ", without ragged and shared fields" : "";
  return ratio >= 1
    ? [`${number(ratio, 3)}×`, `smaller than raw${partly}`]
    : [`${number(1 / ratio, 3)}×`, `the size of raw arrays${partly}`];
}

export function facts(...list) {
  return h(
    "div",
    { class: "facts" },
    list
      .filter(Boolean)
      .map(([text, label, title]) => h("div", { class: "fact", title }, h("b", {}, text), h("span", {}, label))),
  );
}

export function card(title, width, ...children) {
  const head = Array.isArray(title) ? title : [title];
  return h(
    "section",
    { class: `card ${width}` },
    head[0] ? h("div", { class: "head" }, h("h2", {}, head[0]), head.slice(1)) : null,
    children,
  );
}

export function table(columns, rows) {
  const cell = (tag, one, number) => h(tag, { class: columns[number][1] ? "r" : undefined }, one);
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map(([text], number) => cell("th", text, number)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            row.map((one, number) => cell("td", one, number)),
          ),
        ),
      ),
    ),
  );
}

export function pairs(entries) {
  return h(
    "dl",
    { class: "pairs" },
    entries.map(([key, value]) => [h("dt", { class: "name" }, key), h("dd", {}, value)]),
  );
}

/** Plain values as text, cut off: annotations may hold any value. */
export function plain(value, most = 400) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > most ? `${text.slice(0, most)} ...` : text;
}

export function flat(values, prefix = "", found = [], most = 400) {
  for (const [key, value] of Object.entries(values)) {
    if (found.length >= most) break;
    if (value && typeof value === "object" && !Array.isArray(value)) flat(value, `${prefix}${key}.`, found, most);
    else found.push([`${prefix}${key}`, plain(value)]);
  }
  return found;
}
