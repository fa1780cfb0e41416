/**
 * Calls drawing functions in the next frame of the browser. A hidden page gets no frames, so it draws after a delay.
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
