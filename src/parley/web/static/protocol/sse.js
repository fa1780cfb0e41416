/**
 * Parses a stream of server-sent events. This module does not interpret the data of the events.
 */

/** @typedef {{ id: string | null, data: string }} ServerSentEvent */

export class EventParser {
  constructor() {
    /** @private @type {string[]} the pieces of the incomplete last line */
    this.rest = []
    /** @private @type {string[]} */
    this.data = []
    /** @private @type {string | null} */
    this.id = null
  }

  /**
   * Add the next piece of the stream, and return the events that this piece completes.
   * @param {string} text
   * @returns {ServerSentEvent[]}
   */
  feed(text) {
    /** @type {ServerSentEvent[]} */
    const events = []
    let start = 0
    for (let end; (end = text.indexOf("\n", start)) >= 0; start = end + 1) {
      this.rest.push(text.slice(start, end))
      const line = this.rest.length === 1 ? this.rest[0] : this.rest.join("")
      this.rest = []
      this.line(line.endsWith("\r") ? line.slice(0, -1) : line, events)
    }
    if (start < text.length) this.rest.push(text.slice(start))
    return events
  }

  /**
   * @private
   * @param {string} line
   * @param {ServerSentEvent[]} events
   */
  line(line, events) {
    if (line === "") {
      if (this.data.length) events.push({ id: this.id, data: this.data.join("\n") })
      this.data = []
      this.id = null
      return
    }
    const colon = line.indexOf(":")
    if (colon === 0) return // a comment
    const name = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1)
    if (name === "data") this.data.push(value)
    else if (name === "id") this.id = value
  }
}
