/** The keyboard shortcuts of the page. Keys without a modifier work only outside text fields. */

import { announce } from "./announce.js"

const ROUNDING_PIXELS = 1

/**
 * @param {{ screen: () => import("./screen.js").Screen | null, list: import("../list/list.js").ListView,
 *   isBusy: () => boolean, create: () => void, showKeys: () => void, close: () => void }} parts
 */
export function installShortcuts({ screen, list, isBusy, create, close, showKeys }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return
    if (isBusy() || document.querySelector("dialog[open]")) return // the key is meant for the dialog
    const target = /** @type {HTMLElement} */ (event.target)
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.isContentEditable) return
    const run = action(event.key)
    if (!run) return
    event.preventDefault()
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
    const card = document.activeElement?.closest(".waiting-card")
    const buttons = card?.querySelector(".approval-buttons") ?? screen()?.transcript.approvalNode()
    if (!buttons) return
    const request = card ?? buttons.closest(".call")
    if (!request) return
    if (!isInView(request, buttons)) {
      if (!card) screen()?.show("transcript")
      request.scrollIntoView({ block: "nearest" })
      if (!isInView(buttons)) buttons.scrollIntoView({ block: "nearest" })
      announce(`Press ${key} again to answer.`) // a key must not answer a request that is not visible
      return
    }
    const button = /** @type {HTMLButtonElement | null} */ (buttons.querySelector(`[data-key="${key}"]`))
    if (button && !button.disabled) button.click()
  }
}

/**
 * Return whether an approval request and its buttons are completely visible. If the request is higher than the visible
 * area, only the buttons must be visible.
 * @param {Element} request
 * @param {Element} [buttons]
 */
function isInView(request, buttons = request) {
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
