/** The keys of the page. Keys without a modifier work outside text fields only. */

import { announce } from "./announce.js"

/**
 * @param {{ screen: () => import("./screen.js").Screen | null, list: import("../list/list.js").ListView, create: () => void,
 *   showKeys: () => void, close: () => void }} parts
 */
export function installShortcuts({ screen, list, create, close, showKeys }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return
    const target = /** @type {HTMLElement} */ (event.target)
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return
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

  /** Press a button of the approval that has the focus, or of the open conversation. @param {string} key */
  function answer(key) {
    const card = document.activeElement?.closest(".waiting-card")
    const buttons = card?.querySelector(".approval-buttons") ?? screen()?.transcript.approvalNode()
    if (!buttons) return
    const call = buttons.closest(".call")
    if (call && !isInView(call)) {
      screen()?.show("transcript")
      call.scrollIntoView({ block: "nearest" })
      announce(`Press ${key} again to answer.`) // nobody answers what is not in view
      return
    }
    const button = /** @type {HTMLButtonElement | null} */ (buttons.querySelector(`[data-key="${key}"]`))
    if (button && !button.disabled) button.click()
  }
}

/** @param {Element} element */
function isInView(element) {
  const { top, bottom, height } = element.getBoundingClientRect()
  if (height === 0) return false
  return bottom > 0 && top < innerHeight && (top >= 0 || bottom <= innerHeight || height > innerHeight)
}
