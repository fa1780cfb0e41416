/** Asks for the permission to notify, and subscribes to Web Push. Loaded when a person asks for notifications. */

/**
 * Ask for the permission to notify, and subscribe to Web Push where the server and the origin allow it.
 * @param {string | null} pushKey
 * @param {Record<string, string>} headers
 * @returns {Promise<string>} what was achieved, for the person
 */
export async function enableNotifications(pushKey, headers) {
  if (!("Notification" in globalThis)) return "This browser has no notifications."
  if ((await Notification.requestPermission()) !== "granted") return "The browser does not allow notifications for this address."
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

/** Register the service worker. Its address is constant, and only this policy may create it. */
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
