/**
 * Shows long text in parts, so that the page stays responsive even for many megabytes of text.
 */

import { h } from "../dom.js"

const FIRST_CHARACTERS = 20_000
const NEXT_CHARACTERS = 100_000
/** The maximum number of characters by which a part is shortened, so that it ends at the end of a line. */
const SHORTENED = 2000

/**
 * Fill an element with `text`. If the text is long, show only its first part, and a button that shows the next part.
 * @param {HTMLElement} element
 * @param {string} text
 * @param {(text: string) => (Node | string)[]} [render]
 * @param {number} [first] the number of characters of the first part
 */
export function fillLong(element, text, render = (part) => [part], first = FIRST_CHARACTERS) {
  if (text.length <= first * 1.5) {
    element.replaceChildren(...render(text))
    return
  }
  let shown = boundary(text, first)
  const more = h("button", { type: "button", class: "more", onclick: () => show() })
  const label = () => {
    more.textContent = `Show more (${readableSize(text.length - shown)} left)`
  }
  const show = () => {
    const end = boundary(text, shown + NEXT_CHARACTERS)
    more.before(...render(text.slice(shown, end)))
    shown = end
    if (shown >= text.length) more.remove()
    else label()
  }
  label()
  element.replaceChildren(...render(text.slice(0, shown)), more)
}

/**
 * Return the end of the part of `text` that ends at or before `index`: the end of a line if there is one shortly before
 * `index`, otherwise the last index that does not split a surrogate pair.
 * @param {string} text
 * @param {number} index
 */
function boundary(text, index) {
  if (index >= text.length) return text.length
  const end = text.lastIndexOf("\n", index - 1) + 1
  if (end > index - SHORTENED && end > 0) return end
  const unit = text.charCodeAt(index)
  return unit >= 0xdc00 && unit <= 0xdfff ? index - 1 : index
}

/** @param {number} characters */
function readableSize(characters) {
  if (characters < 1000) return `${characters} characters`
  if (characters < 1_000_000) return `${Math.round(characters / 1000)},000 characters`
  return `${(characters / 1_000_000).toFixed(1)} million characters`
}
