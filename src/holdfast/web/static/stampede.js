/** Shows a stampede: the map follows the live feed, and the figures follow the report of the processes that run it. */

import { fill } from "./dom.js";
import { followMap, loadLayout } from "./event_map.js";
import { number, page } from "./page.js";

const POLL_MS = 500;

const run = document.getElementById("run");
const figures = document.getElementById("figures");
const verdict = document.getElementById("verdict");

show(page.report);
poll();
await followMap(await loadLayout());

function say(key, values = {}) {
  return fill(page.stampede[key], values);
}

/** Poll often while a stampede runs, and now and then to notice a new one. */
async function poll() {
  try {
    const response = await fetch(page.reportUrl, { headers: { accept: "application/json" } });
    if (response.ok) {
      page.report = await response.json();
      show(page.report);
    }
  } finally {
    setTimeout(poll, page.report?.state === "running" ? POLL_MS : 4 * POLL_MS);
  }
}

function show(report) {
  if (!report) {
    return;
  }
  run.hidden = figures.hidden = false;
  run.querySelector("progress").value = report.done / report.buyers;
  run.querySelector("[data-progress-text]").textContent = say("running", counts(report, "done", "buyers"));
  run.querySelector("[data-elapsed]").textContent = `${report.elapsed_seconds.toFixed(1)} s`;
  showFigures(report);
  showVerdict(report);
  document.querySelector("#start .button").disabled = report.state === "running";
}

function counts(report, ...names) {
  return Object.fromEntries(names.map((name) => [name, number(report[name])]));
}

function showFigures(report) {
  const refused = Object.values(report.refusals).reduce((sum, count) => sum + count, 0);
  const values = {
    taken: number(report.capacity - report.left),
    left: number(report.left),
    winners: number(report.winners),
    refused: number(refused),
    requests: number(report.requests),
    rate: number(Math.round(report.rate)),
    median: report.p50_ms === null ? "–" : number(Math.round(report.p50_ms)),
    p99: report.p99_ms === null ? "–" : number(Math.round(report.p99_ms)),
  };
  Object.entries(values).forEach(([name, value]) => {
    figures.querySelector(`[data-${name}]`).textContent = value;
  });
  const refusals = Object.entries(report.refusals).map(([code, count]) => say("refusals", { n: number(count), code }));
  document.querySelector("[data-refusals]").textContent = refusals.join(" · ");
}

function showVerdict(report) {
  verdict.hidden = report.state === "running";
  if (verdict.hidden) {
    return;
  }
  const isGood = report.verdict?.ok ?? false;
  verdict.classList.toggle("is-bad", !isGood);
  const use = verdict.querySelector("use");
  use.setAttribute("href", use.getAttribute("href").replace(/#\w+$/, isGood ? "#check" : "#alert"));
  verdict.querySelector("[data-title]").textContent = titleOf(report, isGood);
  verdict.querySelector("[data-text]").textContent = textOf(report, isGood);
}

function textOf(report, isGood) {
  if (isGood) {
    return say("verdict_ok_text");
  }
  const counted = report.verdict && say("verdict_bad_text", counts(report.verdict, "twice", "lost"));
  return [report.failure && say(`problem.${report.failure}`), counted].filter(Boolean).join(" ");
}

function titleOf(report, isGood) {
  if (isGood) {
    return say("verdict_ok", counts(report.verdict, "taken", "capacity"));
  }
  return report.verdict ? say("verdict_bad") : say("failed");
}
