/**
 * The comments on diff lines that have not been sent yet. The browser stores the comments until the user sends them as one
 * message.
 */

import { uuid } from "../dom.js"

/** @typedef {{ id: string, path: string, line: number, isOld: boolean, quote: string, text: string }} Comment */

export class Comments extends EventTarget {
  /** @param {string} conversationId */
  constructor(conversationId) {
    super()
    /** @private */
    this.key = `parley.comments:${conversationId}`
    /** @type {Comment[]} */
    this.all = JSON.parse(localStorage.getItem(this.key) ?? "[]")
  }

  /** @param {Omit<Comment, "id">} comment @returns {Comment} */
  add(comment) {
    const added = { ...comment, id: uuid() }
    this.all.push(added)
    this.save()
    return added
  }

  /** @param {string} id */
  remove(id) {
    this.all = this.all.filter((comment) => comment.id !== id)
    this.save()
  }

  clear() {
    this.all = []
    this.save()
  }

  /**
   * @param {string} path
   * @param {number} line
   * @param {boolean} isOld
   */
  at(path, line, isOld) {
    return this.all.filter((comment) => comment.path === path && comment.line === line && comment.isOld === isOld)
  }

  /** Return the text of a message that contains all comments. */
  message() {
    const parts = this.all.map(({ path, line, isOld, quote, text }) => {
      const fence = "`".repeat(Math.max(3, ...Array.from(quote.matchAll(/`+/g), (run) => run[0].length + 1)))
      return `${path}, ${isOld ? "deleted line" : "line"} ${line}:\n${fence}\n${quote}\n${fence}\n${text}`
    })
    return `Comments on the changes:\n\n${parts.join("\n\n")}`
  }

  /** @private */
  save() {
    if (this.all.length) localStorage.setItem(this.key, JSON.stringify(this.all))
    else localStorage.removeItem(this.key)
    this.dispatchEvent(new Event("change"))
  }
}
