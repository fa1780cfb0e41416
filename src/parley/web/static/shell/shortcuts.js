/** The keyboard shortcuts of the page. Keys without a modifier work only outside text fields. */

import { isTextField } from "../dom.js"
import { announce } from "./announce.js"

const ROUNDING_PIXELS = 1
const TYPING_MS = 1500
/**
 * The time in milliseconds during which a key is ignored after the text field in which the user typed has disappeared or has
 * lost the focus. The user still types then, and the letters must not act as shortcuts.
 */

/**
 * @param {{ screen: () => import("./screen.js").Screen | null, list: import("../list/list.js").ListView,
 *   isBusy: () => boolean, create: () => void, showKeys: () => void, close: () => void }} parts
 */
export function installShortcuts({ screen, list, isBusy, create, close, showKeys }) {
  // The time of the last key in a text field; -Infinity if the user has left the field.
  let typed = -Infinity
  for (const type of ["keydown", "pointerdown", "focusin"]) {
    const watch = (/** @type {Event} */ event) => {
      const isLeaving = event instanceof KeyboardEvent && /^(Escape|Tab)$/.test(event.key)
      if (isTextField(event.target)) typed = isLeaving ? -Infinity : performance.now()
      else if (type === "pointerdown") typed = -Infinity
    }
    window.addEventListener(type, watch, true)
  }
  document.addEventListener("keydown", (event) => {
    if (isTextField(event.target)) {
      // A key that has sent the text or moved the focus ends the typing.
      if (document.activeElement !== event.target || (event.key === "Enter" && (event.defaultPrevented || event.target instanceof HTMLInputElement))) typed = -Infinity
      return
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return
    // The key is meant for the dialog.
    if (isBusy() || document.querySelector("dialog[open]")) return
    if (performance.now() - typed < TYPING_MS) {
      typed = performance.now()
      if (event.key.length === 1) event.preventDefault()
      return
    }
    const run = action(event.key)
    if (!run) return
    event.preventDefault()
    // A held key must not answer one request after another.
    if (event.repeat && !/^[jk]$/.test(event.key)) return
    run()
  })

  /** @param {string} key @returns {(() => void) | null} */
  function action(key) {
    const open = screen()
    switch (key) {
      case "?":
        return showKeys
      case "/":
        return () => list.search.focus()
      case "n":
        return create
      case "j":
        return () => list.move(1)
      case "k":
        return () => list.move(-1)
      case "a":
      case "s":
      case "d":
      case "r":
        return () => answer(key)
      case "Escape":
        return open && matchMedia("(max-width: 800px)").matches ? close : null
    }
    if (!open) return null
    switch (key) {
      case "i":
        return () => open.composer.focus()
      case "x":
        return () => void open.composer.interrupt()
      case "f":
        return () => void open.find()
      case "g":
        return () => open.transcript.toEnd()
      case "c":
        return () => open.show(open.shown === "changes" ? "transcript" : "changes")
      case "e":
        return open.connection.may("conversationArchive") ? () => void open.archive() : null
    }
    return null
  }

  /** Press the button that has the shortcut `key`, of the focused approval or of the approval in the open conversation. @param {string} key */
  function answer(key) {
    const focused = document.activeElement?.closest(".waiting-card")?.querySelector(".approval-buttons")
    const buttons = focused ?? screen()?.transcript.approvalNode()
    const request = buttons?.closest(".waiting-card, .call")
    if (!buttons || !request) return
    if (!isInView(request, buttons)) {
      if (!focused) screen()?.show("transcript")
      if (request instanceof HTMLDetailsElement) request.open = true
      request.scrollIntoView({ block: "nearest" })
      if (!isInView(buttons)) buttons.scrollIntoView({ block: "nearest" })
      // A key must not answer a request that is not visible.
      announce(`Press ${key} again to answer.`)
      return
    }
    const button = /** @type {HTMLButtonElement | null} */ (buttons.querySelector(`[data-key="${key}"]`))
    if (button && !button.disabled) button.click()
  }
}

/**
 * Return whether an approval request is open and it and its buttons are completely visible. If the request is higher than the visible
 * area, only the buttons must be visible.
 * @param {Element} request
 * @param {Element} [buttons]
 */
function isInView(request, buttons = request) {
  if (request instanceof HTMLDetailsElement && !request.open) return false
  const views = [document.documentElement, ...[".scroller", ".waiting", ".list-scroll"].map((view) => request.closest(view))].filter((view) => view !== null)
  return views.every((view) => {
    const area = view.getBoundingClientRect()
    return isInside(buttons, area) && (request.getBoundingClientRect().height > area.height || isInside(request, area))
  })
}

/** @param {Element} element @param {DOMRect} area */
function isInside(element, area) {
  const { top, bottom, height } = element.getBoundingClientRect()
  return height > 0 && top >= area.top - ROUNDING_PIXELS && bottom <= area.bottom + ROUNDING_PIXELS
}
