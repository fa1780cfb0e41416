"""The web page: its static files, and the requests for them."""
