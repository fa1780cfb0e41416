/** Enables notifications and Web Push. This module is imported when the user asks for notifications. */

/**
 * Ask for the permission to show notifications, and subscribe to Web Push if the server and the origin allow it.
 * @param {string | null} pushKey the public key of the server; null if the server sends no push messages
 * @param {Record<string, string>} headers the headers that authenticate a request of the page
 * @returns {Promise<string>} a message for the user about the result
 */
export async function enableNotifications(pushKey, headers) {
  if (!("Notification" in globalThis)) return "This browser has no notifications."
  if ((await Notification.requestPermission()) !== "granted") return "The browser does not allow notifications for this site."
  if (!pushKey || !("serviceWorker" in navigator) || !("PushManager" in globalThis)) return "You are notified while the page is open."
  try {
    const registration = await registerWorker()
    const subscription = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: bytesOf(pushKey) })
    const response = await fetch("./push", {
      method: "PUT",
      headers: { "Content-Type": "application/json", ...headers },
      body: JSON.stringify({ ...subscription.toJSON(), events: ["waiting", "failed", "finished"] }),
    })
    if (response.ok) return "You are notified, also while the page is closed."
    await subscription.unsubscribe()
  } catch {
    // the origin does not allow a service worker, or the push service cannot be reached
  }
  return "You are notified while the page is open."
}

/** Register the service worker. The Content Security Policy allows only this Trusted Types policy, whose URL is constant. */
async function registerWorker() {
  const types = /** @type {any} */ (globalThis).trustedTypes
  const policy = types?.createPolicy("parley-worker", { createScriptURL: () => "./sw.js" })
  await navigator.serviceWorker.register(policy ? policy.createScriptURL("") : "./sw.js")
  return navigator.serviceWorker.ready
}

/** @param {string} text base64url */
function bytesOf(text) {
  const binary = atob(text.replace(/-/g, "+").replace(/_/g, "/"))
  return Uint8Array.from(binary, (character) => character.charCodeAt(0))
}
