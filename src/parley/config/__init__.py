"""Settings: fields and defaults (`types.py`), the table of all (`schema.py`), and their resolution (`load.py`)."""
