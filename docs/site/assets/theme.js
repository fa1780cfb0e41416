// Applies the chosen theme before the first paint.
try {
  const theme = localStorage.getItem("parley-docs-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, the theme of the system applies.
}
