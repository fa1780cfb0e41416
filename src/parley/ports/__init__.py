"""The interfaces of the adapters, such as stores, models and tools, as protocol classes. The agent and the runtime
use adapters only through these interfaces.
"""
