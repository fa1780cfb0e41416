"""The settings: their fields and defaults (`types.py`), the table of all settings (`schema.py`), and the code that
combines the sources of settings (`load.py`).
"""
