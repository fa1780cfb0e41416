/**
 * Calls drawing functions in the next frame of the browser. The browser draws no frames of a hidden page, so the functions
 * are called after a delay.
 */

const HIDDEN_MS = 500

/** @param {() => void} draw */
export function nextFrame(draw) {
  let done = false
  const once = () => {
    if (done) return
    done = true
    draw()
  }
  requestAnimationFrame(once)
  if (document.visibilityState === "hidden") setTimeout(once, HIDDEN_MS)
}
