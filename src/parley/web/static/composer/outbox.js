/**
 * Sends messages. The page chooses the id of a message before it sends the message. Therefore, the server accepts the
 * message only once, even if the page sends it again after a lost connection. Messages that the server has not accepted
 * yet stay visible.
 */

import { uuid } from "../dom.js"
import { CallFailed, SignedOut } from "../protocol/mcp.js"

/** @typedef {{ id: string, content: any[], state: "sending" | "waiting", args: any }} Outgoing */

export class Outbox extends EventTarget {
  /**
   * @param {import("../protocol/connection.js").Connection} connection
   * @param {string} conversationId
   */
  constructor(connection, conversationId) {
    super()
    this.connection = connection
    this.conversationId = conversationId
    /** @type {Outgoing[]} */
    this.messages = []
  }

  /**
   * Send a message, and return when the server has accepted the message.
   * @param {any[]} content
   * @param {object} [options] further arguments of `conversationSendMessage`
   */
  async send(content, options = {}) {
    /** @type {Outgoing} */
    const message = { id: uuid(), content, state: "sending", args: options }
    this.messages.push(message)
    this.changed()
    try {
      for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
        try {
          return await this.connection.call("conversationSendMessage", {
            conversation_id: this.conversationId,
            content,
            message_id: message.id,
            ...options,
          })
        } catch (error) {
          if (error instanceof CallFailed || error instanceof SignedOut) throw error
          message.state = "waiting"
          this.changed()
          await Promise.race([
            new Promise((resolve) => setTimeout(resolve, wait)),
            new Promise((resolve) => this.connection.addEventListener("live", resolve, { once: true })),
          ])
        }
      }
    } finally {
      this.messages = this.messages.filter((one) => one !== message)
      this.changed()
    }
  }

  /** @private */
  changed() {
    this.dispatchEvent(new Event("change"))
  }
}
