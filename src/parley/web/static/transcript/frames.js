/**
 * Runs drawing once per frame. A hidden page has no frames, so it draws after a pause.
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
