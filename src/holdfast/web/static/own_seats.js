/** Seats of the buyer's own bookings. Another tab or device of the same buyer may have taken them. */

import { page, say } from "./page.js";

/** Which of these seats the buyer has, as the server knows it now. */
export async function findOwn(labels) {
  try {
    const response = await fetch(page.ownUrl, { headers: { accept: "application/json" } });
    page.own = response.ok ? (await response.json()).own : page.own;
  } catch {
    // Offline: rely on what the page knows.
  }
  return ownSeats(labels);
}

/** The notice about the seats that the buyer already has, or null: `{text, url, link, own}`. */
export function ownSeats(labels) {
  const booking = page.own.find(({ seats }) => labels.some((label) => seats.includes(label)));
  if (!booking) {
    return null;
  }
  const own = labels.filter((label) => booking.seats.includes(label));
  const text = say(booking.isHeld ? "ownHeld" : "own", { seats: own.join(", ") });
  return { text, url: booking.url, link: booking.link, own };
}
