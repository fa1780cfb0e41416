/**
 * The service worker shows a notification for each push message, and opens the conversation when the user clicks the
 * notification. The service worker caches nothing.
 */

const TEXT = "A conversation needs you."
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/

self.addEventListener("install", () => self.skipWaiting())
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()))

self.addEventListener("push", (event) => {
  const id = event.data?.text() ?? ""
  if (!UUID.test(id)) return
  event.waitUntil(show(id))
})

async function show(id) {
  const pages = await self.clients.matchAll({ type: "window" })
  if (pages.some((page) => page.visibilityState === "visible")) return
  await self.registration.showNotification("Parley", { body: TEXT, tag: id, data: id })
}

self.addEventListener("notificationclick", (event) => {
  event.notification.close()
  event.waitUntil(open(event.notification.data))
})

async function open(id) {
  const address = new URL(`./#c=${id}`, self.registration.scope).href
  const [page] = await self.clients.matchAll({ type: "window" })
  if (!page) return self.clients.openWindow(address)
  await page.focus()
  page.postMessage({ open: id })
}
