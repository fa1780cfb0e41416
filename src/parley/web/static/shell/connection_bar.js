/** The bar that shows the state of the connection. While the connection is lost, the bar also shows the time until the next attempt to connect. */

import { fill, h } from "../dom.js"

const TEXTS = { connecting: "Connecting…", live: "Live", lost: "Connection lost", "signed-out": "Signed out" }

/** @param {import("../protocol/connection.js").Connection} connection */
export function connectionBar(connection) {
  const node = h("div", { class: "connection", role: "status", "data-state": connection.state })
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let timer
  const draw = () => {
    const { state, retryAt } = connection
    node.dataset.state = state
    clearInterval(timer)
    const text = h("span", null, TEXTS[state])
    fill(
      node,
      h("span", { class: "connection-dot", "aria-hidden": "true" }),
      text,
      state === "lost" && h("button", { type: "button", class: "button small", onclick: () => connection.retryNow() }, "Try now"),
    )
    if (state !== "lost") return
    const tick = () => {
      const left = retryAt ? Math.ceil((retryAt - Date.now()) / 1000) : 0
      text.textContent = navigator.onLine === false ? "This device is offline" : left > 0 ? `Connection lost, next attempt in ${left} s` : "Connection lost, connecting…"
    }
    tick()
    timer = setInterval(tick, 1000)
  }
  connection.addEventListener("state", draw)
  draw()
  return node
}
