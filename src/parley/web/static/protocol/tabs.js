/**
 * The tabs of this page. A Web Lock determines which tab is the leader, and a `BroadcastChannel` carries messages
 * between the tabs. In a browser without locks, every tab is a leader and gets no messages.
 */

import { uuid } from "../dom.js"

const PING_MS = 3000
/** The time in milliseconds within which the leader must respond. After this time, a visible tab becomes the leader. */

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

  /** Ping the leader, and become the leader if it does not respond in time. */
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
   * Hold the lock until the tab is closed. A tab whose lock was stolen while the tab was frozen reloads the page.
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
