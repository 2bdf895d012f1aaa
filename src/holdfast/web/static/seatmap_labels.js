// Draws the stage and the names of pools and rows.

import { STAGE } from "./seatmap_camera.js";
import { colourOf, drawSeat } from "./seatmap_glyphs.js";
import { FREE } from "./seatmap_seats.js";

const ROW_STEPS = [1, 2, 5, 10, 20, 50];
const ROW_HEIGHT = 11;
const PINNED_AT = 18;

export function drawLabels(context, hall, camera, theme, styles) {
  context.textBaseline = "middle";
  if (hall.stage) drawStage(context, hall, camera, theme);
  drawRowNames(context, hall, camera, theme);
  hall.areas.forEach((area, pool) => {
    if (area) drawPoolName(context, hall.pools[pool].name, area, camera, theme, styles[pool]);
  });
}

function drawStage(context, hall, camera, theme) {
  const { left, right, top } = camera.box;
  const half = Math.max(70, Math.min(320, (right - left) * camera.scale * 0.3));
  const [x, edge] = camera.toScreen((left + right) / 2, top);
  const low = edge - camera.above + STAGE.height + STAGE.gap;
  const high = low - STAGE.height;
  context.beginPath();
  context.moveTo(x - half, high);
  context.lineTo(x + half, high);
  context.lineTo(x + half * 0.94, low - 6);
  context.quadraticCurveTo(x, low + 6, x - half * 0.94, low - 6);
  context.closePath();
  context.fillStyle = theme.text;
  context.globalAlpha = 0.1;
  context.fill();
  context.globalAlpha = 1;
  context.font = `600 13px ${theme.font}`;
  context.textAlign = "center";
  context.fillText(hall.stage, x, (high + low) / 2);
}

/** Where rows are too close, only every second, fifth or tenth row shows its name. */
function drawRowNames(context, hall, camera, theme) {
  const step = ROW_STEPS.find((rows) => rows * camera.scale >= ROW_HEIGHT) ?? 100;
  const size = Math.max(9.5, Math.min(13, camera.scale * 0.5));
  context.font = `500 ${size}px ${theme.font}`;
  context.textAlign = "center";
  for (const row of hall.rows) {
    if (row.name && row.rank % step === 0) drawRowName(context, hall, camera, theme, row, size);
  }
}

function drawRowName(context, hall, camera, theme, row, size) {
  const [first, last] = [row.seats[0], row.seats[row.seats.length - 1]];
  const [startX, startY] = camera.toScreen(hall.x[first], hall.y[first]);
  const [endX, endY] = camera.toScreen(hall.x[last], hall.y[last]);
  const gap = camera.scale * 0.5 + 4;
  context.fillStyle = theme.text;
  if (!row.isAcross) {
    writeName(context, camera, row.name, startX, startY - gap - size / 2, "center");
    writeName(context, camera, row.name, endX, endY + gap + size / 2, "center");
    return;
  }
  const width = Math.max(size * 2.6, context.measureText(row.name).width);
  const isOpen = hasRoom(hall, camera, endX + gap, endY, 2 * width);
  if (isOpen) writeName(context, camera, row.name, endX + gap, endY, "left");
  if (startX - gap <= PINNED_AT) {
    if (endX > PINNED_AT * 2) pinName(context, hall, camera, theme, row, size);
  } else if (hasRoom(hall, camera, startX - gap - width, startY, width)) {
    writeName(context, camera, row.name, startX - gap, startY, "right");
  }
}

/** Between two blocks there may be room for only one name: that of the row that starts there. */
function hasRoom(hall, camera, x, y, width) {
  const [left, middle] = camera.toHall(x, y);
  return !hall.hasSeatIn(left, middle - 0.5, left + width / camera.scale + 0.5, middle + 0.5);
}

function writeName(context, camera, name, x, y, align) {
  if (!isVisible(camera, x, y)) return;
  context.textAlign = align;
  context.fillText(name, x, y + 1);
}

/** The name of a row that starts outside the picture sticks to the edge, beside its first visible seat. */
function pinName(context, hall, camera, theme, row, size) {
  const seat = row.seats.find((each) => camera.toScreen(hall.x[each], 0)[0] > PINNED_AT);
  const y = camera.toScreen(0, hall.y[seat])[1];
  if (!isVisible(camera, 0, y)) return;
  const width = context.measureText(row.name).width + size;
  pill(context, 5, y - size * 0.8, width, size * 1.6, theme.text, 1);
  context.fillStyle = theme.background;
  context.textAlign = "center";
  context.fillText(row.name, 5 + width / 2, y + 1);
}

function drawPoolName(context, name, area, camera, theme, style) {
  const size = Math.max(12, Math.min(16, camera.scale * 0.5));
  const [x, edge] = camera.toScreen(area.x, area.y);
  const y = edge - camera.scale * 0.5 - size * 1.05;
  if (!isVisible(camera, x, y, area.width * camera.scale)) return;
  context.font = `600 ${size}px ${theme.font}`;
  context.textAlign = "left";
  const words = context.measureText(name).width;
  const width = words + size * 1.5;
  pill(context, x - width / 2 - size * 0.5, y - size * 0.75, width + size, size * 1.5, theme.background, 0.88);
  context.save();
  context.translate(x - width / 2, y - size * 0.5);
  drawSeat(context, FREE, style, size, theme);
  context.restore();
  context.fillStyle = colourOf(FREE, style, theme);
  context.fillText(name, x - width / 2 + size * 1.5, y + 1);
}

function pill(context, x, y, width, height, colour, opacity) {
  context.fillStyle = colour;
  context.globalAlpha = opacity;
  context.beginPath();
  context.roundRect(x, y, width, height, height / 2);
  context.fill();
  context.globalAlpha = 1;
}

function isVisible(camera, x, y, reach = 20) {
  return x > -reach && x < camera.width + reach && y > -20 && y < camera.height + 20;
}
