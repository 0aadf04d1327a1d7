// Requests to the server.

/** Return parsed JSON. Throws an Error with the server's explanation. */
export async function get(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(query))
    if (value !== undefined && value !== null) parameters.set(key, value);
  const text = parameters.toString();
  let answer;
  try {
    answer = await fetch(`/api/${path}${text ? `?${text}` : ""}`);
  } catch {
    throw new Error("the server does not answer; was sharpwave view ended?");
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const error = new Error(body.error ?? `the server answered ${answer.status}`);
    error.status = answer.status;
    throw error;
  }
  return body;
}

/** The error of a source without steps, or without steps yet. */
export function nothing({ trouble, updating }) {
  return new Error(
    trouble ||
      (updating
        ? "The store is being read for the first time ..."
        : "No steps are on disk yet. A run that keeps its memory in RAM writes it with its checkpoints, one with --disk-limit as it goes."),
  );
}

/** Loads frames of an episode, many in one picture, and keeps the last ones. */
export class Frames {
  constructor(source, episode, field, onload) {
    Object.assign(this, { source, episode, field, onload });
    this.size = field.picture.count;
    this.sheets = new Map();
  }

  #sheet(number) {
    let sheet = this.sheets.get(number);
    if (sheet) {
      this.sheets.delete(number);
      this.sheets.set(number, sheet);
      return sheet;
    }
    const begin = number * this.size,
      end = Math.min(begin + this.size, this.episode.frames) - 1;
    sheet = load(this.source, this.episode, this.field, begin, end, this.size);
    sheet.image.addEventListener("load", () => this.onload());
    sheet.image.addEventListener("error", () => {
      sheet.failed = true;
      this.onload();
    });
    this.sheets.set(number, sheet);
    if (this.sheets.size > 24) this.sheets.delete(this.sheets.keys().next().value);
    return sheet;
  }

  /** Draw a step's frame; return whether it was loaded already. The neighboring sheets are fetched too. */
  draw(canvas, step) {
    const { width, height, columns } = this.field.picture,
      number = Math.floor(step / this.size);
    const sheet = this.#sheet(number),
      inside = step % this.size;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    if (inside > this.size / 2 && (number + 1) * this.size < this.episode.frames) this.#sheet(number + 1);
    if (inside < this.size / 4 && number > 0) this.#sheet(number - 1);
    const loaded = sheet.image.complete && sheet.image.naturalWidth > 0;
    mark(canvas, loaded ? "" : sheet.failed ? "failed" : "loading");
    if (!loaded) return false;
    canvas
      .getContext("2d")
      .drawImage(
        sheet.image,
        (inside % columns) * width,
        Math.floor(inside / columns) * height,
        width,
        height,
        0,
        0,
        width,
        height,
      );
    return true;
  }
}

/** Mark a canvas as waiting for its picture ("loading"), or without one ("failed"). */
function mark(canvas, state) {
  for (const one of ["loading", "failed"]) canvas.classList.toggle(one, one === state);
  canvas.toggleAttribute("aria-busy", state === "loading");
}

/** Start to load a picture of `count` evenly spaced frames. */
export function load(source, episode, field, begin, end, count, side) {
  const query = new URLSearchParams({
    lane: episode.lane,
    first: episode.first,
    field: field.number,
    begin,
    end,
    count,
  });
  if (side) query.set("side", side);
  const image = new Image();
  image.src = `/api/${source}/frames.png?${query}&of=${episode.store ?? ""}.${episode.length}`;
  return { image };
}

/** The steps that the server draws when asked for `count` evenly spaced ones: rounded half to even, as numpy does. */
export function spaced(begin, end, count) {
  const many = Math.min(count, end - begin + 1),
    found = new Set();
  for (let k = 0; k < many; k += 1) {
    const at = many === 1 ? begin : begin + (k * (end - begin)) / (many - 1);
    const floor = Math.floor(at);
    found.add(at - floor === 0.5 ? (floor % 2 ? floor + 1 : floor) : Math.round(at));
  }
  return [...found].sort((a, b) => a - b);
}

/** Thumbnails of an episode, drawn when they have loaded. */
export function thumbnails(source, episode, field, count, side, make) {
  const last =
    episode.frames !== undefined ? episode.frames - 1 : episode.length - (episode.end === "unfinished" ? 1 : 0);
  const steps = spaced(0, last, count),
    { width, height, columns } = field.picture;
  const scale = Math.min(1, side / Math.max(width, height));
  const w = Math.max(1, Math.round(width * scale)),
    h = Math.max(1, Math.round(height * scale));
  const canvases = steps.map((step, place) => {
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: w, height: h, className: "pixel" });
    mark(canvas, "loading");
    return make(canvas, step, place);
  });
  const { image } = load(source, episode, field, 0, last, count, side);
  const inside = (one) => (one instanceof HTMLCanvasElement ? one : one.querySelector("canvas"));
  image.addEventListener("error", () => canvases.forEach((one) => mark(inside(one), "failed")));
  image.addEventListener("load", () =>
    canvases.forEach((one, place) => {
      const canvas = inside(one);
      mark(canvas, "");
      const cellWidth = image.naturalWidth / Math.min(columns, steps.length),
        cellHeight = image.naturalHeight / Math.ceil(steps.length / columns);
      canvas.width = cellWidth;
      canvas.height = cellHeight;
      canvas
        .getContext("2d")
        .drawImage(
          image,
          (place % columns) * cellWidth,
          Math.floor(place / columns) * cellHeight,
          cellWidth,
          cellHeight,
          0,
          0,
          cellWidth,
          cellHeight,
        );
    }),
  );
  return canvases;
}
