// Halls to try the seat map with: `?hall=curved|grid|large|small`. `events` keeps the events of the map.

import { SeatMap, TEXT_KEYS } from "/static/seatmap.js";

const TEXTS = {
  label: "Seat map",
  help: "Arrow keys move from seat to seat, Enter chooses, plus and minus zoom, zero shows the whole hall.",
  free: "Free", held: "Being bought", sold: "Sold", blocked: "Not for sale", mine: "Yours", selected: "Your choice",
  seat: "Seat {label}", rowSeat: "Row {row}, seat {number}", row: "Row {row}", seats: "Seats",
  freeCount: "{count} free", taken: "This seat cannot be chosen.", limit: "You can choose up to {limit} seats.",
  zoomIn: "Zoom in", zoomOut: "Zoom out", reset: "Whole hall", showList: "Show as list", showMap: "Show as map",
  list: "Seats as a list", legend: "Legend",
};

const HALLS = {
  small: () => grid([["floor", "Workshop", "€15.00"]], 5, 8),
  grid: () => grid(["A", "B", "C", "D"].map((block) => [`block-${block}`, `Block ${block}`, "€55.00"]), 25, 50),
  large: () => grid([["low", "Lower tier", "€80.00"], ["high", "Upper tier", "€40.00"]], 50, 200),
  loose: () => loose(),
  curved: () => curved(),
};

function grid(pools, rows, numbers) {
  const seats = pools.flatMap(([code], pool) =>
    Array.from({ length: rows * numbers }, (_, at) => {
      const row = `${String.fromCharCode(65 + pool)}${Math.floor(at / numbers) + 1}`;
      return [`${row}-${(at % numbers) + 1}`, pool, row, (at % numbers) + 1, null, null];
    }),
  );
  return { pools: pools.map(([code, name, prices]) => ({ code, name, prices })), seats, stage: "Stage" };
}

/** Seats that have neither row nor number. */
function loose() {
  const seats = Array.from({ length: 300 }, (_, at) => [`L${at + 1}`, 0, "", null, null, null]);
  return { pools: [{ code: "loose", name: "Tables", prices: "€20.00" }], seats, stage: null };
}

/** The hall of the demo, in hundredths of its units. */
function curved() {
  const sections = [
    ["Stalls", 20, 6, "€90.00 – €45.00"],
    ["Dress circle", 12, 30, "€65.00 – €32.50"],
    ["Gallery", 8, 46, "€35.00 – €17.50"],
  ];
  const seats = sections.flatMap(([name, rows, depth], pool) =>
    Array.from({ length: rows * 50 }, (_, at) => {
      const [row, number] = [Math.floor(at / 50), (at % 50) + 1];
      const [title, offset] = [`${name[0]}${row + 1}`, number - 25.5];
      return [`${title}-${number}`, pool, title, number, offset * 100, (depth + row + offset ** 2 / 120) * 100];
    }),
  );
  return { pools: sections.map(([name, , , prices]) => ({ code: name, name, prices })), seats, stage: "Stage" };
}

const element = document.getElementById("map");
window.events = [];
for (const name of ["change", "refused", "lost"]) {
  element.addEventListener(`seats:${name}`, (event) => window.events.push({ name, ...event.detail }));
}
window.TEXT_KEYS = TEXT_KEYS;
window.TEXTS = TEXTS;
window.SeatMap = SeatMap;
window.layout = HALLS[new URLSearchParams(location.search).get("hall") ?? "small"]();
performance.mark("data");
window.map = new SeatMap(element, window.layout, TEXTS);
