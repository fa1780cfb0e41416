/** The dialog that lists the keyboard shortcuts. */

import { h } from "../dom.js"
import { openDialog } from "./dialog.js"

const KEYS = [
  ["?", "Show this list"],
  ["/", "Search conversations and messages"],
  ["j, k", "Next, previous conversation"],
  ["n", "New conversation"],
  ["i", "Write a message"],
  ["Enter", "Send; gives the message to the agent while it works"],
  ["Alt+Enter", "Queue the message"],
  ["Shift+Enter", "New line"],
  ["a, s", "Approve once, approve for the session"],
  ["d, r", "Deny, deny with a reason"],
  ["x", "Interrupt the agent"],
  ["f", "Find in the conversation"],
  ["g", "Go to the latest message"],
  ["c", "Switch between conversation and changes"],
  ["↑, ↓", "Move in the list, and between the lines of a diff"],
  ["e", "Archive the conversation"],
  ["Esc", "Close, cancel, or leave the text field"],
]

export function showKeys() {
  if (document.querySelector("dialog[open]")) return
  const dialog = openDialog("Keys", (close) => [
    h(
      "dl",
      { class: "keys" },
      ...KEYS.flatMap(([key, text]) => [h("dt", null, ...key.split(", ").map((one) => h("kbd", null, one))), h("dd", null, text)]),
    ),
    h("div", { class: "row end" }, h("button", { type: "button", class: "button primary", onclick: close }, "Close")),
  ])
  dialog.scrollTop = 0 // on a small screen, focusing the button scrolls the dialog to the end
}
