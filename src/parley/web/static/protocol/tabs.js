/**
 * The tabs of this page. A Web Lock determines which tab is the leader, and a `BroadcastChannel` carries messages
 * between the tabs. In a browser without Web Locks, every tab is a leader and gets no messages from other tabs.
 */

import { uuid } from "../dom.js"

const PING_MS = 3000
/** The time in milliseconds within which the leader must respond to a ping. After this time, the tab that sent the ping becomes the leader. */

export class Tabs {
  /** @param {{ onLead: () => void, onMessage: (message: any, from: string) => void }} handlers */
  constructor({ onLead, onMessage }) {
    this.me = uuid()
    this.leads = false
    /** True if this tab has received a message from another tab. */
    this.others = false
    /** @private */
    this.onLead = onLead
    /** @private @type {ReturnType<typeof setTimeout> | null} */
    this.waiting = null
    const name = `parley:${new URL("./", location.href).pathname}`
    /** @private */
    this.name = name
    /** @private @type {BroadcastChannel | null} */
    this.channel = null
    if (!("locks" in navigator) || !("BroadcastChannel" in globalThis)) return
    this.channel = new BroadcastChannel(name)
    this.channel.onmessage = ({ data: { from, message } }) => {
      this.others = true
      if (message.type === "ping") {
        if (this.leads) this.post({ type: "pong" })
      } else if (message.type === "pong") {
        this.stopWaiting()
      } else {
        onMessage(message, from)
      }
    }
  }

  /** Become the leader as soon as no other tab is the leader. */
  start() {
    if (!this.channel) {
      this.leads = true
      this.onLead()
    } else void this.request({})
  }

  /** @param {any} message */
  post(message) {
    this.channel?.postMessage({ from: this.me, message })
  }

  /** Ping the leader. If the leader does not respond in time, become the leader. */
  checkLeader() {
    if (this.leads || this.waiting || !this.channel) return
    this.post({ type: "ping" })
    this.waiting = setTimeout(() => {
      this.waiting = null
      if (!this.leads) void this.request({ steal: true })
    }, PING_MS)
  }

  /** @private */
  stopWaiting() {
    if (this.waiting) clearTimeout(this.waiting)
    this.waiting = null
  }

  /**
   * Request the lock, and hold it until the tab is closed. If another tab steals the lock, for example while this tab is
   * frozen, reload the page.
   * @private
   * @param {LockOptions} options
   */
  async request(options) {
    try {
      await navigator.locks.request(this.name, options, () => {
        this.stopWaiting()
        if (this.leads) return
        this.leads = true
        this.onLead()
        return new Promise(() => {})
      })
    } catch {
      if (this.leads) location.reload()
    }
  }
}
