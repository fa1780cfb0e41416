"""The settings: their fields and defaults (`types.py`), the table of all settings (`schema.py`), and the code that
resolves them (`load.py`).
"""
