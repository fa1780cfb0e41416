/**
 * Shows that conversations need attention. The title and the icon of the page contain the number of these conversations.
 * While the page is hidden, the browser also shows notifications.
 */

import { visibleText } from "../text/visible.js"

const TEXTS = { waiting: "Waiting for your approval", failed: "Failed", finished: "Finished" }

/** @typedef {import("../state/list.js").ConversationList} ConversationList */

export class Notifications {
  /**
   * @param {ConversationList} list
   * @param {{ open: (id: string) => void, leads: () => boolean }} handlers
   */
  constructor(list, { open, leads }) {
    this.open = open
    this.leads = leads
    /** @private @type {Set<string> | null} the states of conversations for which no further notification is shown; null before the first load */
    this.known = null
    /** @private */
    this.count = -1
    list.addEventListener("change", () => this.take(list))
  }

  /** @private @param {ConversationList} list */
  take(list) {
    const keys = new Set(list.attention.map((one) => `${one.conversation_id}:${one.state}:${one.approval?.approval_id ?? one.seq}`))
    if (this.known)
      for (const one of list.attention)
        if (!this.known.has(`${one.conversation_id}:${one.state}:${one.approval?.approval_id ?? one.seq}`)) this.notify(one)
    this.known = keys
    const count = list.attention.length
    if (count === this.count) return
    this.count = count
    document.title = count ? `(${count}) Parley` : "Parley"
    drawIcon(count, list.waiting.length > 0)
    const badge = /** @type {any} */ (navigator)
    if (count) badge.setAppBadge?.(count).catch(() => {})
    else badge.clearAppBadge?.().catch(() => {})
  }

  /** @private @param {import("../state/list.js").Attention} one */
  notify(one) {
    if (!this.leads() || document.visibilityState === "visible" || !("Notification" in globalThis) || Notification.permission !== "granted") return
    const notification = new Notification(visibleText(one.title) || "Conversation", { body: TEXTS[one.state], tag: one.conversation_id })
    notification.onclick = () => {
      window.focus()
      this.open(one.conversation_id)
      notification.close()
    }
  }
}

/** Draw `count` into the icon of the page; 0 restores the plain icon. @param {number} count @param {boolean} isWaiting */
function drawIcon(count, isWaiting) {
  const link = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel=icon]"))
  if (!link) return
  link.dataset.plain ??= link.href
  if (!count) {
    link.href = link.dataset.plain
    return
  }
  const canvas = document.createElement("canvas")
  canvas.width = canvas.height = 64
  const drawing = canvas.getContext("2d")
  if (!drawing) return
  drawing.fillStyle = isWaiting ? "#b45309" : "#0f6a63"
  drawing.beginPath()
  drawing.roundRect(2, 2, 60, 60, 16)
  drawing.fill()
  drawing.fillStyle = "#fff"
  drawing.font = "bold 40px sans-serif"
  drawing.textAlign = "center"
  drawing.textBaseline = "middle"
  drawing.fillText(count > 9 ? "9+" : String(count), 32, 35)
  link.href = canvas.toDataURL("image/png")
}
