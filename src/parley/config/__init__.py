"""Settings: what they are (`types.py`), and how they are read and combined (`load.py`)."""
