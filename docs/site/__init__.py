"""The generator of the documentation site: `python -m docs.site` writes the pages of `docs/` as static HTML.

The package `reference` generates pages from the code. A broken link, or a page that the navigation does not
contain, is an error, and then nothing is written.
"""
