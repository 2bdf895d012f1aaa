/** Civil days such as "2027-03-05", and their names in the page's language. A day has no time zone, so it counts as UTC
    here. */

import { knowsLanguage, page } from "./page.js";

const NAMES = {
  day: { weekday: "long", year: "numeric", month: "long", day: "numeric" },
  weekday: { weekday: "short" },
  letter: { weekday: "narrow" },
  month: { month: "short" },
  monthAndYear: { month: "long", year: "numeric" },
};
const formats = {};

export function nameOf(day, kind) {
  if (!knowsLanguage) {
    return composeName(new Date(day), kind);
  }
  formats[kind] ??= new Intl.DateTimeFormat(page.language, { ...NAMES[kind], timeZone: "UTC" });
  return formats[kind].format(new Date(day));
}

/** The same from the names that the server sent. */
function composeName(date, kind) {
  const { months, shortMonths, weekdays, shortWeekdays, letters } = page.calendar.names;
  const [year, month, weekday] = [date.getUTCFullYear(), date.getUTCMonth(), (date.getUTCDay() + 6) % 7];
  switch (kind) {
    case "day":
      return `${weekdays[weekday]}, ${date.getUTCDate()}-${months[month].toLowerCase()}, ${year}`;
    case "weekday":
      return shortWeekdays[weekday];
    case "letter":
      return letters[weekday];
    case "month":
      return shortMonths[month];
    default:
      return `${months[month]}, ${year}`;
  }
}

export function monthOf(day) {
  return day.slice(0, 7);
}

/** All days of a month, after as many nulls as its first week needs. `weekStart` counts from Monday. */
export function daysOf(month, weekStart) {
  const first = new Date(`${month}-01`);
  const blanks = (((first.getUTCDay() + 6) % 7) - weekStart + 7) % 7;
  const count = new Date(Date.UTC(first.getUTCFullYear(), first.getUTCMonth() + 1, 0)).getUTCDate();
  const days = Array.from({ length: count }, (_, n) => `${month}-${String(n + 1).padStart(2, "0")}`);
  return [...Array(blanks).fill(null), ...days];
}

/** The letters above the columns of a month. The fifth of January 1970 was a Monday. */
export function weekdayLetters(weekStart) {
  return Array.from({ length: 7 }, (_, n) => nameOf(Date.UTC(1970, 0, 5 + weekStart + n), "letter"));
}
