/** Shows push messages about a booking, and opens the booking when the buyer taps one. */

addEventListener("push", (event) => {
  const { title, body, tag, path } = event.data.json();
  event.waitUntil(registration.showNotification(title, { body, tag, renotify: true, data: { path } }));
});

addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(openBooking(new URL(event.notification.data.path, location.origin)));
});

/** The page may be open already. */
async function openBooking(url) {
  const pages = await clients.matchAll({ type: "window", includeUncontrolled: true });
  const page = pages.find((each) => new URL(each.url).pathname === url.pathname);
  return page ? page.focus() : clients.openWindow(url);
}
