/** Announces changes to users of screen readers, without interrupting the current speech. */

/** @param {string} text */
export function announce(text) {
  const region = document.getElementById("announcements")
  if (region) region.textContent = text
}
