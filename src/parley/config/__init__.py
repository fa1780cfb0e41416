"""Settings: as plain values (`types.py`), what may be set (`schema.py`), where keys stand (`locate.py`),
and how all sources are read and combined (`load.py`)."""
