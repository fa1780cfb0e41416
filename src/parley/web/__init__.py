"""The web page: its static files, and the module that serves them."""
