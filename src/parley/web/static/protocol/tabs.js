/**
 * The tabs of this page: chooses one leader with a lock that the browser manages, and passes messages between tabs.
 * In a browser without locks every tab is a leader of its own.
 */

import { uuid } from "../dom.js"

const PING_MS = 3000
/** The time in which the leader must answer. After that, a visible tab takes the leadership. */

export class Tabs {
  /** @param {{ onLead: () => void, onMessage: (message: any, from: string) => void }} handlers */
  constructor({ onLead, onMessage }) {
    this.me = uuid()
    this.leads = false
    /** True if another tab has been heard. */
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

  /** Compete for the leadership. */
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

  /** Ask the leader for a sign of life. Take its place if there is none. */
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
   * Hold the lock until the tab ends. A tab whose lock was taken while it was frozen starts anew.
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
