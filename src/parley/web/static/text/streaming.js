/**
 * Renders Markdown while the model writes it. Blocks that can no longer change, called settled blocks, are rendered once.
 * Only the last block is rendered again. New text is appended to an open code block without rendering the block again.
 */

import { h } from "../dom.js"
import { blockNode, blocksOf, isMarkdown } from "./markdown.js"

const MAX_TAIL = 20_000

export class StreamingText {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element
    /** @private the number of characters in the settled blocks */
    this.settled = 0
    /** @private @type {{ raw: string, node: ChildNode | null }[]} the settled blocks */
    this.blocks = []
    /** @private @type {ChildNode[]} the nodes of the last block */
    this.tail = []
    /** @private @type {{ node: Text, length: number, fence: string } | null} the code block at the end if it is open; otherwise null */
    this.code = null
    /** @private */
    this.length = 0
    /** @private the length at which a long last block is rendered again */
    this.nextRender = 0
  }

  /**
   * Show the text so far. The text must begin with the text of the previous call.
   * @param {string} text
   */
  update(text) {
    if (text.length === this.length) return
    if (text.length - this.settled > MAX_TAIL) {
      if (text.length < this.nextRender || !isMarkdown(text.slice(this.settled))) return this.showLongTail(text)
      this.nextRender = text.length + MAX_TAIL
    }
    if (this.code && this.growCode(text)) {
      this.length = text.length
      return
    }
    this.length = text.length
    this.code = null
    const rest = text.slice(this.settled)
    const tokens = blocksOf(rest)
    let last = tokens.length - 1
    while (last > 0 && tokens[last].type === "space") last--
    for (const node of this.tail) node.remove()
    this.tail = []
    for (let index = 0; index < tokens.length; index++) {
      const node = /** @type {ChildNode | null} */ (blockNode(tokens[index]))
      if (node) this.element.append(node)
      if (index < last) {
        this.settled += tokens[index].raw.length
        this.blocks.push({ raw: tokens[index].raw, node })
      } else if (node) this.tail.push(node)
    }
    const token = tokens[last]
    const fence = token?.type === "code" && /^ {0,3}(`{3,}|~{3,})[^\n]*\n/.exec(token.raw)
    if (fence && !token.raw.trimEnd().endsWith(fence[1])) {
      const code = /** @type {Element} */ (this.tail[0])?.querySelector("code")
      const node = code?.lastChild
      if (node instanceof Text && code?.childNodes.length === 1)
        this.code = { node, length: this.settled + token.raw.length, fence: fence[1] }
    }
  }

  /**
   * Show the beginning of the last block as plain text if the block is too long to be rendered repeatedly.
   * @private
   * @param {string} text
   */
  showLongTail(text) {
    if (this.code) {
      if (text.length - this.code.length < MAX_TAIL && this.growCode(text)) this.length = text.length
      return
    }
    if (this.tail.length) return // the beginning of the block is already shown
    const node = h("p", { class: "plain", dir: "auto" }, `${text.slice(this.settled, this.settled + MAX_TAIL)} …`)
    this.element.append(node)
    this.tail = [node]
    this.length = text.length
  }

  /**
   * Show the complete text. Settled blocks that have not changed are kept, and all other blocks are rendered again.
   * @param {string} text
   */
  finish(text) {
    const tokens = blocksOf(text)
    let kept = 0
    while (kept < this.blocks.length && kept < tokens.length && this.blocks[kept].raw === tokens[kept].raw) kept++
    if (tokens.some((token) => token.type === "def")) kept = 0 // a definition changes links in earlier blocks
    for (const node of this.tail) node.remove()
    for (const block of this.blocks.slice(kept)) block.node?.remove()
    for (const token of tokens.slice(kept)) {
      const node = blockNode(token)
      if (node) this.element.append(node)
    }
  }

  /**
   * Append new text to the open code block. Return false if there is no open code block, or if it may have ended.
   * @private
   * @param {string} text
   */
  growCode(text) {
    if (!this.code) return false
    const fresh = text.slice(this.code.length)
    const lineStart = text.lastIndexOf("\n", this.code.length - 1) + 1
    if (text.indexOf(this.code.fence[0].repeat(3), lineStart) >= 0) return false
    this.code.node.appendData(fresh)
    this.code.length = text.length
    return true
  }
}
