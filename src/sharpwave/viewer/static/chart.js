// Charts: uPlot in the page's colors, as wide as their container.
import uPlot from "./uplot.js";
import { h, number, short } from "./dom.js";

const made = new Set();
const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (target.plot && contentRect.width > 0 && Math.abs(target.plot.width - contentRect.width) > 1)
      target.plot.setSize({ width: contentRect.width, height: target.plot.height });
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  made.forEach((place) => place.isConnected && place.draw()),
);

export const color = (index) =>
  getComputedStyle(document.documentElement)
    .getPropertyValue(`--c${index % 8}`)
    .trim();
const css = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
export const soft = (index, share) => `color-mix(in srgb, ${color(index)} ${share}%, transparent)`;

/** An element with a chart. `options()` returns uPlot's, without size and axes' colors; it is called again for other colors. */
export function chart(height, options, data) {
  const place = h("div", { class: "chart" });
  place.draw = () => {
    place.plot?.destroy();
    const given = options();
    const axis = (one) => ({
      stroke: css("--muted"),
      grid: { stroke: css("--line"), width: 1 },
      ticks: { stroke: css("--line"), width: 1, size: 4 },
      font: "11px system-ui, sans-serif",
      labelFont: "11px system-ui, sans-serif",
      labelSize: 18,
      labelGap: 0,
      gap: 4,
      ...one,
    });
    const axes = (given.axes ?? [{}, {}]).map((one, index) =>
      axis({
        size: index ? 52 : 34,
        values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))),
        ...one,
      }),
    );
    place.plot = new uPlot(
      {
        height,
        width: Math.max(200, place.clientWidth || 600),
        ...given,
        axes,
        scales: { ...given.scales, x: { time: false, ...given.scales?.x } },
        legend: { live: true, ...given.legend },
        cursor: { points: { size: 6 }, y: false, ...given.cursor },
      },
      place.data ?? data,
      place,
    );
  };
  place.setData = (next) => {
    place.data = next;
    place.plot?.setData(next);
  };
  made.add(place);
  for (const one of made)
    if (one !== place && one.drawn && !one.isConnected) {
      one.plot?.destroy();
      made.delete(one);
    }
  requestAnimationFrame(() => {
    place.draw();
    place.drawn = true;
    sizes.observe(place);
  });
  return place;
}

export function line(label, index, more = {}) {
  return {
    label,
    stroke: color(index),
    width: 1.6,
    points: { show: false },
    value: (_, value) => number(value, 4),
    spanGaps: true,
    ...more,
  };
}

export function dots(label, index, more = {}) {
  return {
    label,
    stroke: soft(index, 55),
    paths: () => null,
    points: { show: true, size: 3.5, width: 0, fill: soft(index, 45) },
    value: (_, value) => number(value, 4),
    ...more,
  };
}

/** A histogram of `counts` between `edges`. */
export function histogram({ edges, counts }, label, index, height = 220) {
  const at = counts.map((_, k) => k);
  const range = (k) =>
    edges[k] === undefined
      ? ""
      : counts.length + 1 === edges.length && edges[k + 1] - edges[k] === 1 && Number.isInteger(edges[k])
        ? `${edges[k]}`
        : `${number(edges[k])} to ${number(edges[k + 1])}`;
  return chart(
    height,
    () => ({
      scales: {
        x: { range: [-0.6, counts.length - 0.4] },
        y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] },
      },
      series: [
        { label, value: (_, k) => (k === null ? "–" : range(k)) },
        {
          label: "items",
          stroke: color(index),
          fill: soft(index, 70),
          width: 0,
          paths: uPlot.paths.bars({ size: [0.86, 60] }),
          points: { show: false },
          value: (_, value) => (value === null ? "–" : value.toLocaleString("en")),
        },
      ],
      axes: [
        {
          values: (_, ticks) =>
            ticks.map((k) => (Number.isInteger(k) && edges[k] !== undefined ? short(edges[k]) : "")),
          label,
        },
        {},
      ],
    }),
    [at, counts],
  );
}

/** Marks the shown step with a vertical line. */
export function marker(step) {
  return {
    hooks: {
      draw: [
        (plot) => {
          const x = plot.valToPos(step(), "x", true);
          const { left, top, width, height } = plot.bbox;
          if (!(x >= left && x <= left + width)) return;
          const context = plot.ctx;
          context.save();
          context.strokeStyle = css("--accent");
          context.lineWidth = 1.5 * devicePixelRatio;
          context.beginPath();
          context.moveTo(x, top);
          context.lineTo(x, top + height);
          context.stroke();
          context.restore();
        },
      ],
    },
  };
}

export const stepped = uPlot.paths.stepped({ align: 1 });
export const synchronized = (key) => uPlot.sync(key);
