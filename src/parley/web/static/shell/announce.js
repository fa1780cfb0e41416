/** Announces changes to screen readers without interrupting them. */

/** @param {string} text */
export function announce(text) {
  const region = document.getElementById("announcements")
  if (region) region.textContent = text
}
